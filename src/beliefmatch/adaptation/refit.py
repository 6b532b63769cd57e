"""From features to a chosen head: heads of every kind fitted, one chosen, and the others to compare with.

Nothing here needs a network: features from files will do.
"""

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail, level_of_caller
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.calibration import calibrated, why_no_calibration, why_no_vector_scaling
from beliefmatch.adaptation.candidates import Candidate, default_kl_weights
from beliefmatch.adaptation.diagnostics import contamination, on_data, on_the_choice, on_the_labels, sentence
from beliefmatch.adaptation.ensemble import EnsembleHead, bootstrap_weights
from beliefmatch.adaptation.fitted import FittedHead, Init
from beliefmatch.adaptation.labelling import LabelSet, label_set, require_sets
from beliefmatch.adaptation.laplace_head import laplace_head, require_laplace, why_no_laplace
from beliefmatch.adaptation.minibatch import fit_by_adam
from beliefmatch.adaptation.result import Adaptation, BestHead, FeatureSets, Verdict
from beliefmatch.adaptation.scoring import Evaluator, predicted, risk_thresholds, scored, untouched
from beliefmatch.adaptation.search import MOST_RISE, HeadSearch, strongest_prior

__all__ = ["CHOSEN_LABEL", "refit"]

_DEFAULT = AdaptConfig()
CHOSEN_LABEL = "belief matching"
_ORDER = ("untouched", "softmax", "label smoothing", "evidential", "laplace", CHOSEN_LABEL)
"""Beginnings of the labels, in the order of the lines."""
_ALWAYS = ("untouched + temperature", "softmax + temperature", "laplace")
"""Lines that the table shows besides the heads as they were fitted, the delivered one and the best."""

Table = dict[str, list[FittedHead]]


