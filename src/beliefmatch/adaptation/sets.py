"""What the last layer sees of all the data that an adaptation is given."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch.adaptation.backbone import HeadInputs
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import Progress, extract
from beliefmatch.adaptation.heads import Head
from beliefmatch.adaptation.settings import OnProgress
from beliefmatch.adaptation.streams import as_stream
from beliefmatch.adaptation.types import Features
from beliefmatch.checks import fail

__all__ = ["FOREIGN", "extracted", "first_inputs"]

FOREIGN = "foreign "
"""In front of the names of foreign sets."""
_FEW = 8  # rows that a head is found by


def first_inputs(data: Any, device: torch.device) -> tuple[Tensor, Any]:
    """Some inputs from the beginning, and the data with nothing missing: an iterator comes only once."""
    if isinstance(data, Iterator):
        batch = next(data, None)
        if batch is None:
            raise fail("adapt", "`train` must have at least one batch, got none.")
        data = chain([batch], data)
        return as_stream([batch], batch_size=_FEW, device=device).first().inputs[:_FEW].to(device), data
    return as_stream(data, batch_size=_FEW, device=device).first().inputs[:_FEW].to(device), data


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
        on_progress: told the share of a set that is done, and which.
    """
    features_of = HeadInputs(model, head)
    return {
        name: extract(
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
        for name, one in data.items()
    }


def _telling(name: str, on_progress: OnProgress | None) -> Callable[[Progress], None] | None:
    if on_progress is None:
        return None

    def tell(now: Progress) -> None:
        share = 0.0 if not now.total else now.rows / now.total
        of = "" if now.total is None else f" of {now.total}"
        on_progress(share, f"features of {name}: {now.rows}{of} rows")

    return tell
