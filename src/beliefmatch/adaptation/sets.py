"""What the last layer sees of all the data that an adaptation is given."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from beliefmatch._utils import OnProgress
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.backbone import HeadInputs
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import ExtractProgress, extract
from beliefmatch.adaptation.heads import Head
from beliefmatch.adaptation.streams import as_stream, as_tensor
from beliefmatch.adaptation.types import Features

__all__ = ["OOD", "as_cache", "as_given", "extracted", "first_inputs", "given_sets"]

OOD = "OOD "
"""In front of the names of OOD sets."""
_THEIRS = "extract: "
_FEW = 8  # rows that a head is found by


def given_sets(train: Any, validation: Any, test: Any, ood: Any) -> dict[str, Any]:
    """The data that were given, by name; images alone may be OOD."""
    if isinstance(ood, Tensor | np.ndarray):
        ood = {"ood": ood}
    if ood is not None and not isinstance(ood, Mapping):
        expected = "sets by their names, such as {'noise': images}"
        raise fail("adapt", f"`ood` must be {expected}, got {describe(ood)}.", TypeError)
    data = {"train": train, "validation": validation, "test": test}
    for name, one in (ood or {}).items():
        with as_given(f"{OOD}{name}"):
            alone = isinstance(one, Tensor | np.ndarray)
            data[f"{OOD}{name}"] = TensorDataset(as_tensor(one)) if alone else one
    return {name: one for name, one in data.items() if one is not None or name == "train"}


def as_cache(cache: Any) -> FeatureCache | None:
    """A cache, or one in the directory of this path."""
    if isinstance(cache, str | Path):
        return FeatureCache(cache)
    if cache is not None and not isinstance(cache, FeatureCache):
        expected = "a FeatureCache or the path of a directory"
        raise fail("adapt", f"`cache` must be {expected}, got {describe(cache)}.", TypeError)
    return cache


@contextmanager
def as_given(name: str) -> Iterator[None]:
    """Errors of `extract` name what was given to `adapt`: the argument, not a source."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = f"{error}"
        if type(error) not in (ValueError, TypeError) or not text.startswith(_THEIRS):
            raise
        shown = f"ood[{name.removeprefix(OOD)!r}]" if name.startswith(OOD) else name
        fact = text.removeprefix(_THEIRS)
        if not fact.startswith("`"):
            fact = f"`{shown}`: {fact}"
        raise fail("adapt", fact.replace("`source`", f"`{shown}`", 1), type(error)) from error


def first_inputs(data: Any, device: torch.device) -> tuple[Tensor, Any]:
    """Some inputs from the beginning, and the data with nothing missing: an iterator comes only once."""
    some = data
    if isinstance(data, Iterator):
        batch = next(data, None)
        if batch is None:
            raise fail("adapt", "`train` must have at least one batch, got none.")
        some, data = [batch], chain([batch], data)
    with as_given("train"):
        first = as_stream(some, batch_size=_FEW, device=device).first()
    return first.inputs[:_FEW].to(device), data


def extracted(
    model: nn.Module,
    head: Head,
    data: Mapping[str, Any],
    *,
    key_parts: Mapping[str, Mapping[str, Any]] | None = None,
    cache: FeatureCache | None = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    compile: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[str, Features]:
    """The features of each set of data, by its name.

    Args:
        model: the network.
        head: of `find_head`.
        data: any form that `extract` takes, by name.
        key_parts: by the same names, what else tells these data from others; see `extract`.
        cache: where features are kept for the next time.
        device: where to compute.
        precision: see `extract`.
        compile: see `extract`.
        on_progress: Called with (fraction, description).
    """
    features_of = HeadInputs(model, head)
    found = {}
    for name, one in data.items():
        with as_given(name):
            found[name] = extract(
                model,
                features_of,
                one,
                key_parts={"head": head.name, **(key_parts or {}).get(name, {})},
                cache=cache,
                device=device,
                precision=precision,
                compile=compile,
                on_progress=_telling(name, on_progress),
            )
    return found


def _telling(name: str, on_progress: OnProgress | None) -> Callable[[ExtractProgress], None] | None:
    if on_progress is None:
        return None

    def tell(now: ExtractProgress) -> None:
        share = 0.0 if not now.total else now.rows / now.total
        of = "" if now.total is None else f" of {now.total}"
        on_progress(share, f"features of {name}: {now.rows}{of} rows")

    return tell
