"""Class ids and class names: what is demanded of them before a training."""

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.found import Found

__all__ = ["class_names_of", "require_every_class", "require_few_labels", "require_labels"]

_LARGEST = 1_000_000  # classes; a larger id is no class id


def class_names_of(found: Found, usual: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names found, else those usual for the set, else the numbers."""
    labels = next(iter(found.parts.values())).labels
    if len(labels) == 0:
        raise fail("data", "images must be at least 2 of 2 classes, got none.")
    largest = int(labels.max())
    if found.class_names is not None:
        return found.class_names
    if largest >= _LARGEST:
        raise fail("data", f"labels must be class ids counted from 0, got {largest}.")
    if usual is not None:
        return usual
    return tuple(f"{label}" for label in range(largest + 1))


def require_labels(labels: np.ndarray, names: tuple[str, ...], of: str) -> None:
    """Every label must be a class id.

    Args:
        labels: of one part of a set.
        names: of the classes.
        of: what part it is, in words.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(wrong):
        expected = f"class ids from 0 to {len(names) - 1}"
        raise fail("data", f"labels of {of} must be {expected}, got {labels[wrong[0]]} at image {wrong[0]}.")


def require_every_class(labels: np.ndarray, names: tuple[str, ...]) -> None:
    """There must be two classes, and an image of each to fit on."""
    if len(names) < 2:
        raise fail("data", f"images must be of 2 classes or more, got {len(names)} ({', '.join(names)}).")
    absent = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
    if len(absent):
        which = f"class {absent[0]} ({names[absent[0]]})"
        which += f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        remedy = "add images, raise `limit`, or lower `validation`"
        raise fail("data", f"every class must have an image to train on, got none of {which}; {remedy}.")


def require_few_labels(count: int, images: int, names: tuple[str, ...]) -> None:
    """A number of labels must be enough for every class, and leave images without one."""
    if not len(names) <= count < images:
        expected = f"one for each of {len(names)} classes at least and below the {images} training images"
        raise fail("data", f"`labels` must be {expected}, got {count}; leave it out to keep all labels.")
