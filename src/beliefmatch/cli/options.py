"""Every option of every command, declared once: its flag, its help, and the setting that it changes.

A command lists the options that it takes in its signature; `with_options` adds those of a class, which
commands can share. `Sets` names the setting of a configuration that an option changes, so that `settings_of`
collects the settings that were given, and `option_of_setting` finds the option that an error about a setting
is about.
"""

import inspect
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Annotated, Any, NamedTuple

import typer
from typer.models import ArgumentInfo

from beliefmatch._errors import ArgumentError, fail
from beliefmatch._utils import reason_of
from beliefmatch.data.datasets import DATASETS
from beliefmatch.experiments.config import RECIPES
from beliefmatch.methods import METHODS
from beliefmatch.models import MODELS
from beliefmatch.reproduce import REPRODUCTIONS

__all__ = [
    "RunOptions",
    "Sets",
    "given_options",
    "option_of_error",
    "option_of_setting",
    "settings_of",
    "with_options",
]


class Sets(NamedTuple):
    """The dotted setting that an option changes, and how its value is read, if not taken as it is.

    `read` raises a ValueError with the words that describe what it expects.
    """

    path: str
    read: Callable[[Any], Any] = lambda value: value


def settings_of(context: typer.Context) -> dict[str, Any]:
    """The settings that were given on the command line, nested: {"data": {"name": "digits"}}.

    An option that has its default value changes nothing, so the configuration's own default holds.
    """
    settings: dict[str, Any] = {}
    for name, default, target in _declared(context):
        value = context.params[name]
        if target is None or value in (default, [], ()):
            continue
        try:
            value = target.read(value)
        except ValueError as error:
            raise fail(context.command_path, f"`{name}` must be {error}, got {value!r}.") from None
        *sections, key = target.path.split(".")
        below = settings
        for section in sections:
            below = below.setdefault(section, {})
        below[key] = value
    return settings


def given_options(context: typer.Context, *sections: str) -> Iterator[tuple[str, str]]:
    """Name and setting of each option on the command line, even with its default value, by section."""
    for name, _, target in _declared(context):
        source = context.get_parameter_source(name)
        if (
            target is not None
            and target.path.startswith(sections)
            and source
            and source.name == "COMMANDLINE"
        ):
            yield name.rstrip("_"), target.path


