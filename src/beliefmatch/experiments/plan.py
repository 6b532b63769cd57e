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
from typing import Any, get_args, get_type_hints

from beliefmatch.data.settings import DataSettings
from beliefmatch.experiments.strict import free_options, plain, settings_from, unknown_key
from beliefmatch.experiments.teacher_plan import TeacherPlan
from beliefmatch.experiments.yaml_files import read_yaml, yaml_value
from beliefmatch.methods import METHODS
from beliefmatch.models import require_model
from beliefmatch.names import require_name
from beliefmatch.semi.settings import KINDS, SemiSettings
from beliefmatch.train.settings import EngineSettings, Recipe

__all__ = [
    "RECIPES",
    "MethodPlan",
    "ModelPlan",
    "RunPlan",
    "TeacherPlan",
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
"""Key of a recipe's options for each method, and of settings for each kind of semi-supervised learning, taken
where the plan's own section is silent."""

INDIFFERENT = {
    "data": ("directory", "workers"),
    "engine": ("accelerator", "devices", "nodes", "compile", "threads"),
    "teacher": ("run",),
}
"""Settings that say where and how fast, not what: `fingerprint` leaves them out."""

LATER: Mapping[str, Mapping[str, Any]] = {
    "": {"semi": None, "teacher": None},
    "data": {"labels": None, "shift": None, "noise": 0.0, "mean": None, "std": None, "margin": None},
    "training": {"validate_every": 1},
}
"""Settings that plans once did without: `fingerprint` leaves them out where they change nothing."""


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
        semi: a loss of unlabelled images, which there are where `data.labels` is given.
        teacher: a finished run whose belief is the prior of this one, image by image.
    """

    method: MethodPlan
    model: ModelPlan
    data: DataSettings = field(default_factory=DataSettings)
    training: Recipe = field(default_factory=Recipe)
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    foreign: tuple[str, ...] = ()
    foreign_training: str | None = None
    semi: SemiSettings | None = None
    teacher: TeacherPlan | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:  # what a torch generator takes
            raise ValueError(f"plan: `seed` must lie in [0, 2**63), got {self.seed}.")
        if self.semi is not None and self.data.labels is None:
            remedy = "say how many images keep theirs, such as --labels 4000"
            raise ValueError(f"plan: `semi` must come with `data.labels`, got all labels; {remedy}.")
        if self.semi is not None and self.teacher is not None:
            remedy = "let a run with `semi` be the teacher of the next"
            raise ValueError(f"plan: `semi` must not come with a teacher, got `prior_from`; {remedy}.")


def plan_from(mapping: Mapping[str, Any]) -> RunPlan:
    """Read a plan strictly: an unknown key or a value of another type is an error that names it.

    >>> plan_from(overridden(recipe("digits"), ["training.epochs=3"])).training.epochs
    3
    """
    settings = dict(mapping) if isinstance(mapping, Mapping) else mapping
    defaults = settings.pop(DEFAULTS, {}) if isinstance(settings, dict) else {}
    if isinstance(settings, dict) and isinstance(semi := settings.get("semi"), Mapping):
        settings["semi"] = _with_defaults_of_kind(semi, defaults)
    if isinstance(settings, dict) and isinstance(teacher := settings.get("teacher"), Mapping):
        _require_teacher(teacher)
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

    Where a section gets another `name`, the `options` of the old one go, and where it gets another `kind` all
    that was said of the old one: it was not meant for the new.
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
        nested: Any = yaml_value(text.strip(), caller=f"plan: {key.strip()}")
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
    foreign set written ``name=path``, the place of a teacher, workers, devices, machines, threads,
    compilation. Numbers may differ between those in their last digits; a grid that moves to another machine
    shall not start anew for that. Precision, and what becomes of images that cannot be read, stay in.
    """
    settings = _without_later(to_mapping(plan))
    for section, names in INDIFFERENT.items():
        given = settings.get(section, {})
        settings |= {section: {key: given[key] for key in given if key not in names}} if given else {}
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
    if "kind" in over and over["kind"] != section.get("kind"):
        return {}
    is_renamed = "name" in over and over["name"] != section.get("name")
    return {key: value for key, value in section.items() if not (is_renamed and key == "options")}


def _canonical(value: Any) -> Any:
    """Equal numbers written alike: 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_later(settings: dict[str, Any]) -> dict[str, Any]:
    later = LATER[""]
    kept = {key: value for key, value in settings.items() if key not in later or value != later[key]}
    for section in LATER.keys() - {""}:
        usual = LATER[section]
        kept[section] = {k: v for k, v in kept[section].items() if k not in usual or v != usual[k]}
    return kept


def _with_defaults_of_kind(semi: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    if "kind" not in semi:  # else a weight alone would switch it on
        kinds = ", ".join(KINDS)
        raise ValueError(f"plan: `semi` must be given with its other settings, its kind one of {kinds}.")
    return _defaults_of(f"{semi['kind']}", defaults) | dict(semi)


def _require_teacher(teacher: Mapping[str, Any]) -> None:
    if "run" not in teacher:
        remedy = "say the directory of a finished run"
        raise ValueError(f"plan: `prior_from` must be given with other settings of a teacher; {remedy}.")


def _defaults_of(name: str, defaults: Any) -> dict[str, Any]:
    valid = (*METHODS, *KINDS)
    for known in free_options(defaults, caller="plan", path=DEFAULTS):
        if known not in valid:
            raise unknown_key(known, valid, caller="plan", path=DEFAULTS)
    return free_options(defaults.get(name, {}), caller="plan", path=f"{DEFAULTS}.{name}")


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
        kind = next((one for one in get_args(kinds[key]) if is_dataclass(one)), kinds[key])
