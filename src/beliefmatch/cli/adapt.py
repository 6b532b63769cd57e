"""`beliefmatch adapt`: the last layer of a trained classifier is refitted with belief matching."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from beliefmatch._errors import fail
from beliefmatch._files import directory_in_use, refuse_url
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
    from beliefmatch.experiments.adapt_job import AdaptJob, AdaptResult

__all__ = ["adapt"]

_FIT, _DATA, _NETWORK = AdaptConfig(), DataConfig(), ImageAdaptConfig(model="")
_PRIORS, _CONTROLS = ",".join(f"{prior:g}" for prior in _FIT.priors), ",".join(_FIT.controls)
_OPTIONS = {
    "data": {"train": "--data", "test": "--data"},
    "features": {"train": "--features", "test": "--test-features"},
}
"""Options for arguments of the function `adapt` that the command has under other names."""
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
    no_vote_scale: opt.NoVoteScale = False,
    risk: opt.Risks = _RISKS,
    on: opt.On = "local",
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
    with warnings_held(context, **_OPTIONS["data" if features is None else "features"]):
        with user_errors(context):
            refuse_url(out, caller="adapt")
            config = _config(context)
            require_packages(context, "terminal", "report", "statistics", "weights")
            from beliefmatch import kernels
            from beliefmatch.experiments.adapt_job import AdaptJob
            from beliefmatch.experiments.adapted_directory import require_directory
            from beliefmatch.experiments.executors import workers_on

            kernels.status()  # fails if BELIEFMATCH_KERNEL asks for one that does not exist
            require_directory(Path(out), config)
            job = AdaptJob(config, workers_on(on))
            _require_validation_used(context, job)
            if not dry_run:
                with directory_in_use(out, caller="adapt"):  # proved now, made when there is something in it
                    pass
        if dry_run or verbose:
            for line in job.announcement():
                typer.echo(line)
        elif job.found_preprocessing is not None:
            typer.echo(job.found_preprocessing)
        if dry_run:
            return
        with user_errors(context, ValueError, *FAILURES), progress() as on_progress:
            outcome = job.run(on_progress, command=["beliefmatch", *context.obj])
    _write(context, config, outcome, out, verbose=verbose)


def _write(
    context: typer.Context, config: AdaptRunConfig, outcome: "AdaptResult", out: str, *, verbose: bool
) -> None:
    from beliefmatch.experiments.adapted_directory import directory_files, head_file
    from beliefmatch.report.adaptation import adaptation_tables, terminal_table, write_adaptation
    from beliefmatch.report.adaptation_words import adaptation_verdict, caveats
    from beliefmatch.report.adaptation_words import findings as adaptation_findings
    from beliefmatch.report.table import to_rich

    record, evaluations, given = outcome.record, outcome.evaluations, config.given
    others = directory_files(outcome, None if isinstance(given, FeatureAdaptConfig) else given)
    head = head_file(outcome.adaptation, outcome.network)
    try:  # files first: the reader of the output may close the pipe
        with (
            user_errors(context),
            write_errors(context, Path(out)),
            directory_in_use(out, caller="adapt") as to,
        ):
            page = write_adaptation(to, record, evaluations, head=head, others=others)
    finally:
        tables = [terminal_table(record, evaluations)]
        if verbose:
            tables += [to_rich(table) for table in adaptation_tables(record, evaluations)[1:]]
        notes = record.notes if verbose else []
        words = ("•", adaptation_findings(record)), ("!", caveats(record, evaluations)), ("i", notes)
        show(findings([adaptation_verdict(record, evaluations)]), *tables, "")
        show(*(findings(sentences, sign=sign) for sign, sentences in words if sentences))
    typer.echo(page)


def _config(context: typer.Context) -> AdaptRunConfig:
    """The configuration built from the options."""
    params, given = context.params, opt.settings_of(context)
    fit = {**given.get("fit", {}), **({"risks": given["risks"]} if "risks" in given else {})}
    if fit.get("protocol", _FIT.protocol) == "default" and not fit.get("batchnorm"):
        for name, _ in opt.given_options(context, "fit.epochs"):
            raise fail("adapt", f"`{name}` must come with `--protocol paper` or `--train-batchnorm`.")
    if params["features"] is not None:
        inputs = _feature_config(context, given)
    elif params["test_features"] is not None:
        raise fail("adapt", "`test_features` must come with `--features`.")
    elif params["model"] is None:
        remedy = "`--model NAME --data NAME`, or `--features FILE`"
        raise fail("adapt", f"`model` must be given: {remedy}.")
    else:
        inputs = _network_config(context, given)
    return AdaptRunConfig(inputs, AdaptConfig(**fit), given.get("ood", ()), given.get("background"))


def _feature_config(context: typer.Context, given: Mapping[str, Any]) -> FeatureAdaptConfig:
    for name, setting in opt.given_options(context, "network.", "data.", "fit.batchnorm"):
        if setting != "data.split_seed":
            what = "there are no images or sentences" if setting.startswith("data.") else "no network is used"
            raise fail("adapt", f"`{name}` must not come with `--features`: {what}.")
    validation = context.params["validation"]
    if validation is not None and not Path(validation).is_file():
        validation = _fraction(validation, is_file_allowed=True)
    split_seed = given.get("data", {}).get("split_seed", _DATA.split_seed)
    return FeatureAdaptConfig(**given["features"], validation=validation, split_seed=split_seed)


def _network_config(context: typer.Context, given: Mapping[str, Any]) -> ImageAdaptConfig | TextAdaptConfig:
    params, network, data = context.params, given["network"], dict(given.get("data", {}))
    if params["validation"] is not None:
        data["validation"] = _fraction(params["validation"])
    named = params["text_column"] is not None or params["label_column"] is not None
    if named or (params["data"] is not None and is_text(params["data"])):
        of_images = sorted(data.keys() - set(TextConfig.__struct_fields__))
        if of_images:
            raise fail("adapt", f"`{of_images[0]}` must not be given for text.")
        if "name" not in data:
            raise fail("adapt", "`data` must be given: sentences in a file, or hf:NAME.")
        return TextAdaptConfig(**network, data=TextConfig(**data))
    if "name" in data:
        return ImageAdaptConfig(**network, data=DataConfig(**data, augment="none"))
    if data.keys() - {"split_seed", "corrupt", "workers"}:
        names = [f"`--{name.replace('_', '-')}`" for name, _ in opt.given_options(context, "data.")]
        names += ["`--validation`"] if "validation" in data else []
        raise fail("adapt", f"`data` must be given with {', '.join(names)}.")
    return ImageAdaptConfig(**network)  # with the data of the run that the network is of


def _require_validation_used(context: typer.Context, job: "AdaptJob") -> None:
    """`--validation` must not be given where the validation examples are those of a part of the data."""
    if context.params["validation"] is not None and (part := job.validation_part) is not None:
        got = f"{context.params['validation']!r}, but the validation examples are those of the {part} part"
        raise fail("adapt", f"`validation` must not be given for these data, got {got}.")


def _fraction(text: str, *, is_file_allowed: bool = False) -> float:
    try:
        return float(text)
    except ValueError:
        expected, got = "a fraction below 1 or a number of examples", f"{text!r}"
        if is_file_allowed:
            expected, got = f"{expected}, or a file of features", f"{got}, which is no file"
        raise fail("adapt", f"`validation` must be {expected}, got {got}.") from None
