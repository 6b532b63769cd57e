"""`beliefmatch adapt`: the last layer of a trained classifier is refitted with belief matching."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from beliefmatch._files import directory_in_use
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import (
    FAILURES,
    findings,
    progress,
    require_packages,
    show,
    user_errors,
    warnings_held,
    write_errors,
)
from beliefmatch.data.config import DataConfig, TextConfig, is_text
from beliefmatch.experiments.adapt_run_config import (
    AdaptRunConfig,
    FeatureAdaptConfig,
    ImageAdaptConfig,
    TextAdaptConfig,
)

if TYPE_CHECKING:
    from beliefmatch.experiments.adapting import Adapting

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

    Features are extracted once and cached. Belief matching heads, and other heads for comparison, are fitted
    to them until they converge; λ and weight decay are chosen on data that the network must not have been
    trained on. This takes minutes on a CPU. The directory holds the adapted network, records and report.html,
    which works offline.
    """
    with ExitStack() as stack:
        with user_errors(context), warnings_held():
            config = _config(context)
            require_packages(context, "terminal", "report", "statistics", "weights")
            from beliefmatch.experiments.adapted_directory import require_directory
            from beliefmatch.experiments.adapting import Adapting

            require_directory(Path(out), config)
            if config.adapt_config.laplace:
                from beliefmatch.adaptation.laplace_head import require_laplace

                require_laplace()
            job = Adapting(config)
            if not dry_run:
                stack.enter_context(directory_in_use(out, caller="adapt"))
        if dry_run or verbose:
            for line in job.announcement():
                typer.echo(line)
        elif job.found_preprocessing is not None:
            typer.echo(job.found_preprocessing)
        if not dry_run:
            _run(context, job, Path(out), verbose=verbose)


def _run(context: typer.Context, job: "Adapting", directory: Path, *, verbose: bool) -> None:
    with user_errors(context, ValueError, *FAILURES), warnings_held(), progress() as on_progress:
        outcome = job.run(on_progress)
    from beliefmatch.experiments.adapted_directory import head_file, kept_files
    from beliefmatch.report.adaptation_caveats import caveats
    from beliefmatch.report.adaptation_files import write_adaptation
    from beliefmatch.report.adaptation_tables import adaptation_tables
    from beliefmatch.report.adaptation_words import findings as adaptation_findings

    record, evaluations = outcome.record, outcome.evaluations
    given = job.config.given
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
    if fit.get("protocol", _FIT.protocol) == "default" and not fit.get("batchnorm"):
        for name, _ in opt.given_options(context, "fit.epochs"):
            raise ValueError(f"adapt: `{name}` must come with `--protocol paper` or `--train-batchnorm`.")
    if "train" in features:
        for name, setting in opt.given_options(context, "network.", "data."):
            if setting != "data.split_seed":
                raise ValueError(f"adapt: `{name}` must not come with `--features`: no network is used.")
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
