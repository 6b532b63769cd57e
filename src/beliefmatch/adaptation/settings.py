"""The validated options of a fit."""

from collections.abc import Sequence
from typing import Literal

from beliefmatch._config import Config, Count, NonNegative, Positive
from beliefmatch._validate import fail, require_choice, require_index
from beliefmatch.adaptation.candidates import KINDS, Candidate
from beliefmatch.adaptation.head_init import Init
from beliefmatch.adaptation.types import Features

__all__ = ["HeadConfig", "known_classes", "require_candidates"]


class HeadConfig(Config, frozen=True, kw_only=True):
    """How to train; see `fit_heads`."""

    epochs: Count
    batch_size: Count
    learning_rate: Positive
    weight_decay: NonNegative
    patience: Count | None
    monitor: Literal["nll", "error"]
    order_seed: int
    memory: Count


def known_classes(features: Features, init: Init | None, classes: int | None) -> int:
    """K, as given or as the existing head or the counts tell it."""
    known = classes
    if known is None and init is not None:
        known = len(init[0])
    if known is None and features.targets.dim() == 2:
        known = features.targets.shape[1]
    if known is None:
        raise fail("fit_heads", "`classes` must be given where targets are class ids and there is no `init`.")
    if require_index("fit_heads", "classes", known) < 2:
        raise fail("fit_heads", f"`classes` must be at least 2, got {known}.")
    if init is not None and len(init[0]) != known:
        raise fail("fit_heads", f"`init` must have {known} classes, got {len(init[0])}; leave it out.")
    return known


def require_candidates(
    candidates: Sequence[Candidate], features: Features, init: Init | None, classes: int
) -> None:
    """Candidates must be such as can be trained on these targets, and differ."""
    if not candidates:
        raise fail("fit_heads", "`candidates` must not be empty, got none.")
    seen: set[str] = set()
    for one in candidates:
        require_choice("fit_heads", "candidates' kind", one.kind, KINDS)
        if one.kind == "evidential" and features.targets.dim() == 2:
            raise fail("fit_heads", f"`candidates` must do with counts, got {one.name}; it needs class ids.")
        if isinstance(one.prior, tuple) and len(one.prior) != classes:
            raise fail("fit_heads", f"`prior` must have {classes} numbers, got {len(one.prior)}.")
        settings = repr((one.kind, sorted(one.options.items()), None if init else one.seed))
        if settings in seen:
            same = "; from one `init` the seeds make no difference" if init else ""
            raise fail("fit_heads", f"`candidates` must differ, got {one.name} twice{same}.")
        seen.add(settings)
