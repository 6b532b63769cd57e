"""From features to a chosen head: all candidates fitted, one taken, and what it is to be compared with.

Nothing here needs a network: features from files will do.
"""

import time
import warnings
from collections.abc import Callable, Sequence

from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail, level_of_caller
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.baselines import temperature, untouched
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.candidates import Candidate, candidates
from beliefmatch.adaptation.choosing import choose_setting, setting
from beliefmatch.adaptation.diagnostics import contamination, on_data, on_the_choice, on_the_labels, sentence
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.head_init import Init
from beliefmatch.adaptation.labelling import LabelSet, label_set, require_sets
from beliefmatch.adaptation.laplace_head import laplace_head, require_laplace, why_no_laplace
from beliefmatch.adaptation.result import Adaptation, FeatureSets, Verdict
from beliefmatch.adaptation.risk_thresholds import risk_thresholds

__all__ = ["refit", "shown"]

_DEFAULT = AdaptConfig()
_LABELS = {
    "untouched": "untouched",
    "temperature": "temperature",
    "softmax": "softmax",
    "label_smoothing": "label smoothing",
    "evidential": "evidential",
    "laplace": "laplace",
    "belief_matching": "belief matching",
}


def refit(
    sets: FeatureSets,
    *,
    classes: int | None = None,
    init: Init | None = None,
    adapt_config: AdaptConfig = _DEFAULT,
    val_fraction: float | None = None,
    on_progress: OnProgress | None = None,
) -> Adaptation:
    """Fit every candidate on the training features and choose one by the validation features.

    Fresh heads are fitted in one pass, each seed with first weights of its own. Heads that start from an
    existing one differ by the order of batches alone, so there each seed has a pass of its own. A setting, λ
    and prior, is chosen by the mean over its seeds; the chosen head is the best of them.

    Args:
        sets: features of the data; `test` and `ood` are only kept.
        classes: K, where neither counts nor the existing head tell; else one more than the largest id.
        init: weight and bias of the existing head, where there is one.
        adapt_config: what to fit and by what to choose.
        val_fraction: Share of the training rows that was held out for validation because no validation data
            were given; a warning explains the consequence.
        on_progress: Called with (fraction, description).

    Raises:
        ValueError: features that do not match each other or the head, targets that do not fit the classes.
    """
    if adapt_config.batchnorm:
        fact = "`batchnorm` must be False for features alone: BatchNorm layers are trained on images"
        raise fail("refit", f"{fact}; use `adapt` with the network and its data.")
    if adapt_config.laplace:
        require_laplace()
    began = time.perf_counter()
    init = require_sets(sets, init)
    found = label_set(sets, classes=classes, init=init, labels=adapt_config.labels)
    old = init if found.kind == "same" else None
    verdict = contamination(sets.validation, train=sets.train, init=old, test=sets.test)
    _warn(verdict, found, val_fraction)
    diagnostics = on_the_labels(sets, found, init) if adapt_config.labels == "auto" else []
    diagnostics += _warned(on_data(sets, found, init))
    fitted = _fitted(sets, found.classes, old, adapt_config, on_progress)
    chosen = choose_setting(fitted, by=adapt_config.choose_by)
    before = [] if old is None else [untouched(old, sets.validation), temperature(old, sets.validation)]
    diagnostics += _warned(on_the_choice(chosen, before[0] if before else None))
    laplace, notes = _laplace([*before, *fitted], sets, found) if adapt_config.laplace else ([], ())
    return Adaptation(
        chosen=chosen,
        fitted=[*before, *laplace, *fitted],
        verdict=verdict,
        labels=found.kind,
        classes=found.classes,
        sets=sets,
        adapt_config=adapt_config,
        risk_thresholds=risk_thresholds(
            chosen, sets.validation, risks=adapt_config.risks, delta=adapt_config.delta
        ),
        seconds={"heads": time.perf_counter() - began},
        notes=(*map(sentence, diagnostics), *notes),
    )


def _warned(diagnostics: list[str]) -> list[str]:
    """Each as a warning; and as they are, for the notes."""
    for diagnostic in diagnostics:
        warnings.warn(f"adapt: {diagnostic}.", stacklevel=level_of_caller())
    return diagnostics


def _laplace(
    fitted: Sequence[FittedHead], sets: FeatureSets, found: LabelSet
) -> tuple[list[FittedHead], tuple[str, ...]]:
    """A Laplace approximation of the existing head, or of each fresh softmax head; or why there is none."""
    if (why := why_no_laplace(sets.train, found.classes)) is not None:
        warnings.warn(f"adapt: {why}; the comparison goes without.", stacklevel=level_of_caller())
        return [], (why,)
    kind = "untouched" if found.kind == "same" else "softmax"
    around = [head for head in fitted if head.candidate.kind == kind and not head.diverged]
    return [laplace_head(head, sets.train, sets.validation) for head in around], ()


