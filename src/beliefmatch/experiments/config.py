"""YAML that is data and nothing else: no tags that make objects, no key twice, no aliases, not large."""

import hashlib
import json
import math
import re
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from beliefmatch._environment import needs
from beliefmatch._utils import nearest, require_name
from beliefmatch.data.config import DataConfig
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
    "as_yaml",
    "config_from",
    "fingerprint",
    "free_options",
    "merged",
    "overridden",
    "plain",
    "read_yaml",
    "recipe",
    "settings_from",
    "to_mapping",
    "unknown_key",
    "with_method",
    "yaml_value",
]

LARGEST = 64 * 1024
_DEEPEST = 20
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; an error is one line with the number of the line at fault."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"read_yaml: cannot read {path} ({error.strerror or error}).") from error
    if len(content) > LARGEST:
        raise ValueError(f"read_yaml: {path} must not be larger than {LARGEST // 1024} KiB.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"read_yaml: {path} must be text in UTF-8 ({error.reason}).") from error
    value = _parsed(text, f"read_yaml: {path}")
    if not isinstance(value, dict):
        received = "nothing" if value is None else type(value).__name__
        raise ValueError(f"read_yaml: {path} must hold a mapping of names to values, got {received}.")
    return value


def as_yaml(mapping: dict[str, Any]) -> str:
    """A mapping as `read_yaml` takes it, sections in their own order, short lists on one line."""
    with needs("PyYAML", extra="files", caller="as_yaml"):
        import yaml

    return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def yaml_value(text: str, *, caller: str) -> Any:
    """One value as YAML writes it: `3`, `1e-4`, `adam`, `null`, `[0.5, 0.75]`, `{kl_weight: 0.01}`."""
    return _parsed(text, f"{caller}: {text!r:.60}")


def _parsed(text: str, place: str) -> Any:
    with needs("PyYAML", extra="files", caller=place.split(":", 1)[0]):
        import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise ValueError(f"{place}{line}: {' '.join(str(error.problem).split())}.") from None
    except (yaml.YAMLError, ValueError) as error:  # a character or a date that there is not
        raise ValueError(f"{place}: {' '.join(str(error).split())}.") from None


@lru_cache(maxsize=1)
def _loader() -> Any:
    """PyYAML's safe loader, stricter, and with the numbers of YAML 1.2 such as 1e-4."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _at("aliases are not taken; write the value out", self.peek_event())
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _at(f"nested more than {_DEEPEST} deep", self.peek_event())
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            _refuse_second(node)
            return super().construct_mapping(node, deep=deep)

    StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    return StrictLoader


def _refuse_second(mapping: Any) -> None:
    seen = set()
    for key, _ in mapping.value:
        name = str(key.value)
        if name in seen:
            raise _at(f"the key {name!r} stands twice", key)
        seen.add(name)


def _at(problem: str, where: Any) -> Exception:
    from yaml.constructor import ConstructorError

    return ConstructorError(None, None, problem, where.start_mark)


Settings = TypeVar("Settings")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def settings_from(kind: type[Settings], mapping: Any, *, caller: str, path: str = "") -> Settings:
    """Build a dataclass of a mapping of its fields; what is not given keeps its default."""
    given = _mapping(mapping, caller, path)
    hints = get_type_hints(kind)
    for key in given:
        if key not in hints:
            raise unknown_key(key, tuple(hints), caller=caller, path=path)
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{caller}: `{_join(path, one.name)}` must be given.")
    values = {key: _value(hints[key], value, caller, _join(path, key)) for key, value in given.items()}
    return kind(**values)


def unknown_key(key: Any, valid: Sequence[str], *, caller: str, path: str) -> ValueError:
    """The error about a key that is no setting, with the nearest that is one."""
    close = nearest(str(key), valid)
    hint = f"did you mean `{_join(path, close)}`?" if close else f"there are {', '.join(valid)}."
    return ValueError(f"{caller}: `{_join(path, key)}` is not a setting; {hint}")


def plain(value: Any) -> Any:
    """Settings as JSON can hold them: dataclasses as mappings, tuples as lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def free_options(value: Any, *, caller: str, path: str) -> dict[str, Any]:
    """A copy of options whose names are not known here; they must be such as JSON can hold."""
    given = _mapping(value, caller, path)
    return {key: _json(entry, caller, _join(path, key)) for key, entry in given.items()}


def _value(kind: Any, value: Any, caller: str, path: str) -> Any:
    if is_dataclass(kind):
        return settings_from(kind, value, caller=caller, path=path)  # type: ignore[arg-type]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (wanted,) = (one for one in inner if one is not types.NoneType)
        return None if value is None else _value(wanted, value, caller, path)
    if origin is Literal:
        return _choice(inner, value, caller, path)
    if origin is tuple:
        return _tuple(inner[0], value, caller, path)
    if origin is not None:
        return free_options(value, caller=caller, path=path)
    return _scalar(kind, value, caller, path)


def _scalar(kind: type, value: Any, caller: str, path: str) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)  # YAML 1.1 reads 1e-4 as text
    elif kind is float and is_whole:
        value = float(value)
    elif kind is str and is_whole:
        value = str(value)  # `devices: 2` means the word
    elif kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not kind:
        raise _wrong(path, _WORDS[kind], value, caller)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, "a finite number", value, caller)
    return value


