"""How the numbers of the page came about: files, settings, versions, hardware, in plain words."""

from collections.abc import Sequence
from typing import Any

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_text import count_text, number_text

__all__ = ["facts"]

_WORDS = {
    "groups": "groups of like confidence",
    "resamples": "resamples asked for",
    "resamples_drawn": "resamples drawn",
    "level": "level of the intervals",
    "seed": "seed of the resamples",
    "top_k": "classes that top-k error may name",
    "risks": "risks to promise",
    "delta": "probability that a promise fails",
    "shown": "examples shown of each kind",
    "targets_sha256": "SHA-256 of the targets",
    "fields": "name in the file of",
    "foreign_fields": "name in the foreign file of",
    "unused": "what was not used",
    "probs": "probabilities",
}


def facts(models: Sequence[EvaluationRecord]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """How the numbers came about: groups of lines, each a name and a text for every model."""
    own = [_own_facts(model) for model in models]
    groups = [("File", own)]
    groups += [
        (title, [_flat(getattr(model, name)) for model in models])
        for title, name in (("Settings", "settings"), ("Versions", "versions"), ("Hardware", "hardware"))
    ]
    return [(title, _lines(found)) for title, found in groups if any(found)]


def _own_facts(model: EvaluationRecord) -> dict[str, str]:
    foreign = {
        f"foreign: {f.name}": f"{f.source}, {count_text(f.examples, 'example')}" for f in model.foreign
    }
    return {
        "file": model.source,
        "content": model.kind,
        "examples": f"{model.examples:,}",
        "classes": f"{len(model.class_names):,}",
        **foreign,
        "evaluated": model.created,
        "evaluation took": f"{number_text(model.wall_seconds, 2)} s",
    }


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of texts, by their names in words."""
    flat: dict[str, str] = {}
    for key, value in content.items():
        name = f"{prefix}{_WORDS.get(key, key.replace('_', ' '))}"
        if isinstance(value, dict):
            flat.update(_flat(value, f"{name} "))
        else:
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat


def _lines(found: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for of_model in found for name in of_model)
    return [(name, [of_model.get(name, "—") for of_model in found]) for name in names]
