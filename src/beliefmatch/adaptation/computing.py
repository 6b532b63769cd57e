"""Features of one batch: in which precision, on which device, and what is demanded of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from beliefmatch._validate import FLOATING, describe, fail, level_of_caller, require_choice
from beliefmatch.adaptation.shards import StoredType
from beliefmatch.adaptation.streams import Piece
from beliefmatch.train.engine import has_fast_bf16, resolve_precision

__all__ = ["BF16_TOLERANCE", "Computing", "largest_difference", "running", "verified_precision"]

BF16_TOLERANCE = 2e-2
"""By which features in bfloat16 may differ from those in float32: the norm of the difference over the norm,
in every row of the first batch."""

_CALLER = "extract"


@dataclass(frozen=True)
class Computing:
    """Computes the features of a piece.

    Args:
        features_of: inputs to features (N, F).
        device: where to compute.
        dtype: of the result.
        bf16: compute in bfloat16 where autocast does.
        compiled: a faster way to the same features, for inputs of one shape.
        compiled_shape: that shape.
    """

    features_of: Callable[[Tensor], Tensor]
    device: torch.device
    dtype: StoredType = "float32"
    bf16: bool = False
    compiled: Callable[[Tensor], Tensor] | None = None
    compiled_shape: tuple[int, ...] = ()

    def __call__(self, piece: Piece) -> np.ndarray:
        """Features (n, F), finite."""
        inputs = piece.inputs.to(self.device, non_blocking=True)
        if inputs.dim() == 4 and inputs.is_floating_point():
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            features: Any = self._way(inputs)(inputs)
        if not isinstance(features, Tensor) or features.dtype not in FLOATING or features.dim() != 2:
            raise fail(
                _CALLER, f"`features_of` must give features (N, F), got {describe(features)}.", TypeError
            )
        if len(features) != len(inputs) or features.shape[1] == 0:
            expected = f"features ({len(inputs)}, F) for {len(inputs)} inputs"
            raise fail(_CALLER, f"`features_of` must give {expected}, got {describe(features)}.")
        return self._checked(features.to("cpu", torch.float32), piece.start)

    def _way(self, inputs: Tensor) -> Callable[[Tensor], Tensor]:
        is_fitting = self.compiled is not None and tuple(inputs.shape) == self.compiled_shape
        return self.compiled if is_fitting and self.compiled is not None else self.features_of

    def _checked(self, features: Tensor, start: int) -> np.ndarray:
        stored = features.to(getattr(torch, self.dtype))
        if not stored.isfinite().all():
            row, column = (~stored.isfinite()).nonzero()[0].tolist()
            value = features[row, column].item()
            remedy = "" if not np.isfinite(value) else "; it needs float32"
            fact = f"features must be finite {self.dtype}, got {value:.6g} in row {start + row}"
            raise fail(_CALLER, f"{fact}, feature {column}{remedy}.")
        return stored.numpy()


@contextmanager
def running(model: nn.Module, device: torch.device) -> Iterator[torch.device]:
    """The model in evaluation mode and on a device for the time of the block; then all is as it was."""
    place = torch.empty(0, device=device).device  # with its number
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())} or {place}
    if len(homes) > 1:
        listed = ", ".join(sorted(map(str, homes)))
        raise fail(_CALLER, f"`model` must be on one device, got {listed}.")
    (home,) = homes
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        if home != place:
            model.to(place)
        yield place
    finally:
        for module, training in modes:
            module.training = training
        if home != place:
            model.to(home)


def verified_precision(computing: Computing, precision: str, first: Callable[[], Piece]) -> Computing:
    """The same in bfloat16 where that is wanted, safe and close enough to float32 on the first batch.

    "auto" takes bfloat16 only where the hardware is faster with it.
    """
    require_choice(_CALLER, "precision", precision, ("32", "bf16", "auto"))
    kind = computing.device.type
    if precision == "32" or (precision == "auto" and not has_fast_bf16(kind)):
        return computing
    try:
        resolve_precision("bf16", kind)
    except ValueError as error:
        raise fail(_CALLER, f"{error}".removeprefix("Engine: ")) from error
    lower, piece = replace(computing, bf16=True), first()
    difference = largest_difference(computing, lower, piece)
    if difference < BF16_TOLERANCE:
        return lower
    if precision == "bf16":
        fact = (
            f"bfloat16 changes a row of features by {difference:.2g} of its norm, more than {BF16_TOLERANCE}"
        )
        warnings.warn(f"extract: {fact}; computing in float32.", stacklevel=level_of_caller())
    return computing


def largest_difference(exact: Computing, other: Computing, piece: Piece) -> float:
    """Of the rows of a piece, the largest norm of the difference between two ways, over the row's norm."""
    one, two = (replace(way, dtype="float32")(piece) for way in (exact, other))
    return float((_norms(one - two) / _norms(one).clip(1e-30)).max())


def _norms(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows.astype(np.float64), axis=1)
