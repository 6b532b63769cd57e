"""`beliefmatch adapt`: the last layer of a trained classifier is refitted with belief matching."""

from pathlib import Path
from typing import Any

import typer

from beliefmatch._files import ready_directory
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import (
    FAILURES,
    findings,
    progress,
    require_packages,
    show,
    user_errors,
    write_errors,
)
from beliefmatch.data.config import DataConfig, TextConfig, is_text
from beliefmatch.experiments.adapt_run_config import (
    AdaptRunConfig,
    FeatureAdaptConfig,
    ImageAdaptConfig,
    TextAdaptConfig,
)

__all__ = ["adapt"]

_FIT, _DATA, _NETWORK = AdaptConfig(), DataConfig(), ImageAdaptConfig(model="")
_PRIORS, _CONTROLS = ",".join(f"{prior:g}" for prior in _FIT.priors), ",".join(_FIT.controls)
_SEEDS, _RISKS = len(_FIT.seeds), list(_FIT.risks)


def adapt(
    context: typer.Context,
    model: opt.Network = None,
    model_option: opt.ModelOptions = None,
    weights: opt.Weights = None,
    head: opt.Head = None,
    data: opt.AdaptData = None,
    data_dir: opt.DataDir = None,
    text_column: opt.TextColumn = None,
    label_column: opt.LabelColumn = None,
    validation: opt.Validation = None,
    validation_from: opt.ValidationFrom = _NETWORK.validation_from,
    limit: opt.Limit = None,
    split_seed: opt.SplitSeed = _DATA.split_seed,
    size: opt.Size = None,
    margin: opt.Margin = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    skip_corrupt: opt.SkipCorrupt = False,
    workers: opt.Workers = _DATA.workers,
    ood: opt.Ood = None,
    features: opt.Features = None,
    test_features: opt.TestFeatures = None,
    cache_dir: opt.CacheDir = None,
    cache_size: opt.CacheSize = _NETWORK.cache_size,
    device: opt.Device = _NETWORK.device,
    precision: opt.FeaturePrecision = _NETWORK.precision,
    compile_: opt.Compile = False,
    feature_batch: opt.FeatureBatch = _NETWORK.batch_size,
    labels: opt.HeadLabels = _FIT.labels,
    kl_weight: opt.KlWeights = None,
    prior: opt.Priors = _PRIORS,
    seeds: opt.HeadSeeds = _SEEDS,
    controls: opt.Controls = _CONTROLS,
    laplace: opt.Laplace = False,
    choose: opt.Choose = _FIT.choose,
    weight_decay: opt.WeightDecays = None,
    heads: opt.BootstrapHeads = _FIT.heads,
    background: opt.Background = None,
    protocol: opt.Protocol = _FIT.protocol,
    epochs: opt.HeadEpochs = _FIT.epochs,
    train_batchnorm: opt.TrainBatchnorm = False,
    risk: opt.Risks = _RISKS,
    out: opt.OutDir = "runs/adapt",
    dry_run: opt.DryRun = False,
    verbose: opt.Verbose = False,
) -> None:
    """Refit the last layer of a classifier with belief matching.

    Features are extracted once and cached. Heads for all values of λ, and other heads for comparison, are
    fitted to them in one pass; λ is chosen on images that the network must not have been trained on. This
    takes minutes on a CPU. The directory holds the adapted network, records and report.html, which works
    offline.
    """
    directory = Path(out)
    with user_errors(context):
        config = _config(context)
        require_packages(context, "terminal", "report", "statistics", "weights")
        from beliefmatch.experiments.adapting import Adapting
        from beliefmatch.experiments.run_dir import RunDirectory

        if RunDirectory(directory).config_file.is_file():  # its files have the same names
            raise ValueError(
                f"adapt: `out` must not be the directory of a run, got {directory}; choose another."
            )
        if config.adapt_config.laplace:
            from beliefmatch.adaptation.laplace_head import require_laplace

            require_laplace()
        job = Adapting(config)
        if not dry_run:
            ready_directory(out, caller="adapt")
    if dry_run or verbose:
        for line in job.announcement():
            typer.echo(line)
    elif job.images is not None and (found := job.images.preprocessing()) is not None:
        typer.echo(found)
    if dry_run:
        return
    with user_errors(context, ValueError, *FAILURES), progress() as on_progress:
        outcome = job.run(on_progress)
    from beliefmatch.experiments.adapted_directory import head_file, kept_files
    from beliefmatch.report.adaptation_caveats import caveats
    from beliefmatch.report.adaptation_files import write_adaptation
    from beliefmatch.report.adaptation_tables import adaptation_tables
    from beliefmatch.report.adaptation_words import findings as adaptation_findings

    record, evaluations = outcome.record, outcome.evaluations
    given = config.given
    others = kept_files(outcome, None if isinstance(given, FeatureAdaptConfig) else given)
    new_head = head_file(outcome.adaptation, outcome.network)
    try:  # files first: the reader of the output may close the pipe
        with write_errors(context, directory):
            page = write_adaptation(directory, record, evaluations, head=new_head, others=others)
    finally:
        tables = adaptation_tables(record, evaluations)
        if not verbose:
            caution = findings(caveats(record), sign="!")
            tables = (tables[0], "", findings(adaptation_findings(record, evaluations)), caution)
        show(*tables)
    typer.echo(page)


