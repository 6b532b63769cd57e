"""Configuration of one run: its sections, packaged recipes, single settings over them, its fingerprint."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from beliefmatch._config import (
    Config,
    NonEmpty,
    NonNegative,
    Positive,
    Seed,
    field_kinds,
    from_mapping,
    plain,
    unknown_key,
)
from beliefmatch._errors import ArgumentError, fail
from beliefmatch._utils import require_name
from beliefmatch.data.config import DataConfig, name_of_set
from beliefmatch.experiments.yaml_files import read_yaml, yaml_value
from beliefmatch.methods import METHODS
from beliefmatch.models import require_model
from beliefmatch.semi.config import KINDS, SemiConfig
from beliefmatch.train.config import EngineConfig, TrainConfig

__all__ = [
    "RECIPES",
    "MethodConfig",
    "ModelConfig",
    "RunConfig",
    "TeacherConfig",
    "canonical",
    "config_from",
    "fingerprint",
    "merged",
    "overridden",
    "parse_setting",
    "recipe",
    "settings_hash",
    "to_mapping",
    "with_method",
]

_SEED = "{seed}"


class TeacherConfig(Config, frozen=True):
    """A finished run whose belief about each training image is the prior of the student's belief.

    The command line and errors call these settings `prior_from` (the run), `prior_strength`,
    `prior_temperature` and `prior_weight`.

    Args:
        run: directory of the finished run; "{seed}" in it stands for the student's seed.
        strength: number of votes that the teacher's belief counts as; a label is one vote. With a student's λ
            and a uniform prior of 1 its prior is then β = 1 + strength/λ times the teacher's probabilities.
        temperature: divisor of the teacher's logits.
        weight: weight of the loss of unlabelled images, relative to that of labelled ones.
        fingerprint: that of the teacher's config, which identifies it independent of its path; read
            from the run if not given.
    """

    run: NonEmpty
    strength: Positive = 1.0
    temperature: Positive = 1.0
    weight: NonNegative = 1.0
    fingerprint: str | None = None

    @property
    def has_seeds(self) -> bool:
        """Whether each seed has a teacher of its own."""
        return _SEED in self.run

    def run_of(self, seed: int) -> str:
        """The directory for a student's seed.

        >>> TeacherConfig("runs/teacher-{seed}").run_of(3)
        'runs/teacher-3'
        """
        return self.run.replace(_SEED, str(seed))


_DIRECTORY = Path(__file__).with_name("recipes")
RECIPES = tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))
"""Names of the recipes that come with the package."""

DEFAULTS = "defaults"
"""Key of a recipe's default options of each method and of each kind of semi-supervised learning."""

NOT_IN_FINGERPRINT = {
    "data": ("directory", "workers"),
    "engine": ("accelerator", "devices", "nodes", "compile", "threads"),
    "teacher": ("run",),
}
"""Settings of where and how fast to compute, which `fingerprint` leaves out."""

OMITTED_AT_DEFAULT: Mapping[str, Mapping[str, Any]] = {
    "": {"semi": None, "teacher": None},
    "data": {
        "labels": None,
        "shift": None,
        "noise": 0.0,
        "mean": None,
        "std": None,
        "margin": None,
        "target": None,
        "drop": [],
    },
    "training": {"validate_every": 1, "epoch_steps": None},
}
"""Settings added later, by section, with their defaults, with which `fingerprint` leaves them out."""


class MethodConfig(Config, frozen=True):
    """A method by its name in `METHODS`, and its own options."""

    name: str
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("MethodConfig", "name", self.name, METHODS)


class ModelConfig(Config, frozen=True):
    """A network by its name in `MODELS`, as `timm:name` or as `module:factory`, and its own options."""

    name: str
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_model("ModelConfig", "name", self.name)