def shown(adaptation: Adaptation) -> dict[str, list[FittedHead]]:
    """The rows of an honest table, in order, each with one head for every seed.

    What there is of "untouched", "temperature", "softmax", "label smoothing" (the one that asks for the
    confidence that the chosen λ asks for), "evidential", "laplace", and "belief matching" (the chosen λ and
    prior).
    """
    rows: dict[str, list[FittedHead]] = {label: [] for label in _LABELS.values()}
    own = adaptation.chosen.candidate
    for head in adaptation.fitted:
        one = head.candidate
        if one.kind == "belief_matching" and setting(one) != setting(own):
            continue
        if one.kind == "label_smoothing" and one.options.get("matched_kl_weight") != own.kl_weight:
            continue
        rows[_LABELS[one.kind]].append(head)
    return {label: heads for label, heads in rows.items() if heads}


def _warn(verdict: Verdict, found: LabelSet, val_fraction: float | None) -> None:
    """λ is never chosen silently on rows that were seen, or may have been."""
    remedy = "give `validation` data that it has not seen"
    message = None
    if val_fraction is not None and found.kind == "same":
        message = (
            f"no `validation` data were given, so λ is chosen on {val_fraction:.0%} of `train`, on which the "
            f"network has probably been trained: heads look surer there than they are elsewhere; "
            f"{remedy}, such as a part of its test data. {verdict.why}"
        )
    elif val_fraction is not None:
        message = (
            f"no `validation` data were given, so {val_fraction:.0%} of `train` are held out to choose λ; "
            f"if the network was trained on these data, {remedy}."
        )
    elif verdict.seen:
        message = f"λ is chosen on data that the network was trained on; {remedy}. {verdict.why}"
    if message is not None:
        warnings.warn(f"adapt: {message}", stacklevel=level_of_caller())


def _fitted(
    sets: FeatureSets,
    classes: int,
    init: Init | None,
    adapt_config: AdaptConfig,
    on_progress: OnProgress | None,
) -> list[FittedHead]:
    wanted = _wanted(sets, classes, init, adapt_config)

    def fit(some: Sequence[Candidate], order_seed: int, tell: OnProgress | None) -> list[FittedHead]:
        return fit_heads(
            sets.train,
            some,
            validation=sets.validation,
            classes=classes,
            epochs=adapt_config.epochs,
            batch_size=adapt_config.batch_size,
            learning_rate=adapt_config.learning_rate,
            init=init,
            patience=adapt_config.patience,
            monitor=adapt_config.choose_by,
            optimizer=adapt_config.optimizer,
            order_seed=order_seed,
            on_progress=tell,
        )

    alone = init is None
    fitted = fit(wanted, 0, on_progress) if alone else _seed_by_seed(wanted, fit, on_progress)
    _require_one_that_converged(fitted, adapt_config)
    return fitted


def _require_one_that_converged(fitted: Sequence[FittedHead], adapt_config: AdaptConfig) -> None:
    if not all(head.diverged for head in fitted if head.candidate.kind == "belief_matching"):
        return
    got = "the default" if adapt_config.learning_rate is None else f"{adapt_config.learning_rate:g}"
    fact = f"`learning_rate` must be one that heads converge with, got {got}, with which every head diverged"
    remedy = (
        "use a lower one" if adapt_config.optimizer == "adam" else "use the optimizer adam with a lower one"
    )
    raise fail("adapt", f"{fact}: no loss stayed finite; {remedy}.")


def _wanted(sets: FeatureSets, classes: int, init: Init | None, adapt_config: AdaptConfig) -> list[Candidate]:
    seeds = [*adapt_config.seeds]
    if init is not None and adapt_config.optimizer == "lbfgs" and len(seeds) > 1:
        fact = "`seeds` make no difference where L-BFGS starts from the existing head"
        warnings.warn(f"adapt: {fact}; only {seeds[0]} is fitted.", stacklevel=level_of_caller())
        seeds = seeds[:1]
    has_ids = sets.train.targets.dim() == 1
    controls = [
        one for one in adapt_config.controls if has_ids or one != "evidential"
    ]  # which cannot learn counts
    if adapt_config.laplace and init is None and "softmax" not in controls:
        controls.append("softmax")  # the head that the approximation is centred on
    return candidates(
        classes,
        kl_weights=adapt_config.kl_weights,
        priors=adapt_config.priors,
        seeds=seeds,
        controls=controls,
    )


def _seed_by_seed(
    wanted: Sequence[Candidate],
    fit: Callable[[Sequence[Candidate], int, OnProgress | None], list[FittedHead]],
    on_progress: OnProgress | None,
) -> list[FittedHead]:
    """A pass for each seed, which is that of the order of batches; heads in the order of the candidates."""
    seeds = list(dict.fromkeys(one.seed for one in wanted))
    heads: dict[tuple[str, int], FittedHead] = {}
    for number, seed in enumerate(seeds):
        tell = _part(on_progress, number, seeds)
        for head in fit([one for one in wanted if one.seed == seed], seed, tell):
            heads[setting(head.candidate), seed] = head
    return [heads[setting(one), one.seed] for one in wanted]


def _part(on_progress: OnProgress | None, number: int, seeds: Sequence[int]) -> OnProgress | None:
    if on_progress is None or len(seeds) == 1:
        return on_progress
    return lambda share, doing: on_progress((number + share) / len(seeds), f"seed {seeds[number]}, {doing}")
