"""Text of reports: names are data and may hold anything, numbers may be missing."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from beliefmatch._errors import fail
from beliefmatch._files import numbered
from beliefmatch.experiments.adapt_record import ScoredHead
from beliefmatch.experiments.evaluation_record import (
    Bins,
    ClassScores,
    Curve,
    EvaluationRecord,
    Example,
    Number,
    PredictionSets,
    RiskThresholdRecord,
)
from beliefmatch.experiments.records import RunRecord

__all__ = [
    "MISSING",
    "answers_text",
    "class_label",
    "class_labels",
    "clipped",
    "count_text",
    "level_text",
    "listed",
    "markdown_text",
    "number_text",
    "ood_names",
    "percent",
    "presentable",
    "shorten",
    "spreadsheet_text",
    "threshold_text",
    "tidy",
]

MISSING = "—"
_REQUIRED: dict[type, tuple[str, ...]] = {
    ClassScores: ("mean_probability", "calibration_error"),
    Example: ("confidence", "target_probability", "entropy"),
    PredictionSets: ("wanted", "coverage", "mean_size"),
    RiskThresholdRecord: ("risk", "delta", "coverage"),
}
_SIGNED_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_BIDI = frozenset(chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def presentable(records: Sequence[EvaluationRecord], *, caller: str) -> list[EvaluationRecord]:
    """The records with visible characters only, finite numbers only, and a name of its own for each."""
    if not records:
        raise fail(caller, "`records` must hold at least one record, got none.")
    tidied = [tidy(record) for record in records]
    names = numbered([record.name.strip() or "(no name)" for record in tidied], " ({})")
    return [replace(record, name=name) for record, name in zip(tidied, names, strict=True)]


def tidy(value: Any) -> Any:
    """The same value without control characters in its texts and without NaN or infinity."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_visible, value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [tidy(item) for item in value if not _is_broken(item)]
    if isinstance(value, dict):
        return {tidy(key): tidy(item) for key, item in value.items()}
    if isinstance(value, Curve):
        return _finite_points(value)
    if isinstance(value, Bins):
        return _finite_bins(value)
    if isinstance(value, Number):
        return _finite_number(value)
    if isinstance(value, RiskThresholdRecord) and value.threshold == -math.inf:
        return tidy(replace(value, threshold=0.0))  # answers everything, as zero does
    if isinstance(value, Struct):
        return replace(value, **{name: tidy(getattr(value, name)) for name in value.__struct_fields__})
    return value


def _visible(character: str) -> str:
    """A picture of a control character; line breaks and reversals in a name would disturb its neighbours."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    unwanted = character in _BIDI or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return "\ufffd" if unwanted else character


def _finite_points(curve: Curve) -> Curve:
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=False) if math.isfinite(x) and math.isfinite(y)]
    return Curve([x for x, _ in points], [y for _, y in points])


def _finite_bins(bins: Bins) -> Bins:
    edges = zip(bins.lower, bins.upper, strict=True)
    kept = [place for place, ends in enumerate(edges) if all(map(math.isfinite, ends))]
    columns = (bins.lower, bins.upper, bins.count, bins.confidence, bins.accuracy)
    return Bins(*([tidy(column[place]) for place in kept] for column in columns))


def _is_broken(item: Any) -> bool:
    """Whether an entry of a list lacks a number that it cannot be shown without."""
    required = _REQUIRED.get(type(item), ())
    return not all(math.isfinite(getattr(item, name)) for name in required)


def _finite_number(number: Number) -> Number:
    value, low, high = (tidy(part) for part in (number.value, number.low, number.high))
    why = tidy(number.why) or ("" if value is not None else "no finite value")
    return (
        Number(value, low, high, why)
        if value is not None
        else Number(None, why=why, is_infinite=number.is_infinite)
    )


def number_text(value: float | None, digits: int, *, scale: float = 1.0) -> str:
    """A number with a true minus sign, in exponent form from a million on, or a dash where there is none."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    form = "f" if abs(scale * value) < 1e6 else "e"
    text = f"{scale * value:.{digits}{form}}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent, such as "4.8 %"."""
    return MISSING if value is None else f"{number_text(value, digits, scale=100)}\u00a0%"


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def count_text(count: int, thing: str) -> str:
    """A number of things, of which one is not many."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def level_text(record: EvaluationRecord) -> str:
    """Level of the intervals of a record, such as "95 %"; a damaged one has none."""
    level = record.settings.get("level")
    return f"{100 * level:g} %" if isinstance(level, float) else "unknown"


def threshold_text(value: float | None) -> str:
    """A confidence with as many digits as separate it from one, rounded up so that it keeps the risk."""
    if value is None:
        return MISSING
    digits = 4 if not 0 < 1 - value < 1e-3 else min(1 - math.floor(math.log10(1 - value)), 16)
    return str(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


def answers_text(found: RiskThresholdRecord) -> tuple[str, str]:
    """Coverage of a risk threshold and its least confidence; no confidence where everything is answered."""
    if found.threshold is not None and found.threshold <= 0:
        return "answers everything", ""
    share = number_text(found.coverage, 1, scale=100)
    return f"answers {share}\u00a0%", f"confidence ≥ {threshold_text(found.threshold)}"


def class_label(record: EvaluationRecord, index: int) -> str:
    """The name of a class, or its number where it has none."""
    known = 0 <= index < len(record.class_names)
    return (record.class_names[index].strip() if known else "") or str(index)


def ood_names(scored: Iterable[EvaluationRecord | ScoredHead | RunRecord]) -> list[str]:
    """Every OOD set of any of them, in the order of their first appearance."""
    return list(dict.fromkeys(ood.name for one in scored for ood in one.ood))


def class_labels(record: EvaluationRecord, width: int) -> list[str]:
    """The classes by id, cut between words to `width`, and in the middle where two would look the same."""
    count = max(len(record.class_names), len(record.confusion.matrix or []))
    full = [class_label(record, index) for index in range(count)]
    cut = [clipped(label, width) for label in full]
    meant: dict[str, set[str]] = {}
    for label, name in zip(cut, full, strict=True):
        meant.setdefault(label, set()).add(name)
    pairs = zip(cut, full, strict=True)
    return [label if len(meant[label]) == 1 else shorten(name, width) for label, name in pairs]


def clipped(text: str, width: int) -> str:
    """The beginning of a long text, up to the end of a word if one is near."""
    if len(text) <= width:
        return text
    head, _, _ = text[:width].rpartition(" ")
    return f"{(head if 2 * len(head) >= width else text[: width - 1]).rstrip(' ,;:-')}…"


def shorten(text: str, width: int) -> str:
    """The two ends of a long text; its middle says least."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head].rstrip()}…{text[len(text) - (width - 1 - head) :].lstrip()}"


def spreadsheet_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula. Numbers with a sign are none."""
    is_risky = text.lstrip()[:1] in tuple("=+-@＝＋－＠") or text[:1] in ("\t", "\r", "\n")
    return f"'{text}" if is_risky and not _SIGNED_NUMBER.fullmatch(text) else text


def markdown_text(text: str) -> str:
    """Text in which no sign means anything: backslashes for Markdown's, entities for HTML's."""
    text = re.sub(r"([\\`*_{}\[\]#|~$@])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
