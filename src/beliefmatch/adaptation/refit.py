"""From features to a chosen head: heads of every kind fitted, one chosen, and the others to compare with.

Nothing here needs a network: features from files will do.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from beliefmatch._torch_state import fitting
from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.calibration import calibrations
from beliefmatch.adaptation.diagnostics import (
    LabelSet,
    choice_warnings,
    contamination,
    data_warnings,
    label_notes,
    label_set,
    require_sets,
    sentence,
    warn,
)
from beliefmatch.adaptation.ensemble import EnsembleHead, bootstrap_weights
from beliefmatch.adaptation.fitted import FittedHead, Init
from beliefmatch.adaptation.laplace_head import laplace_head, require_laplace, why_no_laplace
from beliefmatch.adaptation.paper_protocol import paper_heads
from beliefmatch.adaptation.result import Adaptation, BestHead, FeatureSets, Verdict
from beliefmatch.adaptation.scoring import Evaluator, risk_thresholds, score, untouched
from beliefmatch.adaptation.search import MAX_RISE, HeadSearch
from beliefmatch.adaptation.vote_scale import with_vote_scale

__all__ = ["fit_heads", "refit"]

_DEFAULT = AdaptConfig()
_CHOSEN = "belief matching"
_ORDER = ("untouched", "softmax", "label smoothing", "evidential", "laplace", _CHOSEN)
"""Beginnings of the labels, in the order of the lines."""
_ALWAYS = ("untouched + temperature", "softmax + temperature", "laplace")
"""Lines that the table shows besides the heads as they were fitted, the delivered one and the best."""

_NO_LOGITS = ("evidential", "laplace")
"""Kinds that are not delivered: a network's logits are read as log-concentrations or by softmax."""

_Table = dict[str, list[FittedHead]]
"""Heads, one for each seed, by the label of their line."""


def refit(
    sets: FeatureSets,
    *,
    classes: int | None = None,
    init: Init | None = None,
    adapt_config: AdaptConfig = _DEFAULT,
    on_progress: OnProgress | None = None,
) -> Adaptation:
    """Fit heads of every kind on the training features and choose one by the validation features.

    Options of one kind, such as λ, are chosen as `HeadSearch` says, on few validation rows by training rows
    too. Kinds, calibrations included, are compared by the validation rows alone: a calibration is fitted to
    these, so that it has no scores on others.

    Args:
        sets: Features of the data; `test` and `ood` are only kept.
        classes: K, where neither counts nor the existing head tell; else one more than the largest id.
        init: Weight and bias of the existing head, where there is one.
        adapt_config: What to fit and what to deliver.
        on_progress: Called with (fraction, description).

    Raises:
        ValueError: Features that do not match each other or the head, targets that do not fit the classes.
    """
    if adapt_config.batchnorm:
        fact = "`batchnorm` must be False for features alone: BatchNorm layers are trained on images"
        raise fail("refit", f"{fact}; use `adapt` with the network and its data.")
    with fitting():
        made = fit_heads(sets, classes=classes, init=init, adapt_config=adapt_config, on_progress=on_progress)
        return with_vote_scale(made)


def fit_heads(
    sets: FeatureSets,
    *,
    classes: int | None,
    init: Init | None,
    adapt_config: AdaptConfig,
    on_progress: OnProgress | None,
) -> Adaptation:
    """`refit` for a network, whose BatchNorm layers may be trained before its belief is scaled to votes."""
    if adapt_config.laplace:
        require_laplace()
    began = time.perf_counter()
    init = require_sets(sets, init)
    found = label_set(sets, classes=classes, init=init, labels=adapt_config.labels)
    old = init if found.kind == "same" else None
    verdict = contamination(sets.validation, train=sets.train, init=old, test=sets.test)
    _warn_of_validation(verdict, found, sets.val_fraction)
    notes = label_notes(sets, found, init) if adapt_config.labels == "auto" else []
    notes += _warned(data_warnings(sets, found, init))
    make = paper_heads if adapt_config.protocol == "paper" else _by_search
    as_fitted, fitted = make(sets, found.classes, old, adapt_config, on_progress)
    if old is not None:
        as_it_was = untouched(old, sets.validation)
        as_fitted, fitted = {"untouched": [as_it_was], **as_fitted}, [as_it_was, *fitted]
    evaluator, missing = Evaluator(sets.validation), list[str]()
    more = _calibrated(as_fitted, evaluator, missing) if adapt_config.protocol == "default" else {}
    if adapt_config.laplace:
        more |= _laplace(as_fitted, sets, found, missing)
    fitted = [*fitted, *(head for heads in more.values() for head in heads)]
    table = _in_order({**as_fitted, **more})
    lines = {label: min(heads, key=lambda head: head.selection_nll) for label, heads in table.items()}
    label, best = _delivered(lines, adapt_config), _lowest(lines)
    chosen, kept = lines[label], {*as_fitted, *_ALWAYS, label, best}
    table = {name: heads for name, heads in table.items() if name in kept}
    notes += _warned([*choice_warnings(chosen, lines["untouched"] if old else None), *_unfinished(table)])
    return Adaptation(
        chosen=chosen,
        label=label,
        table=table,
        best=_compared(chosen, lines[best], evaluator),
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
        notes=tuple(map(sentence, [*notes, *missing])),
    )


