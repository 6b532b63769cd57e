"""Options of `beliefmatch adapt`, and the plan that they amount to."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from beliefmatch.adaptation.wishes import Wishes
    from beliefmatch.data.settings import DataSettings
    from beliefmatch.experiments.adapt_plan import AdaptPlan, FeaturePlan, ImagePlan

__all__ = [
    "CacheDir",
    "CacheSize",
    "ChooseBy",
    "Compile",
    "Controls",
    "Device",
    "Epochs",
    "FeatureBatch",
    "Features",
    "HeadBatch",
    "HeadName",
    "HeadRate",
    "KlWeights",
    "Labels",
    "Laplace",
    "Limit",
    "Margin",
    "Mean",
    "ModelOptions",
    "Network",
    "Norms",
    "Optimizer",
    "Precision",
    "Priors",
    "Risks",
    "Seeds",
    "Size",
    "SkipCorrupt",
    "SplitSeed",
    "Std",
    "TestFeatures",
    "Validation",
    "ValidationFrom",
    "Weights",
    "Workers",
    "plan_of",
]

_NETWORK, _DATA, _HEADS, _FEATURES = "Network", "Data", "Heads", "Features"

Network = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="timm:NAME, torchvision:NAME, hf:NAME, module:factory, or the directory of a run.",
        rich_help_panel=_NETWORK,
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the network.", rich_help_panel=_NETWORK),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Its weights, as .safetensors or as a .pt, .pth or .th that needs no code; "
        "those that come with the name if not given.",
        rich_help_panel=_NETWORK,
    ),
]
HeadName = Annotated[
    str | None,
    typer.Option(
        metavar="LAYER", help="Name of its last layer; looked for if not given.", rich_help_panel=_NETWORK
    ),
]
Validation = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE|NUMBER|FILE",
        help="Images to choose λ on, set aside; with --features a file too. [default: 0.2]",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
ValidationFrom = Annotated[
    str,
    typer.Option(
        metavar="train|test",
        help="Where these come from. test: half of the test images, for a network that was trained on all "
        "training images; the other half is reported.",
        rich_help_panel=_DATA,
    ),
]
Limit = Annotated[int | None, typer.Option(help="Training images, at most.", rich_help_panel=_DATA)]
SplitSeed = Annotated[int, typer.Option(help="Of the division of images.", rich_help_panel=_DATA)]
Size = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Side that images are brought to; as the network wants it, else as they are.",
        rich_help_panel=_DATA,
    ),
]
Margin = Annotated[
    float | None,
    typer.Option(
        help="Short side before the middle is cut out, over --size: 1.143 for 256 to 224.",
        rich_help_panel=_DATA,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="R,G,B",
        help="Subtracted from pixels between 0 and 1; as the network wants it, else as usual for the data.",
        rich_help_panel=_DATA,
    ),
]
Std = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="By which they are divided.", rich_help_panel=_DATA)
]
SkipCorrupt = Annotated[
    bool,
    typer.Option(
        "--skip-corrupt",
        help="Leave out images that cannot be read, and say how many.",
        rich_help_panel=_DATA,
    ),
]
Workers = Annotated[int, typer.Option(help="Processes that read large images.", rich_help_panel=_DATA)]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Features instead of a network and images: arrays features and targets (or counts), "
        "and the head's weight and bias if there is one; .npz, .safetensors, .parquet, .csv, .npy.",
        rich_help_panel=_FEATURES,
    ),
]
TestFeatures = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Features of the examples to report on.", rich_help_panel=_FEATURES),
]
CacheDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Where features are kept. [default: beliefmatch/features in the user's cache]",
        show_default=False,
        rich_help_panel=_FEATURES,
    ),
]
CacheSize = Annotated[
    str,
    typer.Option(metavar="BYTES", help="That they may take on the disk.", rich_help_panel=_FEATURES),
]
Device = Annotated[
    str, typer.Option(metavar="cpu|cuda|mps", help="That computes them.", rich_help_panel=_FEATURES)
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="auto|32|bf16",
        help="auto takes bf16 where it is faster, if no row changes by 2 %.",
        rich_help_panel=_FEATURES,
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Have torch compile the network first: a minute's wait, then about twice as fast.",
        rich_help_panel=_FEATURES,
    ),
]
FeatureBatch = Annotated[
    int, typer.Option(metavar="NUMBER", help="Images computed at a time.", rich_help_panel=_FEATURES)
]
Labels = Annotated[
    str,
    typer.Option(
        metavar="auto|same|new",
        help="same repairs the existing head, new fits one for other classes; auto looks which it is.",
        rich_help_panel=_HEADS,
    ),
]
KlWeights = Annotated[
    str | None,
    typer.Option(
        "--kl-weight",
        metavar="NUMBER,...",
        help="Values of λ to choose from; a grid for the number of classes if not given.",
        rich_help_panel=_HEADS,
    ),
]
Priors = Annotated[
    str, typer.Option("--prior", metavar="NUMBER,...", help="Values of β to try.", rich_help_panel=_HEADS)
]
Seeds = Annotated[int, typer.Option(help="Trials of every head.", rich_help_panel=_HEADS)]
Controls = Annotated[
    str, typer.Option(metavar="NAME,...", help="Heads to compare with.", rich_help_panel=_HEADS)
]
Laplace = Annotated[
    bool,
    typer.Option("--laplace", help="Compare with a Laplace approximation as well.", rich_help_panel=_HEADS),
]
ChooseBy = Annotated[
    str, typer.Option(metavar="nll|error", help="On the validation images.", rich_help_panel=_HEADS)
]
Epochs = Annotated[int, typer.Option(help="Passes over the features.", rich_help_panel=_HEADS)]
HeadBatch = Annotated[int, typer.Option("--batch-size", help="Features of a step.", rich_help_panel=_HEADS)]
HeadRate = Annotated[
    float | None,
    typer.Option("--learning-rate", help="Of Adam; 3e-4 a batch of 64.", rich_help_panel=_HEADS),
]
Optimizer = Annotated[
    str, typer.Option(metavar="adam|lbfgs", help="lbfgs for convex heads.", rich_help_panel=_HEADS)
]
Norms = Annotated[
    bool,
    typer.Option(
        "--train-norms",
        help="Then train the BatchNorm layers together with the head, as the paper's code does.",
        rich_help_panel=_HEADS,
    ),
]
Risks = Annotated[
    list[float],
    typer.Option(
        "--risk",
        metavar="RATE",
        help="Error rate among answers to find an abstention threshold for; may be given several times.",
        rich_help_panel=_HEADS,
    ),
]


def plan_of(params: Mapping[str, Any]) -> "AdaptPlan":
    """The plan that the parameters of the command amount to."""
    from beliefmatch.experiments.adapt_plan import AdaptPlan

    given = _features(params) if params["features"] is not None else _images(params)
    return AdaptPlan(given, _wishes(params), tuple(params["ood"] or ()))


def _features(params: Mapping[str, Any]) -> "FeaturePlan":
    from beliefmatch.experiments.adapt_plan import FeaturePlan

    for name in ("model", "weights", "data"):
        if params[name] is not None:
            raise ValueError(f"adapt: `{name}` must not come with `--features`, which replace it.")
    text = params["validation"]
    validation = text if text is None or Path(text).exists() else _share(text)
    return FeaturePlan(params["features"], validation, params["test_features"], params["split_seed"])


def _images(params: Mapping[str, Any]) -> "ImagePlan":
    from beliefmatch.experiments.adapt_plan import ImagePlan

    if params["model"] is None:
        remedy = "`--model NAME --data NAME`, or `--features FILE`"
        raise ValueError(f"adapt: `model` must be given: {remedy}.")
    if params["test_features"] is not None:
        raise ValueError("adapt: `test_features` must come with `--features`.")
    same = {name: params[name] for name in ("model", "weights", "head", "validation_from", "cache_dir")}
    same |= {name: params[name] for name in ("cache_size", "device", "precision")}
    return ImagePlan(
        **same,
        options=_options(params["model_option"] or ()),
        compile=params["compile_"],
        data=_data(params),
        batch_size=params["feature_batch"],
    )


def _data(params: Mapping[str, Any]) -> "DataSettings | None":
    from beliefmatch.data.settings import DataSettings

    given = {
        "directory": params["data_dir"],
        "validation": None if params["validation"] is None else _share(params["validation"]),
        "limit": params["limit"],
        "size": params["size"],
        "margin": params["margin"],
        "mean": _numbers("mean", params["mean"]),
        "std": _numbers("std", params["std"]),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if params["data"] is None:
        if given:
            raise ValueError(f"adapt: `data` must be given where {', '.join(sorted(given))} is.")
        return None
    corrupt = "skip" if params["skip_corrupt"] else "stop"
    always = {"split_seed": params["split_seed"], "corrupt": corrupt, "workers": params["workers"]}
    return DataSettings(name=params["data"], augment="none", **always, **given)


def _wishes(params: Mapping[str, Any]) -> "Wishes":
    from beliefmatch.adaptation.wishes import Wishes

    made = {
        "kl_weights": _numbers("kl_weight", params["kl_weight"]),
        "priors": _numbers("prior", params["prior"]),
        "seeds": tuple(range(_at_least_one("seeds", params["seeds"]))),
        "controls": tuple(name.strip() for name in params["controls"].split(",") if name.strip()),
        "norms": params["train_norms"],
        "risks": tuple(params["risk"]),
    }
    named = {field.name for field in fields(Wishes)} - set(made)
    return Wishes(**made, **{name: params[name] for name in named if name in params})


def _options(texts: Any) -> dict[str, Any]:
    from beliefmatch.experiments.yaml_files import yaml_value

    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"adapt: `model_option` must be written name=value, got {text!r}.")
        options[name.strip()] = yaml_value(value.strip(), caller="adapt")
    return options


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"adapt: `{name}` must be numbers with commas between, got {text!r}.") from None


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "a share below 1, a number, or with `--features` a file"
        raise ValueError(f"adapt: `validation` must be {expected}, got {text!r}.") from None


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"adapt: `{name}` must be at least 1, got {value}.")
    return value