def _config(context: typer.Context) -> AdaptRunConfig:
    """The configuration built from the options."""
    params, given = context.params, opt.settings_of(context)
    fit = {**given.get("fit", {}), **({"risks": given["risks"]} if "risks" in given else {})}
    network, features, data = (given.get(name, {}) for name in ("network", "features", "data"))
    if "train" in features:
        for name in ("model", "weights", "data"):
            if params[name] is not None:
                raise ValueError(f"adapt: `{name}` must not come with `--features`, which replace it.")
        validation = params["validation"]
        if validation is not None and not Path(validation).exists():
            validation = _fraction(validation)
        split_seed = data.get("split_seed", _DATA.split_seed)
        inputs = FeatureAdaptConfig(**features, validation=validation, split_seed=split_seed)
    else:
        if params["model"] is None:
            remedy = "`--model NAME --data NAME`, or `--features FILE`"
            raise ValueError(f"adapt: `model` must be given: {remedy}.")
        if features:
            raise ValueError("adapt: `test_features` must come with `--features`.")
        named = params["text_column"] is not None or params["label_column"] is not None
        is_of_text = named or (params["data"] is not None and is_text(params["data"]))
        if is_of_text:
            inputs = TextAdaptConfig(**network, data=_text(data, params["validation"]))
        else:
            inputs = ImageAdaptConfig(**network, data=_data(data, params["validation"]))
    return AdaptRunConfig(inputs, AdaptConfig(**fit), given.get("ood", ()), given.get("background"))


def _data(given: dict[str, Any], validation: str | None) -> DataConfig | None:
    if validation is not None:
        given = {**given, "validation": _fraction(validation)}
    if "name" in given:
        return DataConfig(**given, augment="none")
    unused = sorted(given.keys() - {"split_seed", "corrupt", "workers"})
    if unused:
        raise ValueError(f"adapt: `data` must be given with {', '.join(unused)}.")
    return None  # the data of the run that the network is of


def _text(given: dict[str, Any], validation: str | None) -> TextConfig:
    if validation is not None:
        given = {**given, "validation": _fraction(validation)}
    of_images = sorted(given.keys() - set(TextConfig.__struct_fields__))
    if of_images:
        raise ValueError(f"adapt: `{of_images[0]}` must not be given for text.")
    return TextConfig(**given)


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "a fraction below 1, a number, or with `--features` a file"
        raise ValueError(f"adapt: `validation` must be {expected}, got {text!r}.") from None