def refit(
    sets: FeatureSets,
    *,
    classes: int | None = None,
    init: Init | None = None,
    adapt_config: AdaptConfig = _DEFAULT,
    val_fraction: float | None = None,
    on_progress: OnProgress | None = None,
) -> Adaptation:
    """Fit heads of every kind on the training features and choose one by the validation features.

    Args:
        sets: Features of the data; `test` and `ood` are only kept.
        classes: K, where neither counts nor the existing head tell; else one more than the largest id.
        init: Weight and bias of the existing head, where there is one.
        adapt_config: What to fit and what to deliver.
        val_fraction: Share of the training rows that was held out for validation because no validation data
            were given; a warning explains the consequence.
        on_progress: Called with (fraction, description).

    Raises:
        ValueError: Features that do not match each other or the head, targets that do not fit the classes.
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
    evaluator = Evaluator(sets.validation)
    make = _by_adam if adapt_config.protocol == "paper" else _by_search
    table, fitted = make(sets, found.classes, old, adapt_config, on_progress)
    if old is not None:
        as_it_was = untouched(old, sets.validation)
        table = {as_it_was.candidate.label: [as_it_was], **table}
        fitted = [as_it_was, *fitted]
    notes: list[str] = []
    more = _calibrated(table, evaluator, notes) if adapt_config.protocol == "default" else {}
    if adapt_config.laplace:
        more |= _laplace(table, sets, found, notes)
    everything = _in_order({**table, **more})
    fitted = [*fitted, *(head for heads in more.values() for head in heads)]
    label, chosen = _choose(everything, adapt_config)
    best = _best(everything, chosen, evaluator)
    kept = {*table, *_ALWAYS, label, best.label}
    table = {name: heads for name, heads in everything.items() if name in kept}
    diagnostics += _warned(
        [*on_the_choice(chosen, table["untouched"][0] if old is not None else None), *_unfinished(table)]
    )
    return Adaptation(
        chosen=chosen,
        label=label,
        table=table,
        best=best,
        fitted=fitted,
        verdict=verdict,
        labels=found.kind,
        classes=found.classes,
        sets=sets,
        adapt_config=adapt_config,
        risk_thresholds=risk_thresholds(
            chosen, sets.validation, risks=adapt_config.risks, delta=adapt_config.delta
        ),
        seconds={"heads": time.perf_counter() - began},
        notes=(*map(sentence, diagnostics), *map(sentence, notes)),
    )


def _by_search(
    sets: FeatureSets, classes: int, init: Init | None, config: AdaptConfig, on_progress: OnProgress | None
) -> tuple[Table, list[FittedHead]]:
    """The best head of each kind, fitted by the solver."""
    search = HeadSearch(
        sets.train,
        sets.validation,
        classes,
        init=init,
        background=sets.background,
        config=config,
        on_progress=on_progress,
    )
    best = search.run()
    table: Table = {label: [head] for label, head in best.items()}
    if "softmax" not in _controls(config):
        del table["softmax"]  # which was fitted to find the weight decay
    if not config.heads:
        return table, search.heads
    ensemble = _bootstrap(
        search, best.get(f"{CHOSEN_LABEL} with background", best[CHOSEN_LABEL]), config.heads
    )
    return {**table, ensemble.candidate.label: [ensemble]}, [*search.heads, ensemble]


def _controls(config: AdaptConfig) -> list[str]:
    """The controls, with the softmax head that a Laplace approximation is centred on."""
    return [*config.controls, *(["softmax"] if config.laplace else [])]


def _bootstrap(search: HeadSearch, head: FittedHead, members: int) -> EnsembleHead:
    """Heads of the same setting, each fitted to rows drawn with replacement."""
    weights = bootstrap_weights(members, len(search.design))
    fitted = search.fit([head.candidate] * members, head, row_weights=weights)
    made = EnsembleHead(
        replace(head.candidate, members=members),
        head.weight,
        head.bias,
        converged=all(one.converged for one in fitted),
        iterations=max(one.iterations for one in fitted),
        gap=max(one.gap or 0.0 for one in fitted),
        weights=torch.stack([one.weight for one in fitted]),
        biases=torch.stack([one.bias for one in fitted]),
    )
    return replace(made, validation=scored(predicted(made, search.evaluator)))


def _by_adam(
    sets: FeatureSets, classes: int, init: Init | None, config: AdaptConfig, on_progress: OnProgress | None
) -> tuple[Table, list[FittedHead]]:
    """Heads of every setting and seed by the paper's protocol; the mean over seeds chooses the setting."""
    fitted = fit_by_adam(
        sets.train,
        sets.validation,
        [*_wanted(classes, config, has_ids=sets.train.targets.dim() == 1)],
        classes,
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        init=init,
        on_progress=on_progress,
    )
    settings: dict[str, list[FittedHead]] = {}
    for head in fitted:
        settings.setdefault(replace(head.candidate, seed=0).name, []).append(head)
    means = [
        _with_mean_nll(heads) for heads in settings.values() if heads[0].candidate.kind == "belief_matching"
    ]
    finite = [one for one in means if math.isfinite(one.nll or math.nan)]
    if not finite:
        raise fail("adapt", "`protocol` paper must end with a finite loss, but every head diverged.")
    chosen = strongest_prior(finite).candidate
    table: Table = {}
    for heads in settings.values():
        one = heads[0].candidate
        if one.kind == "belief_matching" and replace(one, seed=0) != replace(chosen, seed=0):
            continue
        if one.kind == "label_smoothing" and one.options["matched_kl_weight"] != chosen.kl_weight:
            continue
        table[one.label] = heads
    return table, fitted


def _wanted(classes: int, config: AdaptConfig, *, has_ids: bool) -> Iterator[Candidate]:
    """Every λ and prior, and the controls, for each seed."""
    weights = default_kl_weights(classes) if config.kl_weights is None else config.kl_weights
    for seed in config.seeds:
        for prior in config.priors:
            more = {} if prior == 1 else {"prior": prior}
            for one in weights:
                yield Candidate("belief_matching", {"kl_weight": one, **more}, seed=seed)
        if "softmax" in _controls(config):
            yield Candidate("softmax", seed=seed)
        if "label_smoothing" in config.controls:
            for one in weights:
                yield Candidate("label_smoothing", {"matched_kl_weight": one}, seed=seed)
        if "evidential" in config.controls and has_ids:
            yield Candidate("evidential", seed=seed)


def _with_mean_nll(heads: Sequence[FittedHead]) -> FittedHead:
    """The first of these heads with the mean NLL of all."""
    first = heads[0]
    assert first.validation is not None
    mean = fmean(math.nan if one.nll is None else one.nll for one in heads)
    return replace(first, validation=first.validation._replace(nll=mean))