def _by_search(
    sets: FeatureSets, classes: int, init: Init | None, config: AdaptConfig, on_progress: OnProgress | None
) -> tuple[_Table, list[FittedHead]]:
    """The best head of each kind, fitted by the solver, and all that were tried."""
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
    fitted = search.heads
    if config.heads:
        centre = best.get(f"{_CHOSEN} with background", best[_CHOSEN])
        ensemble = _bootstrap(search, centre, config.heads)
        best[ensemble.candidate.label], fitted = ensemble, [*fitted, ensemble]
    if not config.needs_softmax:
        del best["softmax"]  # which was fitted to find the weight decay
    return {label: [head] for label, head in best.items()}, fitted


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
    return replace(made, validation=score(made, search.evaluator.features))


def _calibrated(table: _Table, evaluator: Evaluator, missing: list[str]) -> _Table:
    """Every line with a temperature, and with vector or matrix scaling where that is better still."""
    found: _Table = {}
    for head, *_ in table.values():
        if head.is_linear and head.candidate.kind != "evidential":
            scaled, why = calibrations(head, evaluator)
            found |= {one.candidate.label: [one] for one in scaled}
            if why is not None and why not in missing:
                missing.append(why)
    return found


def _laplace(table: _Table, sets: FeatureSets, found: LabelSet, missing: list[str]) -> _Table:
    """A Laplace approximation of the existing head, or of each fresh softmax head; or why there is none."""
    if (why := why_no_laplace(sets.train, found.classes)) is not None:
        warn(f"{why}; the comparison goes without.")
        missing.append(why)
        return {}
    around = table["untouched" if found.kind == "same" else "softmax"]
    return {"laplace": [laplace_head(head, sets.train, sets.validation) for head in around]}


def _in_order(table: _Table) -> _Table:
    def place(label: str) -> tuple[int, str]:
        kind = next(index for index, name in enumerate(_ORDER) if label.startswith(name))
        return kind, label

    return {label: table[label] for label in sorted(table, key=place)}


def _delivered(lines: Mapping[str, FittedHead], config: AdaptConfig) -> str:
    """The line that is delivered.

    Of belief matching the line with most of what was asked for: bootstrap heads, background, plain. With a
    temperature only if that lowers the NLL by more than `MAX_RISE`, since it blurs the meaning of λ. The
    best of all kinds is sought among those that the logits of a network can express.
    """
    if config.choose == "best":
        able = {label: head for label, head in lines.items() if head.candidate.kind not in _NO_LOGITS}
        return _lowest(able)
    plain = [label for label in lines if label.startswith(_CHOSEN) and " + " not in label]
    label = max(plain, key=len)
    scaled = f"{label} + temperature"
    is_better = scaled in lines and lines[scaled].selection_nll < (1 - MAX_RISE) * lines[label].selection_nll
    return scaled if is_better else label


def _lowest(lines: Mapping[str, FittedHead]) -> str:
    """The line of the lowest validation NLL among those that converged, or among all if none has."""
    able = {label: head for label, head in lines.items() if head.converged} or lines
    return min(able, key=lambda label: able[label].selection_nll)


def _compared(chosen: FittedHead, best: FittedHead, evaluator: Evaluator) -> BestHead:
    excess = evaluator.row_nll(chosen) - evaluator.row_nll(best)
    error = excess.std().item() / math.sqrt(len(excess)) if len(excess) > 1 else math.nan
    nll = best.selection_nll
    return BestHead(best.candidate.label, nll, chosen.selection_nll - nll, error)


def _unfinished(table: _Table) -> list[str]:
    """Lines whose heads did not converge."""
    labels = [label for label, heads in table.items() if not all(one.converged for one in heads)]
    if not labels:
        return []
    return [f"these heads have not converged and are compared with no other: {', '.join(labels)}"]


def _warned(diagnostics: list[str]) -> list[str]:
    """Each as a warning; and as they are, for the notes."""
    for diagnostic in diagnostics:
        warn(f"{diagnostic}.")
    return diagnostics


def _warn_of_validation(verdict: Verdict, found: LabelSet, val_fraction: float | None) -> None:
    """λ is never chosen silently on rows that were seen, or may have been."""
    remedy = "give `validation` data that it has not seen"
    if val_fraction is not None and found.kind == "same":
        warn(
            f"no `validation` data were given, so λ is chosen on {val_fraction:.0%} of `train`, on which the "
            f"network has probably been trained: heads look surer there than they are elsewhere; "
            f"{remedy}, such as a part of its test data. {verdict.why}"
        )
    elif val_fraction is not None:
        warn(
            f"no `validation` data were given, so {val_fraction:.0%} of `train` are held out to choose λ; "
            f"if the network was trained on these data, {remedy}."
        )
    elif verdict.seen:
        warn(f"λ is chosen on data that the network was trained on; {remedy}. {verdict.why}")
