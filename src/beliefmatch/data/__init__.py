"""Data: images and labels as batches of tensors, and predictions from files.

Importing the package, its configuration and the table of datasets loads neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS

if TYPE_CHECKING:
    from beliefmatch.data.loading import load, read_images
    from beliefmatch.data.ood import load_ood
    from beliefmatch.data.predictions import read_predictions

__all__ = ["DATASETS", "DataConfig", "load", "load_ood", "read_images", "read_predictions"]

_MODULES = {"load": "loading", "read_images": "loading", "load_ood": "ood", "read_predictions": "predictions"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
