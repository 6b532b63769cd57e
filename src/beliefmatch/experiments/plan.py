"""The plan of one run, all of it: what `--dry-run` shows, what a record keeps, what a run starts from again.

A plan is made of a plain mapping, which comes from a recipe (`recipe`), from a file of the user's over it
(`merged`) and from single settings over both (`overridden`). Nothing here needs torch.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from beliefmatch.data.settings import DataSettings
from beliefmatch.experiments.strict import free_options, plain, settings_from, unknown_key
from beliefmatch.experiments.yaml_files import read_yaml, yaml_value
from beliefmatch.methods import METHODS
from beliefmatch.models import require_model
from beliefmatch.names import require_name
from beliefmatch.train.settings import EngineSettings, Recipe

__all__ = [
    "RECIPES",
    "MethodPlan",
    "ModelPlan",
    "RunPlan",
    "fingerprint",
    "merged",
    "overridden",
    "plan_from",
    "read_yaml",
    "recipe",
    "to_mapping",
    "with_method",
]

_DIRECTORY = Path(__file__).with_name("recipes")
RECIPES = tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))
"""Names of the recipes that come with the package."""

DEFAULTS = "defaults"
"""Key of a recipe's options for each method, taken where the plan's own method section is silent."""

INDIFFERENT = {
    "data": ("directory", "workers"),
    "engine": ("accelerator", "devices", "nodes", "compile", "threads"),
}
"""Settings that say where and how fast, not what: `fingerprint` leaves them out."""


LATER = {"data": ("mean", "std", "margin")}
"""Settings that earlier releases did not have: `fingerprint` leaves them out where they are not given."""


@dataclass(frozen=True)
class MethodPlan:
    """A method by its name in `METHODS`, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name("plan", "method.name", self.name, METHODS)


@dataclass(frozen=True)
class ModelPlan:
    """A network by its name in `MODELS`, as `timm:name` or as `module:factory`, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_model("plan", "model.name", self.name)


@dataclass(frozen=True)
class RunPlan:
    """One training of one method with one seed, and what is asked of it afterwards.

    Args:
        method: what to train towards.
        model: the network.
        data: images, their division and augmentation.
        training: epochs, rates and rules.
        engine: devices and precision.
        seed: of the initial weights, the order of the examples and their augmentation.
        foreign: names of sets that belong to no class, to be told apart in the report.
        foreign_training: name of such a set to train on, for methods that do.
    """

    method: MethodPlan
    model: ModelPlan
    data: DataSettings = field(default_factory=DataSettings)
    training: Recipe = field(default_factory=Recipe)
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    foreign: tuple[str, ...] = ()
    foreign_training: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:  # what a torch generator takes
            raise ValueError(f"plan: `seed` must lie in [0, 2**63), got {self.seed}.")


def plan_from(mapping: Mapping[str, Any]) -> RunPlan:
    """Read a plan strictly: an unknown key or a value of another type is an error that names it.

    >>> plan_from(overridden(recipe("digits"), ["training.epochs=3"])).training.epochs
    3
    """
    settings = dict(mapping) if isinstance(mapping, Mapping) else mapping
    defaults = settings.pop(DEFAULTS, {}) if isinstance(settings, dict) else {}
    plan = settings_from(RunPlan, settings, caller="plan")
    options = _defaults_of(plan.method.name, defaults) | dict(plan.method.options)
    return plan.__class__(**{**vars(plan), "method": MethodPlan(plan.method.name, options)})


def to_mapping(plan: RunPlan) -> dict[str, Any]:
    """All settings, as JSON can hold them; `plan_from` makes an equal plan of them."""
    return plain(plan)


def recipe(name_or_path: str | Path) -> dict[str, Any]:
    """The mapping of a packaged recipe by name, or of a YAML file by path."""
    name = str(name_or_path)
    if name not in RECIPES and (Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()):
        return read_yaml(name)
    require_name("recipe", "name_or_path", name, RECIPES, other=" or a .yaml file")
    return read_yaml(_DIRECTORY / f"{name}.yaml")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings key by key, everything else replaced; neither is changed.

    Where a section gets another `name`, the `options` of the old one go: they were not meant for it.
    """
    base = {key: _without_stale_options(value, over.get(key)) for key, value in base.items()}
    return _laid(base, over)


def overridden(mapping: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A mapping with single settings over it, each written as on the command line.

    Args:
        mapping: of a plan.
        settings: such as ``"training.epochs=3"`` or ``"training.decay_at=[0.5, 0.75]"``; the value is YAML,
            the key a dotted path. Of two that say the same the later holds.
    """
    over: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ValueError(f"plan: a setting must be written key=value, got {setting!r}.")
        _require_setting(path)
        nested: Any = yaml_value(text.strip(), caller="plan")
        for part in reversed(path):
            nested = {part: nested}
        over = _laid(over, nested)
    return merged(mapping, over)


def with_method(mapping: Mapping[str, Any], name: str, **options: Any) -> dict[str, Any]:
    """The same plan for another method, told only these options beside the recipe's defaults for it."""
    return {**deepcopy(dict(mapping)), "method": {"name": name, "options": options}}


def fingerprint(plan: RunPlan) -> str:
    """A short name of all that decides the result, the same on every machine and at any time.

    Left out is what says where and how fast (`INDIFFERENT`): the folder of a named dataset, the path of a
    foreign set written ``name=path``, workers, devices, machines, threads, compilation. Numbers may differ
    between those in their last digits; a grid that moves to another machine shall not start anew for that.
    Precision, and what becomes of images that cannot be read, stay in.
    """
    settings = to_mapping(plan)
    for section, names in INDIFFERENT.items():
        settings[section] = {key: value for key, value in settings[section].items() if key not in names}
    for section, names in LATER.items():
        unsaid = [name for name in names if settings[section][name] is None]
        settings[section] = {key: value for key, value in settings[section].items() if key not in unsaid}
    settings["foreign"] = [name.partition("=")[0] for name in plan.foreign]
    text = json.dumps(_canonical(settings), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _laid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _laid(below, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result


def _without_stale_options(section: Any, over: Any) -> Any:
    if not (isinstance(section, Mapping) and isinstance(over, Mapping)):
        return section
    is_renamed = "name" in over and over["name"] != section.get("name")
    return {key: value for key, value in section.items() if not (is_renamed and key == "options")}


def _canonical(value: Any) -> Any:
    """Equal numbers written alike: 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _defaults_of(method: str, defaults: Any) -> dict[str, Any]:
    for name in free_options(defaults, caller="plan", path=DEFAULTS):
        if name not in METHODS:
            raise unknown_key(name, tuple(METHODS), caller="plan", path=DEFAULTS)
    return free_options(defaults.get(method, {}), caller="plan", path=f"{DEFAULTS}.{method}")


def _require_setting(path: list[str]) -> None:
    """A dotted path must lead to a setting, or into options, whose names only their owner knows."""
    kind: Any = RunPlan
    for depth, key in enumerate(path):
        above = ".".join(path[:depth])
        if (key == "options" and depth == 1) or path[0] == DEFAULTS:
            return
        if not is_dataclass(kind):
            raise ValueError(f"plan: `{above}` is one setting and has none below it, got `{'.'.join(path)}`.")
        kinds = get_type_hints(kind) | ({} if depth else {DEFAULTS: Mapping})
        if key not in kinds:
            raise unknown_key(key, tuple(kinds), caller="plan", path=above)
        kind = kinds[key]