def with_options(declared: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command so that it also takes the options that a class declares as attributes.

    The values are in the context of the command and are not passed to its function. The options are listed
    after the positional parameters of the function and before the keyword-only ones.
    """
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=getattr(declared, name), annotation=annotation
        )
        for name, annotation in declared.__annotations__.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = signature.parameters.values()

        @wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values[name] for name in signature.parameters})

        first = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        last = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        run.__dict__["__signature__"] = signature.replace(parameters=[*first, *added, *last])
        run.__annotations__ = {one.name: one.annotation for one in [*first, *added, *last]}
        return run

    return decorate


def option_of_error(context: typer.Context, error: ArgumentError) -> str | None:
    """How the user writes the argument that an error is about; None if it is about no option."""
    if error.argument is None:
        return None
    name = error.argument.partition("[")[0]  # ood['noise'] is one of the sets of ood
    return option_of_setting(context, name, owner=error.function, missing=error.is_missing)


def option_of_setting(context: typer.Context, setting: str, *, owner: str, missing: bool) -> str | None:
    """How the user writes what an error about a setting is about, such as "--data-dir"; None if not at all.

    Args:
        context: of the command.
        setting: the name of an option, a dotted path, or the name of a setting of `owner`.
        owner: who raised the error: a function or a class such as `DataConfig`.
        missing: whether the error is that the setting was not given. Other errors are about an option only if
            it was given, as the setting may be a recipe's.
    """
    setting = re.sub(r"\.\d+$", "", setting)  # one of several values
    declared = list(_declared(context))
    given = [one for one in declared if missing or context.params[one[0]] not in (one[1], None, [], ())]
    paths = (setting, f"{owner.removesuffix('Config').lower()}.{setting}")
    by_name = [name for name, *_ in declared if name.rstrip("_") == setting]
    by_path = [name for name, _, target in given if target and target.path in paths]
    by_model = [name for name, *_ in given if f"{name}.name" == setting]
    by_key = [name for name, _, target in given if target and target.path.rpartition(".")[2] == setting]
    name = next(iter(by_name + by_path + by_model + by_key), None)
    if name is None:
        return None
    *_, info = _parameters(context)[name].annotation.__metadata__
    return info.metavar if isinstance(info, ArgumentInfo) else f"--{name.rstrip('_').replace('_', '-')}"


def _declared(context: typer.Context) -> Iterator[tuple[str, Any, Sets | None]]:
    """Name, default and setting of each parameter of a command."""
    for name, parameter in _parameters(context).items():
        if name in context.params:
            metadata = parameter.annotation.__metadata__
            yield name, parameter.default, next((one for one in metadata if isinstance(one, Sets)), None)


def _parameters(context: typer.Context) -> Mapping[str, inspect.Parameter]:
    callback = context.command.callback
    return {} if callback is None else inspect.signature(callback).parameters


def _number_or_auto(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a finite number or auto")
    return number


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError("numbers separated by commas") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(count: int) -> tuple[int, ...]:
    if count < 1:
        raise ValueError("at least 1")
    return tuple(range(count))


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    from beliefmatch.experiments.yaml_files import yaml_value

    pairs = [text.partition("=") for text in texts]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("written NAME=VALUE")
    try:
        return {name.strip(): yaml_value(value.strip(), caller="value") for name, _, value in pairs}
    except ValueError as error:
        raise ValueError(f"written NAME=VALUE with a value of YAML ({reason_of(error)})") from None


def _option(metavar_or_flag: str, help: str, *, flag: str = "", panel: str | None = None) -> Any:
    """An option with a value, named after its parameter or `flag`; or a flag, such as "--verbose"."""
    if metavar_or_flag.startswith("--"):
        return typer.Option(metavar_or_flag, help=help, rich_help_panel=panel)
    flags = [flag] if flag else []
    return typer.Option(*flags, metavar=metavar_or_flag, help=help, rich_help_panel=panel)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


_data, _network = partial(_option, panel="Data"), partial(_option, panel="Network")
_training, _machine = partial(_option, panel="Training"), partial(_option, panel="Machine")
_semi = partial(_option, panel="Unlabelled images")
_features, _heads = partial(_option, panel="Features"), partial(_option, panel="Heads")

# fmt: off

# Shared by several commands.
OutDir = Annotated[str, _option("DIRECTORY", "Directory of this machine to write the results to.")]
OutPlace = Annotated[str, _option("DIRECTORY",
    "Directory to write the results to, or a URL such as s3://BUCKET/PATH.")]
Verbose = Annotated[bool, _option("--verbose", "Print every table and all details, not only the summary.")]
DryRun = Annotated[bool, _option("--dry-run",
    "Print the complete configuration and its cost without running anything.")]
Jobs = Annotated[int | None, _option("N",
    "Number of runs executed at the same time. Default: chosen by the number of cores.")]
On = Annotated[str, _option("PLACE",
    "Where the work is done: local, ray (a Ray cluster of this machine, started if there is none) or "
    "ray://HOST:PORT.")]
Risks = Annotated[list[float], Sets("risks", tuple), _option("RATE",
    "Error rate among answered examples for which an abstention threshold is sought. Can be repeated.")]
SkipCorrupt = Annotated[bool, Sets("data.corrupt", lambda skip: "skip"), _option("--skip-corrupt",
    "Skip images that cannot be read and report their number, instead of stopping.")]
Workers = Annotated[int, Sets("data.workers"), _option("N", "Number of processes that read large images.")]

# Data and network of `train`, `compare` and `adapt`.
Data = Annotated[str | None, Sets("data.name"), _data("NAME|PATH",
    f"Dataset: {', '.join(DATASETS)}, "
    "or the path of a folder of images, of Parquet files of images, of .npz files, or of a table: a .csv, "
    ".tsv or .parquet file, or a directory of such files for train, validation and test.")]
Target = Annotated[str | None, Sets("data.target"), _data("COLUMN",
    "Column of the classes of a table. Default: the only one named target, label, class or y.")]
Drop = Annotated[list[str] | None, Sets("data.drop", tuple), _data("COLUMN",
    "Column of a table to leave out, such as an identifier. Can be repeated.")]
DataDir = Annotated[str | None, Sets("data.directory"), _data("DIRECTORY",
    "Directory that holds the named datasets. Default: download from the Hugging Face hub.")]
Limit = Annotated[int | None, Sets("data.limit"), _data("N",
    "Maximum number of training examples. Default: all.")]
Ood = Annotated[list[str] | None, Sets("ood", tuple), _data("SET",
    "Out-of-distribution set to detect: noise, the name of a dataset, or NAME=PATH. Can be repeated.")]
OodTraining = Annotated[str | None, Sets("ood_training"), _data("SET",
    "Out-of-distribution set that methods such as prior_network are trained on.")]
Model = Annotated[str | None, Sets("model.name"), _network("NAME",
    f"Network: {', '.join(MODELS)}, timm:NAME or module:factory.")]

# Methods and training, of `train` and `compare`.
Method = Annotated[str | None, _option("NAME[:OPTION=VALUE]",
    f"Method to train: {', '.join(METHODS)}. Default: set by the recipe.")]
Methods = Annotated[str, _option("NAME[:OPTION=VALUE],...",
    f"Methods to compare, separated by commas, such as belief_matching:kl_weight=0.01: "
    f"{', '.join(METHODS)}.")]
KlWeight = Annotated[str | None, Sets("kl_weight", _number_or_auto), _option("NUMBER|auto",
    "Weight λ of the KL term of belief matching; auto chooses it on validation images. Default: set by "
    "the recipe.")]
Recipe = Annotated[str | None, _training("NAME|FILE",
    f"Settings to start from: {', '.join(RECIPES)}, or a .yaml file. Default: chosen by the data and the "
    "device, and printed.")]
Set = Annotated[list[str] | None, _training("KEY=VALUE",
    "Setting to change, such as training.weight_decay=5e-4; --dry-run lists all settings. Can be repeated.",
    flag="--set")]
Epochs = Annotated[int | None, Sets("training.epochs"), _training("N",
    "Number of passes over the training images. Default: set by the recipe.")]
BatchSize = Annotated[int | None, Sets("training.batch_size"), _training("N",
    "Number of images in a training step. Default: set by the recipe.")]
LearningRate = Annotated[float | None, Sets("training.learning_rate"), _training("NUMBER",
    "Initial learning rate. Default: set by the recipe.")]
Seed = Annotated[int | None, Sets("seed"), _option("N",
    "Seed of initial weights, batch order and augmentation. Default: set by the recipe.")]
FirstSeed = Annotated[int, _option("N", "Seed of the first run of each method.")]
MethodSeeds = Annotated[int, _option("N", "Number of runs of each method, with consecutive seeds.")]
Labels = Annotated[int | None, Sets("data.labels"), _semi("N",
    "Number of training images that keep their labels, divided evenly among the classes. Default: all.")]
Semi = Annotated[str | None, Sets("semi.kind"), _semi("vat|pi|none",
    "Consistency loss on unlabelled images: predictions must hold under the worst perturbation (vat) or a "
    "random one (pi). Use --set semi.KEY=VALUE for its other settings.")]
SemiWeight = Annotated[float | None, Sets("semi.weight"), _semi("NUMBER",
    "Weight of the consistency loss. Default: set by the recipe, or else by the paper.")]
PriorFrom = Annotated[str | None, Sets("teacher.run"), _semi("RUN",
    "Finished run whose belief about each image, labelled or not, is used as the prior; softmax and "
    "label_smoothing use it as soft labels.")]
PriorStrength = Annotated[float | None, Sets("teacher.strength"), _semi("NUMBER",
    "Number of votes that the belief of --prior-from counts as, where a label counts as one.")]
Precision = Annotated[str | None, Sets("engine.precision"), _machine("auto|32|bf16|16",
    "Precision of the network in training; auto is bf16 where the hardware supports it. Default: set by "
    "the recipe.")]
Accelerator = Annotated[str | None, Sets("engine.accelerator"), _machine("auto|cpu|cuda|mps",
    "Kind of device to train on. Default: set by the recipe.")]
Devices = Annotated[str | None, Sets("engine.devices"), _machine("N|auto",
    "Number of processes on each machine, one for each device; auto is one for each GPU, or one on the "
    "CPU.")]
Nodes = Annotated[int | None, Sets("engine.nodes"), _machine("N",
    "Number of machines. Default: set by the recipe.")]
Tensorboard = Annotated[bool, _option("--tensorboard", "Also write logs for TensorBoard.")]


class RunOptions:
    """The data, network, training and machine of a run, for `train` and `compare`."""

    kl_weight: KlWeight = None
    data: Data = None
    target: Target = None
    drop: Drop = None
    data_dir: DataDir = None
    limit: Limit = None
    skip_corrupt: SkipCorrupt = False
    labels: Labels = None
    semi: Semi = None
    semi_weight: SemiWeight = None
    prior_from: PriorFrom = None
    prior_strength: PriorStrength = None
    model: Model = None
    ood: Ood = None
    ood_training: OodTraining = None
    recipe: Recipe = None
    set_: Set = None
    epochs: Epochs = None
    batch_size: BatchSize = None
    learning_rate: LearningRate = None
    precision: Precision = None
    accelerator: Accelerator = None
    devices: Devices = None
    nodes: Nodes = None


# `adapt`: a network with images or sentences, or stored features, and the heads fitted to them.
Network = Annotated[str | None, Sets("network.model"), _network("NAME",
    "Trained network: timm:NAME, torchvision:NAME, hf:NAME, module:factory, or the directory of a run. For "
    "text: hf:NAME or hf:DIRECTORY of a sequence classifier or an encoder.")]
ModelOptions = Annotated[list[str] | None, Sets("network.options", _assignments), _network("NAME=VALUE",
    "Argument that the network is built with. Can be repeated.")]
Weights = Annotated[str | None, Sets("network.weights"), _network("FILE",
    "Weights of the network: a .safetensors file, or a .pt, .pth or .th file, which is read without "
    "executing code. Default: the pretrained weights of the named network.")]
Head = Annotated[str | None, Sets("network.head"), _network("LAYER",
    "Name of the last layer of the network. Default: found automatically.")]
AdaptData = Annotated[str | None, Sets("data.name"), _data("NAME|PATH",
    f"Images: {', '.join(DATASETS)}, or the path of a folder of images, of Parquet files or of .npz files. "
    "Text: a .csv, .tsv, .jsonl or .parquet file, a directory of such files for train, validation and test, "
    "or hf:NAME of a dataset on the Hugging Face hub.")]
TextColumn = Annotated[str | None, Sets("data.text_column"), _data("NAME",
    "Column of the sentences, in .csv, .tsv, .jsonl or .parquet files. Default: recognised by usual names.")]
LabelColumn = Annotated[str | None, Sets("data.label_column"), _data("NAME",
    "Column of the classes of the sentences. Default: recognised by usual names.")]
Validation = Annotated[str | None, _data("FRACTION|N|FILE",
    "Validation data that λ is chosen on: a fraction or number of the training examples or, with --features, "
    "a file. Default: 0.2.")]
ValidationFrom = Annotated[str, Sets("network.validation_from"), _data("train|test",
    "Source of the validation data. Choose test for a network that was trained on all training examples: "
    "half of the test examples choose λ and the other half is reported.")]
SplitSeed = Annotated[int, Sets("data.split_seed"), _data("N",
    "Seed of the split into training and validation data.")]
Size = Annotated[int | None, Sets("data.size"), _data("PIXELS",
    "Side in pixels that images are resized to. Default: what the network expects, or else no resizing.")]
Margin = Annotated[float | None, Sets("data.margin"), _data("RATIO",
    "Ratio of the short side before the centre crop to --size, such as 1.143 for 256 to 224. Default: what "
    "the network expects.")]
Mean = Annotated[str | None, Sets("data.mean", _numbers), _data("R,G,B",
    "Per-channel mean used to normalise images with pixels between 0 and 1. Default: what the network "
    "declares, or else the common normalisation under which its existing head is right most often.")]
Std = Annotated[str | None, Sets("data.std", _numbers), _data("R,G,B",
    "Per-channel standard deviation used to normalise images. Default: as for --mean.")]
Features = Annotated[str | None, Sets("features.train"), _features("FILE",
    "Stored features in place of a network and images: arrays features and targets (or counts), and weight "
    "and bias of the existing head if there is one, as .npz, .safetensors, .parquet, .csv or .npy.")]
TestFeatures = Annotated[str | None, Sets("features.test"), _features("FILE",
    "Stored features of the test examples, with --features.")]
CacheDir = Annotated[str | None, Sets("network.cache_dir"), _features("DIRECTORY",
    "Directory of the feature cache. Default: beliefmatch/features in the user's cache directory.")]
CacheSize = Annotated[str, Sets("network.cache_size"), _features("BYTES",
    "Maximum size of the feature cache on disk.")]
Device = Annotated[str, Sets("network.device"), _features("cpu|cuda|mps", "Device used to extract features.")]
FeaturePrecision = Annotated[str, Sets("network.precision"), _features("auto|32|bf16",
    "Precision of the network when it extracts features; auto is bf16 where that is faster and changes no "
    "row by 2% or more.")]
Compile = Annotated[bool, Sets("network.compile"), _features("--compile",
    "Compile the network with torch.compile, which takes a minute and about halves the time of extraction.")]
FeatureBatch = Annotated[int, Sets("network.batch_size"), _features("N",
    "Number of examples in a batch when features are extracted.")]
HeadLabels = Annotated[str, Sets("fit.labels"), _heads("auto|same|new",
    "Whether to refit the existing head (same) or to fit a head for other classes (new); auto detects "
    "which.")]
KlWeights = Annotated[str | None, Sets("fit.kl_weights", _numbers), _heads("NUMBER,...",
    "Values of λ to choose from, separated by commas. Default: found on the validation data.")]
Priors = Annotated[str, Sets("fit.priors", _numbers), _heads("NUMBER,...",
    "Values of the prior β to choose from, separated by commas.")]
HeadSeeds = Annotated[int, Sets("fit.seeds", _seeds), _heads("N",
    "Number of seeds that every head is trained with, with --protocol paper.")]
Controls = Annotated[str, Sets("fit.controls", _names), _heads("NAME,...",
    "Other heads fitted to the same features for comparison, separated by commas.")]
Laplace = Annotated[bool, Sets("fit.laplace"), _heads("--laplace",
    "Also compare with a Laplace approximation of the last layer.")]
Choose = Annotated[str, Sets("fit.choose"), _heads("belief_matching|best",
    "Head to deliver: the best belief matching head, or that of the lowest validation NLL of any kind.")]
WeightDecays = Annotated[str | None, Sets("fit.weight_decays", _numbers), _heads("NUMBER,...",
    "Weight decays to choose from, separated by commas. Default: found on the validation data.")]
BootstrapHeads = Annotated[int, Sets("fit.heads"), _heads("N",
    "Fit N heads to resampled rows and deliver their mixture, whose disagreement is a second "
    "measure of uncertainty.")]
Background = Annotated[str | None, Sets("background"), _heads("FILE|NAME",
    "Examples of no class that take part in fitting: belief matching draws them to its prior.")]
Protocol = Annotated[str, Sets("fit.protocol"), _heads("default|paper",
    "How heads are fitted: to their optimum, or as the paper does, with Adam on minibatches.")]
HeadEpochs = Annotated[int, Sets("fit.epochs"), _heads("N",
    "Passes over the features with --protocol paper, and over the images with --train-batchnorm.")]
TrainBatchnorm = Annotated[bool, Sets("fit.batchnorm"), _heads("--train-batchnorm",
    "Train the BatchNorm layers together with the chosen head, as the paper's published code does.")]
NoVoteScale = Annotated[bool, Sets("fit.vote_scale", operator.not_), _heads("--no-vote-scale",
    "Keep the precision of the belief as its loss has it; by default it is fitted to validation votes, where "
    "targets are counts.")]

# `evaluate`, `report` and `predict`.
PredictionFiles = Annotated[list[str], _argument("FILE",
    "Predictions and targets of each model as .npz, .npy, .parquet, .csv or .safetensors, or the directory "
    "of a run.")]
OodFiles = Annotated[list[str] | None, _option("SET=FILE",
    "Predictions on an out-of-distribution set; with several models, one file for each in their order, "
    "separated by commas. Can be repeated.")]
ModelNames = Annotated[list[str] | None, _option("NAME",
    "Name of a model, given once for each file in their order. Default: the name of the file.")]
ClassNames = Annotated[str | None, _option("FILE",
    "Text file with the name of one class on each line. Default: the names of the run, or else numbers.")]
TargetsFile = Annotated[str | None, _option("FILE",
    "File with the targets of all models, if their own files have none.")]
Bins = Annotated[int, Sets("n_bins"), _option("N", "Number of confidence bins of the calibration errors.")]
Resamples = Annotated[int, Sets("resamples"), _option("N",
    "Number of bootstrap resamples, from 1000 to 100000: fewer give unstable intervals; "
    "0 omits the confidence intervals.")]
Figures = Annotated[list[str] | None, _option("KIND",
    "Also write every figure as a file for a paper: pdf, svg or png. Repeatable.")]
BootstrapSeed = Annotated[int, Sets("seed"), _option("N", "Seed of the bootstrap.")]
LogitsName = Annotated[str | None, _option("NAME",
    "Name of the array or column of logits. Default: recognised by common names.")]
ProbsName = Annotated[str | None, _option("NAME",
    "Name of the array or columns of probabilities. Default: recognised by common names.")]
TargetsName = Annotated[str | None, _option("NAME",
    "Name of the array or column of targets. Default: recognised by common names.")]
ImagesName = Annotated[str | None, _option("NAME",
    "Name of the array of images, which the page shows with mistakes. Default: recognised by common names.")]
Records = Annotated[list[str], _argument("RECORD",
    "Records written by `beliefmatch evaluate`, one for each model; or one record of `beliefmatch compare`, "
    "`beliefmatch adapt` or `beliefmatch votes`, or its directory.")]
PageFile = Annotated[str, _option("FILE", "HTML file to write the page to.")]
Run = Annotated[str, _argument("RUN", "Directory written by `beliefmatch train` or `beliefmatch adapt`.")]
Inputs = Annotated[list[str], _argument("INPUT",
    "Images, folders of images, .npz or .npy arrays of bytes, or .parquet files to predict. For a network of "
    "sentences: sentences, .txt, .csv, .tsv, .jsonl or .parquet files of them, or - for standard input. For "
    "a network of a table: .csv, .tsv or .parquet files with its columns.")]
PredictionsFile = Annotated[str, _option("FILE",
    "File to write the predictions to, ending in .csv, .json or .parquet.")]
Abstain = Annotated[float | None, _option("CONFIDENCE",
    "Abstain on inputs with a confidence below this value.")]
MaxRisk = Annotated[float | None, _option("RATE",
    "Abstain so that the error rate among answered inputs stays below this rate with probability 95%; the "
    "threshold is found on the validation data of the run.")]
NoneOfThese = Annotated[float | None, _option("RATE",
    "Refuse inputs whose uncertainty exceeds that of all but this share of the validation data. "
    "Default: 0.05 for sentences, none for images.")]
SetCoverage = Annotated[float | None, _option("RATE",
    "Also give a set of classes for each input that holds the true one with this probability, by split "
    "conformal prediction on the validation data of the run.")]

# `export`.
ExportFormat = Annotated[str | None, _option("onnx|torchscript|exported",
    "Format of the file: ONNX, TorchScript for torch.jit.load, or a program for torch.export.load. Default: "
    "by the ending of --out, or else onnx.")]
ExportOutputs = Annotated[str | None, _option("NAME,...",
    "Outputs of the file, separated by commas: logits, probs, predictions, confidence, entropy, and for a "
    "method with a belief expected_entropy, mutual_information, differential_entropy, precision, "
    "log_precision, variance. Default: probs,mutual_information,precision, or probs,entropy without a "
    "belief.")]
ExportFile = Annotated[str | None, _option("FILE",
    "File to write. Default: model.onnx, model.pt or model.pt2, by the format.")]
WithPreprocessing = Annotated[bool, _option("--with-preprocessing",
    "Include the preparation of inputs. Images are then RGB bytes (N, H, W, C), not normalised numbers. Rows "
    "of a table are then numbers, NaN where missing, and indices of categories, not the encoded matrix.")]
Opset = Annotated[int | None, _option("N",
    "Version of the ONNX operator set, at least 18. Default: that of the installed exporter.")]
Overwrite = Annotated[bool, _option("--overwrite", "Replace the file if it exists.")]

# `reproduce` and `doctor`.
ReproductionId = Annotated[str, _argument("ID",
    f"Table or figure to reproduce: {', '.join(REPRODUCTIONS)}; all runs every one, and list shows "
    "their titles and costs.")]
Scale = Annotated[str, _option("paper|cpu|tiny",
    "Scale of the experiments: the protocol of the paper (paper), a small version for two cores (cpu), or a "
    "version of seconds that only shows that the code runs (tiny).")]
ReproductionSeeds = Annotated[int | None, _option("N",
    "Number of runs of each method. Default: set by the scale.")]
Json = Annotated[bool, _option("--json", "Print the report as JSON.")]

# `votes`.
VotesFile = Annotated[str, _argument("VOTES",
    "Votes as .csv, .tsv or .parquet: one vote a row (item, annotator, label), one column for each "
    "annotator, or one column of counts for each class; or .npz with an array counts.")]
ItemPredictions = Annotated[str | None, _option("FILE",
    "Logits or probabilities of a model for the items, named by a column item, else in their order.")]
ItemFeatures = Annotated[str | None, _option("FILE",
    "Features of the items, on which heads are fitted to the votes by cross-fitting.")]
PanelSize = Annotated[int, Sets("panel"), _option("N",
    "Number of votes in the panel that decides an item.")]
MajorityConfidence = Annotated[float, Sets("confidence"), _option("P",
    "Minimum probability that a class wins the panel for an item to be settled.")]
Simulate = Annotated[bool, _option("--simulate",
    "Replay the given votes to show what stopping early would have saved.")]
Repetitions = Annotated[int, Sets("repetitions"), _option("N", "Number of replays, each in another order.")]
ReplaySeed = Annotated[int, Sets("seed"), _option("N", "Seed of the order of votes in replays.")]
VotesForm = Annotated[str, _option("FORM",
    "Form of the votes: long, annotators, counts, or auto to recognise it by the columns.")]
ItemColumn = Annotated[str | None, _option("COLUMN",
    "Column of the items. Default: recognised by common names.")]
AnnotatorColumn = Annotated[str | None, _option("COLUMN",
    "Column of the annotators. Default: recognised by common names.")]
VoteColumn = Annotated[str | None, _option("COLUMN",
    "Column of the labels. Default: recognised by common names.")]
Repeats = Annotated[bool, _option("--repeats",
    "Count every vote of an annotator who voted several times for an item, instead of stopping.")]
DawidSkene = Annotated[bool, _option("--dawid-skene",
    "Compare the consensus with that of Dawid and Skene's model, which needs the extra votes.")]
Multiannotator = Annotated[str | None, _option("FILE",
    "Also write the votes as a table for cleanlab.multiannotator: one row an item, one column an annotator.")]
