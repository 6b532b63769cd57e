"""Numbers that may also be a word."""

import math

__all__ = ["number_or_auto"]


def number_or_auto(caller: str, argument: str, text: str) -> float | str:
    """A finite number, or "auto"."""
    if text == "auto":
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{caller}: `{argument}` must be a finite number or auto, got {text!r}.")
    return number
