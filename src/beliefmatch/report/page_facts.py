"""How the numbers of the page came about: files, settings, versions, hardware, in plain words."""

from collections.abc import Sequence
from typing import Any

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_text import count_text, number_text

__all__ = ["facts", "flattened", "side_by_side"]

_WORDS = {
    "n_bins": "confidence bins",
    "resamples": "resamples requested",
    "resamples_drawn": "resamples drawn",
    "level": "level of the intervals",
    "seed": "seed of the resamples",
    "top_k": "classes that top-k error may name",
    "risks": "risks to control",
    "delta": "probability that a risk threshold fails",
    "shown": "examples shown of each kind",
    "targets_sha256": "SHA-256 of the targets",
}
_ROLES = {"probs": "probabilities are called", "unused": "not used"}


def facts(models: Sequence[EvaluationRecord]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """How the numbers came about: groups of lines, each a name and a text for every model."""
    own = [_own_facts(model) for model in models]
    groups = [("File", own)]
    groups += [
        ("Settings", [_in_words(model.settings) for model in models]),
        ("Versions", [_in_words(model.versions) for model in models]),
        ("Hardware", [_in_words(model.hardware) for model in models]),
    ]
    return [(title, side_by_side(found)) for title, found in groups if any(found)]


def _own_facts(model: EvaluationRecord) -> dict[str, str]:
    ood = {f"ood: {f.name}": f"{f.source}, {count_text(f.examples, 'example')}" for f in model.ood}
    return {
        "file": model.source,
        "content": model.kind,
        "examples": f"{model.examples:,}",
        "classes": f"{len(model.class_names):,}",
        **ood,
        "evaluated": model.created,
        "evaluation took": f"{number_text(model.wall_seconds, 2)} s",
    }


def _in_words(content: dict[str, Any]) -> dict[str, str]:
    """Settings by their names in words; a setting of several parts has a line for each."""
    texts: dict[str, str] = {}
    for key, value in content.items():
        if key == "fields" and isinstance(value, dict):
            texts.update(_called(value))
        elif key == "ood_fields" and isinstance(value, dict):
            for name, fields in value.items():
                texts.update(_called(fields, f"{name}: "))
        else:
            texts[_WORDS.get(key, key.replace("_", " "))] = _text(value)
    return texts


def _called(fields: Any, prefix: str = "") -> dict[str, str]:
    """What the arrays or columns of a file are called."""
    roles = fields.items() if isinstance(fields, dict) else ()
    return {f"{prefix}{_ROLES.get(role, f'{role} are called')}": _text(name) for role, name in roles}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(part)}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def flattened(content: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of texts, by dotted names."""
    flat: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = _text(value)
    return flat


def side_by_side(found: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """The texts of each name, a dash where there is none."""
    names = dict.fromkeys(name for of_model in found for name in of_model)
    return [(name, [of_model.get(name, "—") for of_model in found]) for name in names]
