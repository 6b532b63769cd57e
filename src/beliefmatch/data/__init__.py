"""Data: images and labels as batches of tensors, and predictions from files.

Importing the package, its configuration and the table of datasets loads neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beliefmatch._utils import lazy_names
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS

if TYPE_CHECKING:
    from beliefmatch.data.loading import load, read_images
    from beliefmatch.data.ood import load_ood
    from beliefmatch.data.predictions import read_predictions

__all__ = ["DATASETS", "DataConfig", "load", "load_ood", "read_images", "read_predictions"]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "loading": "load read_images",
        "ood": "load_ood",
        "predictions": "read_predictions",
    },
)
