"""Methods as a user writes them: "softmax", or with options "belief_matching:kl_weight=0.01"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from beliefmatch._errors import fail
from beliefmatch._utils import first_repeated, require_name
from beliefmatch.experiments.config import RunConfig, TeacherConfig, merged, with_method
from beliefmatch.experiments.yaml_files import yaml_value
from beliefmatch.methods import METHODS, SEARCH
from beliefmatch.semi.config import WITHOUT, SemiConfig

__all__ = [
    "MethodSpec",
    "label",
    "label_of",
    "parse_methods",
    "require_no_semi_settings",
    "with_kl_weight",
    "with_spec",
]

_OF_SEMI = {"semi" if name == "kind" else f"semi_{name}": name for name in SemiConfig.__struct_fields__}
_OF_TEACHER = {
    "prior_from" if name == "run" else f"prior_{name}": name
    for name in TeacherConfig.__struct_fields__
    if name != "fingerprint"
}
_OF_CONFIG = (*_OF_SEMI, *_OF_TEACHER)
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
    specs = [_parse(part.strip(), caller, argument) for part in text.split(",")]
    if (twice := first_repeated(spec.key for spec in specs)) is not None:
        raise fail(caller, f"`{argument}` must not repeat a method, got {twice!r} more than once.")
    return specs


def with_kl_weight(specs: Sequence[MethodSpec], kl_weight: Any) -> list[MethodSpec]:
    """The same methods, with this λ for those that have one and do not set it."""
    weighted = [spec for spec in specs if SEARCH.get(spec.name, ("",))[0] == "kl_weight"]
    if not weighted:
        keys = ",".join(spec.key for spec in specs)
        raise fail("compare", f"`kl_weight` must come with belief_matching in `--methods`, got {keys}.")
    return [
        replace(spec, options={"kl_weight": kl_weight, **spec.options}) if spec in weighted else spec
        for spec in specs
    ]


def with_spec(mapping: Mapping[str, Any], spec: MethodSpec) -> dict[str, Any]:
    """The same configuration for a method as it was written.

    Some of its options are not the method's but name what else is learnt from, as the flags of these names
    do: `semi`, which may be "none", `prior_from`, and every other setting of the config's `semi` and
    `teacher`: `semi_weight`, `semi_order`, `prior_strength` and so on.
    """
    own = {name: value for name, value in spec.options.items() if name not in _OF_CONFIG}
    sections: dict[str, Any] = {}
    for section, names in (("semi", _OF_SEMI), ("teacher", _OF_TEACHER)):
        given = {names[name]: value for name, value in spec.options.items() if name in names}
        if given:
            sections[section] = given
    if spec.options.get("semi") == WITHOUT:
        require_no_semi_settings(sections["semi"])
        sections["semi"] = None
    return merged(with_method(mapping, spec.name, **own), sections)


def require_no_semi_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a loss that is switched off."""
    others = [name for name in settings if name != "kind"]
    if others:
        raise fail("config", f"`semi_{others[0]}` must come with `semi` vat or pi, got none.")


def _parse(text: str, caller: str, argument: str) -> MethodSpec:
    name, *parts = text.split(":")
    require_name(caller, argument, name, METHODS)
    options = {}
    for part in parts:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals or not value:
            raise fail(caller, f"`{argument}` must give options as NAME:OPTION=VALUE, got {text!r}.")
        if key.startswith(("semi_", "prior_")):  # the other options are checked by their method
            require_name(caller, f"{argument}: {key}", key, _OF_CONFIG)
        options[key] = yaml_value(value, caller=caller)
    return MethodSpec(text, name, options)


def label(name: str, options: Mapping[str, Any]) -> str:
    """A method in words, with its options.

    >>> label("belief_matching", {"kl_weight": 0.01})
    'belief matching (λ = 0.01)'
    """
    shown_options = ", ".join(
        f"{_SYMBOLS.get(key, key.replace('_', ' '))} = "
        + (f"{value:g}" if isinstance(value, float) else f"{value}")
        for key, value in options.items()
    )
    words = name.replace("_", " ")
    return f"{words} ({shown_options})" if shown_options else words


def label_of(config: RunConfig) -> str:
    """A configuration's method in words, and what it learns from in addition to labels."""
    options = dict(config.method.options)
    if (semi := config.semi) is not None:
        options |= {"semi": semi.kind, "semi_weight": semi.full_weight}
        default = SemiConfig(kind=semi.kind)
        for name in ("divergence", "order", "direction", "target"):
            if getattr(semi, name) != getattr(default, name):
                options[name] = getattr(semi, name)
    if config.teacher is not None:
        run, strength = PurePath(config.teacher.run).name, config.teacher.strength
        options |= {"prior_from": run, "prior_strength": strength}
    return label(config.method.name, options)