class RunConfig(Config, frozen=True, kw_only=True):
    """One training of one method with one seed.

    Args:
        method: objective and predictor.
        model: the network.
        data: images, their split and augmentation.
        training: epochs, learning rates and optimiser.
        engine: devices and precision.
        seed: seed of the initial weights, the order of the examples and their augmentation.
        ood: names of sets that belong to no class, to be detected as such.
        ood_training: name of such a set to train on, for methods that do.
        semi: a loss of unlabelled images; needs `data.labels`.
        teacher: a finished run whose belief is the prior of this one, image by image.
    """

    method: MethodConfig
    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainConfig = field(default_factory=TrainConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    seed: Seed = 0
    ood: tuple[str, ...] = ()
    ood_training: str | None = None
    semi: SemiConfig | None = None
    teacher: TeacherConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.semi is not None and self.data.labels is None:
            remedy = "give the number of labelled images, such as --labels 4000"
            raise fail("config", f"`semi` must come with `data.labels`, got all labels; {remedy}.")
        if self.semi is not None and self.teacher is not None:
            remedy = "let a run with `semi` be the teacher of the next"
            raise fail("config", f"`semi` must not come with a teacher, got `prior_from`; {remedy}.")


class _Defaults(Config, frozen=True):
    defaults: dict[str, dict[str, Any]]


def config_from(mapping: Mapping[str, Any]) -> RunConfig:
    """Read a configuration strictly: an unknown key or a value of another type is an error that names it.

    >>> config_from(overridden(recipe("digits"), ["training.epochs=3"])).training.epochs
    3
    """
    if not isinstance(mapping, Mapping):
        return from_mapping(RunConfig, mapping, caller="config")
    settings = dict(mapping)
    defaults = from_mapping(_Defaults, {"defaults": settings.pop(DEFAULTS, {})}, caller="config").defaults
    for name in defaults:
        if name not in (*METHODS, *KINDS):
            raise unknown_key(name, (*METHODS, *KINDS), caller="config", path=DEFAULTS)
    if isinstance(semi := settings.get("semi"), Mapping):
        if "kind" not in semi:  # else a weight alone would switch it on
            kinds = ", ".join(KINDS)
            raise fail("config", f"`semi.kind` must be given with settings of `semi`; it is one of {kinds}.")
        settings["semi"] = {**defaults.get(f"{semi['kind']}", {}), **semi}
    config = from_mapping(RunConfig, settings, caller="config")
    method = config.method
    options = {**defaults.get(method.name, {}), **method.options}
    return replace(config, method=replace(method, options=options))


def to_mapping(config: RunConfig) -> dict[str, Any]:
    """All settings, as JSON can hold them; `config_from` makes an equal configuration of them."""
    return plain(config)


def recipe(name_or_path: str | Path) -> dict[str, Any]:
    """The mapping of a packaged recipe by name, or of a YAML file by path."""
    name = str(name_or_path)
    if name not in RECIPES and (Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()):
        return read_yaml(name)
    require_name("recipe", "name_or_path", name, RECIPES, other=" or a .yaml file")
    return read_yaml(_DIRECTORY / f"{name}.yaml")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings key by key, everything else replaced; neither is changed.

    Where a section gets another `name`, the `options` of the old one go; where it gets another `kind`, all
    settings of the old one go.
    """
    base = {key: _without_stale_options(value, over.get(key)) for key, value in base.items()}
    return _deep_merge(base, over)


def overridden(mapping: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A mapping with single settings over it, each written as on the command line.

    Args:
        mapping: of a configuration.
        settings: such as ``"training.epochs=3"`` or ``"training.decay_at=[0.5, 0.75]"``; the value is YAML,
            the key a dotted path. Of two with the same key the later holds.
    """
    over: dict[str, Any] = {}
    for setting in settings:
        path, nested = parse_setting(setting)
        _require_setting(path)
        for part in reversed(path):
            nested = {part: nested}
        over = _deep_merge(over, nested)
    return merged(mapping, over)


def parse_setting(setting: str, form: str = "key=value") -> tuple[list[str], Any]:
    """Keys and value of a setting; `form` is what an error shows.

    >>> parse_setting("training.decay_at=[0.5, 0.75]")
    (['training', 'decay_at'], [0.5, 0.75])
    """
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise fail("config", f"`set` must be written {form}, got {setting!r}.")
    try:
        return path, yaml_value(text.strip(), caller="config")
    except ArgumentError as error:
        raise fail("config", f"`set` must be YAML, got {key.strip()}: {error.message}") from None


def with_method(mapping: Mapping[str, Any], name: str, **options: Any) -> dict[str, Any]:
    """The same configuration for another method, with these options over the recipe's defaults."""
    return {**deepcopy(dict(mapping)), "method": {"name": name, "options": options}}


def fingerprint(config: RunConfig) -> str:
    """A short hash of all settings that decide the result, the same on every machine.

    Settings of where and how fast to compute are left out (`NOT_IN_FINGERPRINT`): the folder of a named
    dataset, the path of an OOD set written ``name=path``, the directory of a teacher, workers, devices,
    machines, threads, compilation. Numbers may differ between those in their last digits, but a grid that
    moves to another machine must not start anew. Precision, and the treatment of images that cannot be read,
    stay in.
    """
    settings = to_mapping(config)
    for section, defaults in OMITTED_AT_DEFAULT.items():
        section_settings = settings[section] if section else settings
        for key, default in defaults.items():
            if section_settings[key] == default:
                del section_settings[key]
    for section, names in NOT_IN_FINGERPRINT.items():
        for name in names if section in settings else ():
            del settings[section][name]
    settings["ood"] = [name_of_set(name) for name in config.ood]
    return settings_hash(canonical(settings))


def settings_hash(settings: Mapping[str, Any]) -> str:
    """The first twelve digits of the SHA-256 of settings as JSON, in any order of the keys."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _deep_merge(below, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result


def _without_stale_options(section: Any, over: Any) -> Any:
    if not (isinstance(section, Mapping) and isinstance(over, Mapping)):
        return section
    if "kind" in over and over["kind"] != section.get("kind"):
        return {}
    is_renamed = "name" in over and over["name"] != section.get("name")
    return {key: value for key, value in section.items() if not (is_renamed and key == "options")}


def canonical(value: Any) -> Any:
    """Equal numbers written alike: 1.0 as 1."""
    if isinstance(value, dict):
        return {key: canonical(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require_setting(path: list[str]) -> None:
    """A dotted path must lead to a setting, or into options, whose names only their owner knows."""
    kind: Any = RunConfig
    for depth, key in enumerate(path):
        above = ".".join(path[:depth])
        if (key == "options" and depth == 1) or path[0] == DEFAULTS:
            return
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            raise fail("config", f"`{above}` is one setting and has none below it, got `{'.'.join(path)}`.")
        kinds = field_kinds(kind) | ({} if depth else {DEFAULTS: Mapping})
        if key not in kinds:
            raise unknown_key(key, tuple(kinds), caller="config", path=above)
        kind = next((one for one in get_args(kinds[key]) if isinstance(one, type)), kinds[key])
