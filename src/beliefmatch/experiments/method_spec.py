"""Methods as a user writes them: "softmax", or with options "belief_matching:kl_weight=0.01"."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from beliefmatch.experiments.config import RunConfig, TeacherConfig, merged, with_method
from beliefmatch.experiments.yaml_files import yaml_value
from beliefmatch.methods import METHODS, SEARCH
from beliefmatch.semi.config import WITHOUT, SemiConfig

__all__ = [
    "MethodSpec",
    "label",
    "label_of",
    "parse_methods",
    "require_nothing_of_semi",
    "with_kl_weight",
    "with_spec",
]

_OF_SEMI = {"semi" if name == "kind" else f"semi_{name}": name for name in SemiConfig.__struct_fields__}
_OF_TEACHER = {
    "prior_from" if name == "run" else f"prior_{name}": name
    for name in TeacherConfig.__struct_fields__
    if name != "fingerprint"
}
_OF_THE_CONFIG = (*_OF_SEMI, *_OF_TEACHER)
_SYMBOLS = {
    "kl_weight": "λ",
    "matched_kl_weight": "matched λ",
    "smoothing": "ε",
    "rate": "p",
    "semi_weight": "weight",
    "prior": "β",
}


@dataclass(frozen=True)
class MethodSpec:
    """A method and the options that differ from its defaults."""

    key: str
    """As it was written."""
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_methods(text: str, *, caller: str = "compare", argument: str = "methods") -> list[MethodSpec]:
    """Methods with commas between, each with its options after colons.

    >>> parse_methods("softmax, belief_matching:kl_weight=0.01")[1]
    MethodSpec(key='belief_matching:kl_weight=0.01', name='belief_matching', options={'kl_weight': 0.01})
    """
    place = f"{caller}: `{argument}`"
    specs = [_parse(part.strip(), place) for part in text.split(",")]
    keys = [spec.key for spec in specs]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ValueError(f"{place} must name none twice, got {twice[0]!r} more than once.")
    return specs


def with_kl_weight(specs: Sequence[MethodSpec], kl_weight: Any) -> list[MethodSpec]:
    """The same methods, with this λ for those that have one and do not set it."""
    weighted = [spec for spec in specs if SEARCH.get(spec.name, ("",))[0] == "kl_weight"]
    if not weighted:
        keys = ",".join(spec.key for spec in specs)
        raise ValueError(f"compare: `kl_weight` must come with belief_matching in `--methods`, got {keys}.")
    return [
        replace(spec, options={"kl_weight": kl_weight, **spec.options}) if spec in weighted else spec
        for spec in specs
    ]


def with_spec(mapping: Mapping[str, Any], spec: MethodSpec) -> dict[str, Any]:
    """The same configuration for a method as it was written.

    Some of its options are not the method's but say what else is learnt from, as the flags of these names do:
    `semi`, which may be "none", `prior_from`, and every other setting of the config's `semi` and `teacher`:
    `semi_weight`, `semi_order`, `prior_strength` and so on.
    """
    own = {name: value for name, value in spec.options.items() if name not in _OF_THE_CONFIG}
    return merged(with_method(mapping, spec.name, **own), _beside_method(spec.options))


def _beside_method(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        section: {names[name]: value for name, value in options.items() if name in names}
        for section, names in (("semi", _OF_SEMI), ("teacher", _OF_TEACHER))
    }
    given = {section: settings for section, settings in found.items() if settings}
    if options.get("semi") != WITHOUT:
        return given
    require_nothing_of_semi(found["semi"])
    return {**given, "semi": None}


def require_nothing_of_semi(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a loss that is switched off."""
    others = [name for name in settings if name != "kind"]
    if others:
        raise ValueError(f"config: `semi_{others[0]}` must come with `semi` vat or pi, got none.")


def _parse(text: str, place: str) -> MethodSpec:
    name, *options = text.split(":")
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{place} must be among {', '.join(METHODS)}, got {name!r}.{meant}")
    return MethodSpec(text, name, dict(_option(text, option, place) for option in options))


def _option(text: str, option: str, place: str) -> tuple[str, Any]:
    key, equals, value = option.partition("=")
    if not key.strip() or not equals or not value.strip():
        raise ValueError(f"{place} must give options as NAME:OPTION=VALUE, got {text!r}.")
    _require_known(key.strip(), place)
    return key.strip(), yaml_value(value, caller=place.partition(":")[0])


def _require_known(key: str, place: str) -> None:
    """Options that only a configuration can have; the others are for their method to know."""
    if key.startswith(("semi_", "prior_")) and key not in _OF_THE_CONFIG:
        near = difflib.get_close_matches(key, _OF_THE_CONFIG, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{place} must have options among {', '.join(_OF_THE_CONFIG)}, got {key!r}.{meant}")


def label(name: str, options: Mapping[str, Any], shown: Sequence[str] | None = None) -> str:
    """In words, such as "belief matching (λ = 0.01)"; with all options or only those that are `shown`.

    >>> label("belief_matching", {"kl_weight": 0.01})
    'belief matching (λ = 0.01)'
    """
    kept = {key: value for key, value in options.items() if shown is None or key in shown}
    shown_options = ", ".join(
        f"{_SYMBOLS.get(key, key.replace('_', ' '))} = {_text(value)}" for key, value in kept.items()
    )
    words = name.replace("_", " ")
    return f"{words} ({shown_options})" if shown_options else words


def label_of(config: RunConfig) -> str:
    """A configuration's method in words, and what it learns from beside labels."""
    return label(
        config.method.name,
        {**config.method.options, **_semi_options(config.semi), **_teacher_options(config)},
    )


def _semi_options(semi: SemiConfig | None) -> dict[str, Any]:
    """Kind and weight, and the kind's way of comparing predictions where it is not the usual one."""
    if semi is None:
        return {}
    usual = SemiConfig(kind=semi.kind)
    unusual = {name: getattr(semi, name) for name in ("divergence", "order", "direction", "target")}
    unusual = {name: value for name, value in unusual.items() if value != getattr(usual, name)}
    return {"semi": semi.kind, "semi_weight": semi.full_weight, **unusual}


def _teacher_options(config: RunConfig) -> dict[str, Any]:
    if config.teacher is None:
        return {}
    return {"prior_from": PurePath(config.teacher.run).name, "prior_strength": config.teacher.strength}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
