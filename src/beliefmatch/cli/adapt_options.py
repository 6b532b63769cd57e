"""Options of `beliefmatch adapt`."""

from typing import Annotated

import typer

__all__ = [
    "BatchNorm",
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
BatchNorm = Annotated[
    bool,
    typer.Option(
        "--train-batchnorm",
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