def _calibrated(table: Table, evaluator: Evaluator, notes: list[str]) -> Table:
    """Every line with a temperature, and with vector scaling where that is better still."""
    found: Table = {}
    for heads in table.values():
        head = heads[0]
        if not head.is_linear or head.candidate.kind == "evidential":
            continue
        if (why := why_no_calibration(head)) is not None:
            notes[:] = dict.fromkeys([*notes, why])
            continue
        scaled = calibrated(head, evaluator, "temperature")
        found[scaled.candidate.label] = [scaled]
        why = why_no_vector_scaling(evaluator, len(head.bias))
        if why is not None:
            notes[:] = dict.fromkeys([*notes, why])
            continue
        vector = calibrated(head, evaluator, "vector_scaling")
        if (vector.nll or math.inf) < (scaled.nll or math.inf):
            found[vector.candidate.label] = [vector]
    return found


def _laplace(table: Table, sets: FeatureSets, found: LabelSet, notes: list[str]) -> Table:
    """A Laplace approximation of the existing head, or of each fresh softmax head; or why there is none."""
    if (why := why_no_laplace(sets.train, found.classes)) is not None:
        warnings.warn(f"adapt: {why}; the comparison goes without.", stacklevel=level_of_caller())
        notes.append(why)
        return {}
    around = table["untouched" if found.kind == "same" else "softmax"]
    return {"laplace": [laplace_head(head, sets.train, sets.validation) for head in around]}


def _in_order(table: Mapping[str, list[FittedHead]]) -> Table:
    def place(label: str) -> tuple[int, str]:
        kind = next(index for index, name in enumerate(_ORDER) if label.startswith(name))
        return kind, label

    return {label: table[label] for label in sorted(table, key=place)}


def _choose(table: Mapping[str, list[FittedHead]], config: AdaptConfig) -> tuple[str, FittedHead]:
    """The line that is delivered, and its best head.

    Of belief matching the line with most of what was asked for: bootstrap heads, background, plain. With a
    temperature only if that lowers the NLL by more than `MOST_RISE`, since it blurs the meaning of λ.
    """
    best = {label: min(heads, key=_nll) for label, heads in table.items()}
    if config.choose == "best":
        able = {label: head for label, head in best.items() if head.candidate.kind != "laplace"}
        done = {label: head for label, head in able.items() if head.converged} or able
        label = min(done, key=lambda label: _nll(done[label]))
        return label, done[label]
    plain = [label for label in table if label.startswith(CHOSEN_LABEL) and " + " not in label]
    label = max(plain, key=len)
    scaled = f"{label} + temperature"
    if scaled in best and _nll(best[scaled]) < (1 - MOST_RISE) * _nll(best[label]):
        label = scaled
    return label, best[label]


def _best(table: Mapping[str, list[FittedHead]], chosen: FittedHead, evaluator: Evaluator) -> BestHead:
    able = {label: min(heads, key=_nll) for label, heads in table.items()}
    done = {label: head for label, head in able.items() if head.converged} or able
    label = min(done, key=lambda label: _nll(done[label]))
    difference = evaluator.row_nll(chosen) - evaluator.row_nll(done[label])
    error = difference.std().item() / math.sqrt(max(1, len(difference))) if len(difference) > 1 else math.nan
    return BestHead(label, _nll(done[label]), _nll(chosen) - _nll(done[label]), error)


def _nll(head: FittedHead) -> float:
    return math.inf if head.nll is None or not math.isfinite(head.nll) else head.nll


def _unfinished(table: Mapping[str, Iterable[FittedHead]]) -> list[str]:
    """Lines whose heads did not converge."""
    labels = [label for label, heads in table.items() if not all(one.converged for one in heads)]
    if not labels:
        return []
    return [f"these heads have not converged and are compared with no other: {', '.join(labels)}"]


def _warned(diagnostics: list[str]) -> list[str]:
    """Each as a warning; and as they are, for the notes."""
    for diagnostic in diagnostics:
        warnings.warn(f"adapt: {diagnostic}.", stacklevel=level_of_caller())
    return diagnostics


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