def _choice(choices: tuple[Any, ...], value: Any, caller: str, path: str) -> Any:
    for choice in choices:
        if isinstance(value, (str, int)) and str(value) == choice:  # `precision: 16` means the word
            return choice
    raise _wrong(path, f"one of {', '.join(choices)}", value, caller)


def _tuple(kind: Any, value: Any, caller: str, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(path, f"a list, each entry {_WORDS[kind]}", value, caller)
    return tuple(_value(kind, entry, caller, f"{path}.{index}") for index, entry in enumerate(value))


def _json(value: Any, caller: str, path: str) -> Any:
    if isinstance(value, (tuple, list)):
        return [_json(entry, caller, f"{path}.{index}") for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        return free_options(value, caller=caller, path=path)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _wrong(
        path, "a finite number, text, true, false, null, or lists and mappings of them", value, caller
    )


def _mapping(value: Any, caller: str, path: str) -> Mapping[str, Any]:
    name = path or "settings"
    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping of names to values", value, caller)
    for key in value:
        if not isinstance(key, str):
            raise _wrong(name, "a mapping whose keys are text", key, caller)
    return value


def _wrong(path: str, expected: str, value: Any, caller: str) -> Exception:
    kind = ValueError if isinstance(value, (str, float)) else TypeError
    received = " ".join(f"{type(value).__name__} {value!r}".split())[:80]
    return kind(f"{caller}: `{path}` must be {expected}, got {received}.")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else f"{key}"


_SEED = "{seed}"


@dataclass(frozen=True)
class TeacherConfig:
    """Whose belief about each training image is the prior of a student's.

    Args:
        run: directory of the finished run; "{seed}" in it stands for the student's seed.
        strength: votes that the teacher's belief counts as, beside the one of a label. With a student's λ and
            a uniform prior of 1 its prior is then β = 1 + strength/λ times the teacher's probabilities.
        temperature: that the teacher's logits are divided by before.
        weight: of the loss of unlabelled images, beside that of labelled ones.
        fingerprint: of the teacher's config, by which it is known wherever it lies; found out if not given.
    """

    run: str
    strength: float = 1.0
    temperature: float = 1.0
    weight: float = 1.0
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not self.run.strip():
            raise ValueError("teacher: `prior_from` must be the directory of a finished run, got none.")
        for name in ("strength", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"teacher: `prior_{name}` must be finite and above 0, got {getattr(self, name)!r}."
                )
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"teacher: `prior_weight` must be finite and not negative, got {self.weight!r}.")

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
"""Key of a recipe's options for each method, and of settings for each kind of semi-supervised learning, taken
where the configuration's own section is silent."""

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
"""Settings that configurations once did without: `fingerprint` leaves them out where they change nothing."""


@dataclass(frozen=True)
class MethodConfig:
    """A method by its name in `METHODS`, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name("config", "method.name", self.name, METHODS)


@dataclass(frozen=True)
class ModelConfig:
    """A network by its name in `MODELS`, as `timm:name` or as `module:factory`, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_model("config", "model.name", self.name)


@dataclass(frozen=True)
class RunConfig:
    """One training of one method with one seed, and what is asked of it afterwards.

    Args:
        method: what to train towards.
        model: the network.
        data: images, their division and augmentation.
        training: epochs, rates and rules.
        engine: devices and precision.
        seed: of the initial weights, the order of the examples and their augmentation.
        OOD: names of sets that belong to no class, to be told apart in the report.
        ood_training: name of such a set to train on, for methods that do.
        semi: a loss of unlabelled images, which there are where `data.labels` is given.
        teacher: a finished run whose belief is the prior of this one, image by image.
    """

    method: MethodConfig
    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainConfig = field(default_factory=TrainConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    seed: int = 0
    ood: tuple[str, ...] = ()
    ood_training: str | None = None
    semi: SemiConfig | None = None
    teacher: TeacherConfig | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:  # what a torch generator takes
            raise ValueError(f"config: `seed` must lie in [0, 2**63), got {self.seed}.")
        if self.semi is not None and self.data.labels is None:
            remedy = "say how many images keep theirs, such as --labels 4000"
            raise ValueError(f"config: `semi` must come with `data.labels`, got all labels; {remedy}.")
        if self.semi is not None and self.teacher is not None:
            remedy = "let a run with `semi` be the teacher of the next"
            raise ValueError(f"config: `semi` must not come with a teacher, got `prior_from`; {remedy}.")


def config_from(mapping: Mapping[str, Any]) -> RunConfig:
    """Read a configuration strictly: an unknown key or a value of another type is an error that names it.

    >>> config_from(overridden(recipe("digits"), ["training.epochs=3"])).training.epochs
    3
    """
    settings = dict(mapping) if isinstance(mapping, Mapping) else mapping
    defaults = settings.pop(DEFAULTS, {}) if isinstance(settings, dict) else {}
    if isinstance(settings, dict) and isinstance(semi := settings.get("semi"), Mapping):
        settings["semi"] = _with_defaults_of_kind(semi, defaults)
    if isinstance(settings, dict) and isinstance(teacher := settings.get("teacher"), Mapping):
        _require_teacher(teacher)
    config = settings_from(RunConfig, settings, caller="config")
    options = _defaults_of(config.method.name, defaults) | dict(config.method.options)
    return config.__class__(**{**vars(config), "method": MethodConfig(config.method.name, options)})


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

    Where a section gets another `name`, the `options` of the old one go, and where it gets another `kind` all
    that was said of the old one: it was not meant for the new.
    """
    base = {key: _without_stale_options(value, over.get(key)) for key, value in base.items()}
    return _laid(base, over)


def overridden(mapping: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A mapping with single settings over it, each written as on the command line.

    Args:
        mapping: of a configuration.
        settings: such as ``"training.epochs=3"`` or ``"training.decay_at=[0.5, 0.75]"``; the value is YAML,
            the key a dotted path. Of two that say the same the later holds.
    """
    over: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ValueError(f"config: a setting must be written key=value, got {setting!r}.")
        _require_setting(path)
        nested: Any = yaml_value(text.strip(), caller=f"config: {key.strip()}")
        for part in reversed(path):
            nested = {part: nested}
        over = _laid(over, nested)
    return merged(mapping, over)


def with_method(mapping: Mapping[str, Any], name: str, **options: Any) -> dict[str, Any]:
    """The same config for another method, told only these options beside the recipe's defaults for it."""
    return {**deepcopy(dict(mapping)), "method": {"name": name, "options": options}}


def fingerprint(config: RunConfig) -> str:
    """A short name of all that decides the result, the same on every machine and at any time.

    Left out is what says where and how fast (`INDIFFERENT`): the folder of a named dataset, the path of a
    OOD set written ``name=path``, the place of a teacher, workers, devices, machines, threads,
    compilation. Numbers may differ between those in their last digits; a grid that moves to another machine
    shall not start anew for that. Precision, and what becomes of images that cannot be read, stay in.
    """
    settings = _without_later(to_mapping(config))
    for section, names in INDIFFERENT.items():
        given = settings.get(section, {})
        settings |= {section: {key: given[key] for key in given if key not in names}} if given else {}
    settings["ood"] = [name.partition("=")[0] for name in config.ood]
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
        raise ValueError(f"config: `semi` must be given with its other settings, its kind one of {kinds}.")
    return _defaults_of(f"{semi['kind']}", defaults) | dict(semi)


def _require_teacher(teacher: Mapping[str, Any]) -> None:
    if "run" not in teacher:
        remedy = "say the directory of a finished run"
        raise ValueError(f"config: `prior_from` must be given with other settings of a teacher; {remedy}.")


def _defaults_of(name: str, defaults: Any) -> dict[str, Any]:
    valid = (*METHODS, *KINDS)
    for known in free_options(defaults, caller="config", path=DEFAULTS):
        if known not in valid:
            raise unknown_key(known, valid, caller="config", path=DEFAULTS)
    return free_options(defaults.get(name, {}), caller="config", path=f"{DEFAULTS}.{name}")


def _require_setting(path: list[str]) -> None:
    """A dotted path must lead to a setting, or into options, whose names only their owner knows."""
    kind: Any = RunConfig
    for depth, key in enumerate(path):
        above = ".".join(path[:depth])
        if (key == "options" and depth == 1) or path[0] == DEFAULTS:
            return
        if not is_dataclass(kind):
            raise ValueError(
                f"config: `{above}` is one setting and has none below it, got `{'.'.join(path)}`."
            )
        kinds = get_type_hints(kind) | ({} if depth else {DEFAULTS: Mapping})
        if key not in kinds:
            raise unknown_key(key, tuple(kinds), caller="config", path=above)
        kind = next((one for one in get_args(kinds[key]) if is_dataclass(one)), kinds[key])
