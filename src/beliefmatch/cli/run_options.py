"""Options that `train` and `compare` share, and the settings that they amount to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from beliefmatch.semi.config import KINDS, WITHOUT

__all__ = [
    "Accelerator",
    "BatchSize",
    "DataDir",
    "DataName",
    "Devices",
    "DryRun",
    "Epochs",
    "Flags",
    "Labels",
    "Limit",
    "ModelName",
    "Nodes",
    "OODTraining",
    "Ood",
    "Precision",
    "PriorFrom",
    "PriorStrength",
    "Rate",
    "RecipeName",
    "Semi",
    "SemiWeight",
    "Settings",
    "default_recipe",
    "settings_of",
]

_DATA, _TRAINING, _MACHINE = "Data and network", "Training", "Machine"
_UNLABELLED = "Unlabelled images"

DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help="digits, cifar10, cifar100, svhn, mnist, fashion_mnist, food101, stanford_cars, imagenet-1k, "
        "or a path to a folder of images, Parquet files or .npz files.",
        rich_help_panel=_DATA,
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY", help="Where named datasets lie; else from the hub.", rich_help_panel=_DATA
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Of the training images take as many at most.", rich_help_panel=_DATA),
]
Labels = Annotated[
    int | None,
    typer.Option(
        help="Of the training images as many keep their labels, divided evenly among the classes.",
        rich_help_panel=_UNLABELLED,
    ),
]
Semi = Annotated[
    str | None,
    typer.Option(
        metavar="vat|pi|none",
        help="Learn from the others that predictions hold under perturbation: in the worst direction (vat) "
        "or a random one (pi). Its settings are --set semi.epsilon=NUMBER and so on.",
        rich_help_panel=_UNLABELLED,
    ),
]
SemiWeight = Annotated[
    float | None,
    typer.Option(help="Of that loss; the recipe's or the paper's if not given.", rich_help_panel=_UNLABELLED),
]
PriorFrom = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Take the belief of this finished run as the prior for each image, unlabelled ones too. To "
        "softmax and label_smoothing it gives soft labels.",
        rich_help_panel=_UNLABELLED,
    ),
]
PriorStrength = Annotated[
    float | None,
    typer.Option(help="Votes that this belief counts as; a label is one.", rich_help_panel=_UNLABELLED),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="digits, preact_resnet18, -34, -50, wide_resnet, wrn28_2, wrn28_10, timm:NAME, module:factory.",
        rich_help_panel=_DATA,
    ),
]
Ood = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET",
        help="A set that belongs to no class, to be told apart: noise, a dataset's name, or NAME=PATH.",
        rich_help_panel=_DATA,
    ),
]
OODTraining = Annotated[
    str | None,
    typer.Option(metavar="SET", help="Such a set to train on, for methods that do.", rich_help_panel=_DATA),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Settings to start from: digits, cifar, cifar-release, cifar-cpu, imagenet, images, "
        "semi-vat, semi-pi, semi-digits, semi-cifar-cpu, or a .yaml file; that of the data if not given.",
        rich_help_panel=_TRAINING,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any one setting, such as training.weight_decay=5e-4; `--dry-run` lists them all.",
        rich_help_panel=_TRAINING,
    ),
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the images.", rich_help_panel=_TRAINING)]
BatchSize = Annotated[int | None, typer.Option(help="Images in a step.", rich_help_panel=_TRAINING)]
Rate = Annotated[float | None, typer.Option("--learning-rate", rich_help_panel=_TRAINING)]
Precision = Annotated[
    str | None,
    typer.Option(metavar="auto|32|bf16|16", help="Of the network's numbers.", rich_help_panel=_MACHINE),
]
Accelerator = Annotated[
    str | None, typer.Option(metavar="auto|cpu|cuda|mps", help="What to train on.", rich_help_panel=_MACHINE)
]
Devices = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Processes on each machine.", rich_help_panel=_MACHINE),
]
Nodes = Annotated[int | None, typer.Option(help="Machines.", rich_help_panel=_MACHINE)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the whole configuration with its cost, and do nothing.")
]

RECIPE_OF = {
    "digits": "digits",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "imagenet-1k": "imagenet",
}
"""Which recipe a dataset starts from; `images` for all others."""


@dataclass(frozen=True)
class Flags:
    """What was given on the command line; None where nothing was."""

    data: str | None = None
    data_dir: str | None = None
    limit: int | None = None
    labels: int | None = None
    semi: str | None = None
    semi_weight: float | None = None
    prior_from: str | None = None
    prior_strength: float | None = None
    model: str | None = None
    ood: Sequence[str] | None = None
    ood_training: str | None = None
    recipe: str | None = None
    set: Sequence[str] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    precision: str | None = None
    accelerator: str | None = None
    devices: str | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Flags":
        """Those among the parameters of a command; `set_` is the one whose own name is taken."""
        given = {
            name.removesuffix("_"): None if value in ([], ()) else value for name, value in params.items()
        }
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    def over(self) -> dict[str, Any]:
        """As settings of a configuration."""
        training = ("epochs", "batch_size", "learning_rate")
        machine = ("precision", "accelerator", "devices", "nodes")
        sections: dict[str, dict[str, Any]] = {
            "data": {"name": self.data, "directory": self.data_dir, **self._named("limit", "labels")},
            "semi": {"kind": self.semi if self.semi != WITHOUT else None, "weight": self.semi_weight},
            "teacher": {"run": self.prior_from, "strength": self.prior_strength},
            "model": {"name": self.model},
            "training": self._named(*training),
            "engine": self._named(*machine),
        }
        given = {name: _given(section) for name, section in sections.items()}
        ood = None if self.ood is None else list(self.ood)
        alone = _given({"ood": ood, "ood_training": self.ood_training})
        said = {name: section for name, section in given.items() if section} | alone
        self._check()
        return said | self._without(given["semi"]) if self.semi == WITHOUT else said

    def _check(self) -> None:
        if self.semi not in (None, WITHOUT, *KINDS):
            raise ValueError(
                f"config: `semi` must be one of {', '.join((*KINDS, WITHOUT))}, got {self.semi!r}."
            )

    def _without(self, semi: Mapping[str, Any]) -> dict[str, Any]:
        from beliefmatch.experiments.method_spec import require_nothing_of_semi

        require_nothing_of_semi(semi)
        return {"semi": None}

    def _named(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


def settings_of(flags: Flags) -> dict[str, Any]:
    """Recipe, then flags, then single settings over them, as `config_from` takes them."""
    from beliefmatch.experiments.config import merged, overridden, recipe

    base = recipe(flags.recipe or default_recipe(flags.data))
    return overridden(merged(base, flags.over()), flags.set or [])


def default_recipe(data: str | None) -> str:
    """The recipe that a dataset starts from."""
    return RECIPE_OF.get(data or "digits", "images")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
