"""The analysis of votes: which items are settled, which to ask about next, what stopping early saves."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from statistics import fmean, geometric_mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import asdict, replace
from torch import Tensor

from beliefmatch._environment import needs, provenance
from beliefmatch._errors import ArgumentWarning
from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail, level_of_caller, naming_arguments, warn
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features, features_digest
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.stored import features_from_file
from beliefmatch.data.formats import open_arrays
from beliefmatch.data.predictions import read_predictions
from beliefmatch.data.votes import SPELLINGS, Form, VoteColumns, Votes, names_in, read_votes
from beliefmatch.experiments.votes_record import (
    LARGEST_PANEL,
    AnnotatorRecord,
    ItemRecord,
    PrecisionRecord,
    SimulatedRule,
    Simulation,
    StoppingPoint,
    VotesConfig,
    VotesRecord,
)
from beliefmatch.votes import (
    FittedBelief,
    UnboundedScale,
    expected_gain,
    fit_class_prior,
    fitted_belief,
    fitted_scale,
    lead,
    log_likelihood_of_draws,
    prob_of_majority,
    tempered,
)

__all__ = [
    "ItemTable",
    "ModelBelief",
    "VotesInput",
    "analyse_votes",
    "annotator_records",
    "item_rows",
    "read_inputs",
    "require_analysable",
    "simulate",
]

OnStep = Callable[[str], None]
NO_MODEL = "votes alone, without a model"
OWN_PRECISION = "model, its own precision times one scale"
ONE_PRECISION = "model, one precision for all items"
SOFTMAX_HEAD = "softmax head, one precision for all items"
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_CALLER = "votes"
_MOST_REPLAYED = 20_000
_FOLDS = 5
_BINS = 20


class ModelBelief(NamedTuple):
    """Beliefs of a model about the items before any vote."""

    name: str
    logits: Tensor
    """Shape (N, K)."""
    has_precision: bool
    """Whether the rows have a precision, which may mean something or not: logits do, probabilities do not."""
    fits_temperature: bool = False
    """Whether a temperature is fitted with the precision: a network of unknown training may be too sure."""
    softmax: Tensor | None = None
    """Logits of a softmax head that is fitted on the same features, to compare a replay with."""

    @property
    def sources(self) -> tuple[str, ...]:
        """What the precision of an item may come from."""
        return (*([OWN_PRECISION] if self.has_precision else []), ONE_PRECISION)

    def fit(self, source: str, counts: Tensor, items: Tensor, max_votes: int) -> FittedBelief:
        """Scale and temperature of a precision, from the votes of some items."""
        one, z, votes = source == ONE_PRECISION, self.logits[items], counts[items]
        if self.fits_temperature:
            return fitted_belief(z, votes, one_precision=one, max_votes=max_votes)
        scale, gain = fitted_scale(tempered(z, 1.0, one), votes, max_votes=max_votes)
        return FittedBelief(scale, 1.0, gain)

    def log_alpha(self, source: str, fit: FittedBelief, items: Tensor) -> Tensor:
        """Log-concentrations of some items before any vote."""
        rows = tempered(self.logits[items], fit.temperature, source == ONE_PRECISION)
        return rows + np.log(fit.scale)


class VotesInput(NamedTuple):
    """Votes, and what a model says about the same items."""

    votes: Votes
    model: ModelBelief | None = None


class ItemTable(NamedTuple):
    """What is known of every item, in their order."""

    consensus: Tensor
    prob_majority: Tensor
    settled: Tensor
    gain: Tensor
    """Of one more vote; 0 for complete panels, and for settled items, where it is not asked for."""
    probs: Tensor
    """Mean of the belief after the votes, shape (N, K)."""

    @property
    def ask_order(self) -> Tensor:
        """Items to ask about, the largest gain first; settled and complete ones are left out."""
        order = self.gain.argsort(descending=True, stable=True)
        return order[(self.gain[order] > 0) & ~self.settled[order]]


# Input


def read_inputs(
    path: str,
    *,
    form: Form = "auto",
    columns: VoteColumns,
    class_names: Sequence[str] | None = None,
    repeats: bool = False,
    predictions: str | None = None,
    features: str | None = None,
) -> VotesInput:
    """Votes with the predictions of a model, or with features on which a model is fitted.

    Rows of predictions and features belong to items by a column or array of items, such as `item`; without
    one by their order, which is that of the rows of wide votes, and the numbers of the items in long votes.

    Args:
        path: The votes.
        form: Of the votes.
        columns: Names of the columns of the votes.
        class_names: Classes in the order of the predictions.
        repeats: Whether an annotator may vote several times for an item.
        predictions: File with logits or probabilities.
        features: File with features; heads are cross-fitted on the votes, so that no item is predicted by a
            head that has seen its votes.
    """
    if predictions is not None and features is not None:
        raise fail(_CALLER, "`predictions` and `features` must not both be given.")

    def read(names: Sequence[str] | None) -> Votes:
        return read_votes(path, form=form, columns=columns, class_names=names, repeats=repeats)

    votes = read(class_names)
    if predictions is None and features is None:
        return VotesInput(votes)
    if features is not None:
        found = features_from_file(features, labelled=False, argument="features")
        rows = torch.tensor(np.asarray(found.rows), dtype=torch.float32)
        votes, rows = _aligned(votes, features, rows, "features", columns.item)
        return VotesInput(votes, _fitted_on_features(votes, rows))
    assert predictions is not None
    with naming_arguments(_CALLER, path="predictions"):
        given = read_predictions(predictions, labelled=False, class_names=class_names)
    classes = given.values.shape[1]
    if class_names is None:
        votes = _with_classes_of(votes, read, classes, given.class_names, predictions)
    logits = given.values.double() if given.kind == "logits" else given.values.double().log()
    votes, logits = _aligned(votes, predictions, logits.clamp(min=-1e3), "predictions", columns.item)
    return VotesInput(votes, ModelBelief(predictions, logits, given.kind == "logits", True))


def _with_classes_of(
    votes: Votes,
    read: Callable[[Sequence[str] | None], Votes],
    classes: int,
    names: Sequence[str] | None,
    predictions: str,
) -> Votes:
    """The votes with the classes of the predictions in their order."""
    if names is not None:
        return read(names)
    numbers = [f"{k}" for k in range(classes)]
    if set(votes.class_names) <= set(numbers):
        return read(numbers)
    if votes.form == "counts" and len(votes.class_names) == classes:
        order = {"classes of predictions": "the order of the columns of counts"}
        return replace_fields(votes, recognised={**(votes.recognised or {}), **order})
    expected = f"be given in the order of the {classes} classes of {predictions}"
    received = f"the labels {', '.join(votes.class_names[:8])} in the votes"
    raise fail(_CALLER, f"`class_names` must {expected}, got {received}.")


def _aligned(
    votes: Votes, path: str, values: Tensor, argument: str, column: str | None
) -> tuple[Votes, Tensor]:
    """Votes and rows of the same items; items that have a row and no votes come last.

    The rows are named by the column of the items of the votes, or by one of the default spellings.
    """
    field, names = _row_names(path, column)
    by = "their order" if field is None else field
    votes = replace_fields(votes, recognised={**(votes.recognised or {}), f"rows of {argument} by": by})
    if names is None:
        if column is not None:
            taken = "in the order of the items" if votes.form != "long" else "for the items numbered from 0"
            warn(_CALLER, f"`{argument}` {path} has no column {column!r}; its rows are taken {taken}.")
        if votes.form != "long":
            if len(values) != len(votes.items):
                expected = f"a row for each of the {len(votes.items)} items, or name its items"
                raise fail(_CALLER, f"`{argument}` must have {expected}, got {len(values)} rows in {path}.")
            return votes, values
        names = [f"{row}" for row in range(len(values))]
    places = {name: row for row, name in enumerate(names)}
    missing = next((item for item in votes.items if item not in places), None)
    if missing is not None:
        expected = "a row for each item, named by a column or array `item`, or numbered from 0"
        raise fail(_CALLER, f"`{argument}` must have {expected}, got none for {missing!r} in {path}.")
    known = set(votes.items)
    others = [name for name in names if name not in known]
    items = (*votes.items, *others)
    counts = torch.cat([votes.counts, votes.counts.new_zeros(len(others), len(votes.class_names))])
    order = torch.tensor([places[item] for item in items])
    return replace_fields(votes, items=items, counts=counts), values[order]


def _row_names(path: str, column: str | None) -> tuple[str | None, list[str] | None]:
    """Name of the column that names the rows, and the names, which differ."""
    file = open_arrays(path, caller=_CALLER)
    if column is None or column not in file.names:
        field = file.find("item", (*SPELLINGS["item"], "items"), first=True)
        if field is None:
            return None, None
        column = field.name
    names, seen = [name or "" for name in names_in(file, column)], set[str]()
    for name in names:
        if name in seen:
            raise fail(_CALLER, f"`{column}` of {path} must name each row once, got {name!r} twice.")
        seen.add(name)
    return column, names


def _fitted_on_features(votes: Votes, rows: Tensor) -> ModelBelief:
    """Heads of belief matching, each fitted on the votes of four fifths of the items, applied to the rest.

    λ and the weight decay are chosen once, on a part of all items, and are the same for the five heads. So is
    the weight decay of softmax heads, which are a control.
    """
    voted = votes.counts.sum(1) > 0
    if int(voted.sum()) < 10 * _FOLDS:
        expected = f"at least {10 * _FOLDS} items with votes to fit on"
        raise fail(_CALLER, f"`features` must have {expected}, got {int(voted.sum())}.")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    logits, of_softmax = torch.empty(2, len(rows), len(votes.class_names), dtype=torch.float64)
    config = AdaptConfig(labels="new", controls=("softmax",), vote_scale=False)  # all items have one scale
    with _warning_of_features():
        chosen, control = (head.candidate for head in _heads(votes, rows, order[voted[order]], config))
    config = replace(config, kl_weights=(chosen.kl_weight,))
    for fold in range(_FOLDS):
        held_out = torch.zeros(len(rows), dtype=torch.bool)
        held_out[order[fold::_FOLDS]] = True
        usable = order[(voted & ~held_out)[order]]
        with warnings.catch_warnings():  # the choice has warned of all items
            warnings.simplefilter("ignore", ArgumentWarning)
            decays = chosen.weight_decay, control.weight_decay
            configs = (replace(config, weight_decays=(decay,)) for decay in decays)
            (head, _), (_, softmax) = (_heads(votes, rows, usable, one) for one in configs)
        belief = head.predict(rows[held_out]).belief
        assert belief is not None
        logits[held_out] = belief.log_alpha.double()
        of_softmax[held_out] = (rows[held_out] @ softmax.weight.t() + softmax.bias).double()
    return ModelBelief("a head fitted on features", logits, has_precision=True, softmax=of_softmax)


def _heads(votes: Votes, rows: Tensor, items: Tensor, config: AdaptConfig) -> tuple[FittedHead, FittedHead]:
    """Heads of belief matching and softmax on four fifths of some items; the others choose among them."""
    parts = items[len(items) // 5 :], items[: len(items) // 5]
    train, validation = (_features(rows[part], votes.counts[part].float()) for part in parts)
    with naming_arguments(_CALLER, train="features", validation="features"):
        sets = FeatureSets(train, validation)
        made = refit(sets, classes=len(votes.class_names), adapt_config=config)
    return made.chosen, made.table["softmax"][0]


@contextmanager
def _warning_of_features() -> Iterator[None]:
    """Let warnings about training and validation rows name the features that the user gave."""
    with warnings.catch_warnings(record=True) as held:
        warnings.simplefilter("always", ArgumentWarning)
        yield
    for one in held:
        if isinstance(one.message, ArgumentWarning):
            text = one.message.message
            for argument in ("train", "validation"):
                text = text.replace(f"`{argument}`", "`features`")
            warn(_CALLER, text)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _features(rows: Tensor, counts: Tensor) -> Features:
    values = rows.numpy()
    return Features(values, counts, features_digest(values, counts))


# Analysis


def analyse_votes(
    given: VotesInput,
    config: VotesConfig,
    *,
    replay: bool = False,
    dawid_skene: bool = False,
    command: Sequence[str] = (),
    on_step: OnStep = lambda _: None,
) -> tuple[VotesRecord, ItemTable]:
    """The record of an analysis, and what is known of every item.

    Args:
        given: Votes, and what a model says about the items.
        config: Panel, confidence and the like.
        replay: Whether the votes in hand are replayed, to show what stopping would have saved.
        dawid_skene: Whether the consensus is held against that of Dawid and Skene's model, by crowd-kit.
        command: For the record.
        on_step: Called with what is being done.
    """
    began = time.perf_counter()
    votes, model = given
    require_analysable(given, config, replay=replay, dawid_skene=dawid_skene)
    on_step("fitting the belief")
    log_alpha, precisions, prior = _belief(votes.counts, model, config)
    model_gain = None if model is None else _model_gain(log_alpha, votes.counts, config)
    on_step("items")
    table = _item_table(log_alpha, votes.counts, config)
    on_step("annotators")
    annotators = annotator_records(votes, log_alpha)
    control = _dawid_skene(votes, table) if dawid_skene else None
    simulation = simulate(given, config, on_step=on_step) if replay else None
    cast, settled = votes.counts.sum(1), table.settled
    left = (config.panel - cast).clamp(min=0)
    disputed = _disputed(votes.counts, table)[: config.shown]
    bins = (table.prob_majority * _BINS).long().clamp(max=_BINS - 1)
    record = VotesRecord(
        source=votes.source,
        form=votes.form,
        recognised=votes.recognised or {},
        class_names=list(votes.class_names),
        items=len(votes.items),
        votes=votes.total,
        annotators=len(votes.annotators),
        belief=NO_MODEL if model is None else f"{model.name}: {precisions[0].name}",
        scale=precisions[0].scale if precisions else None,
        prior=None if prior is None else prior.exp().tolist(),
        settled=int(settled.sum()),
        votes_saved=int(left[settled].sum()),
        votes_left=int(left[~settled].sum()),
        expected_error=(1 - table.prob_majority).mean().item(),
        expected_error_settled=(1 - table.prob_majority[settled]).mean().item() if settled.any() else None,
        disputed=[_item_record(votes, table, i) for i in disputed.tolist()],
        ask_next=[_item_record(votes, table, i) for i in table.ask_order[: config.shown].tolist()],
        confidences=torch.bincount(bins, minlength=_BINS).tolist(),
        annotator_records=annotators,
        dawid_skene=control,
        simulation=simulation,
        settings=asdict(config),
        command=list(command),
        precisions=precisions,
        largest_votes=int(cast.max()),
        model_gain=model_gain,
        undecided=int(_is_undecided(votes.counts, left).sum()),
        **provenance(time.perf_counter() - began, "beliefmatch", "torch", "numpy"),
    )
    for doubt in (*record.model_doubts(), *record.replay_doubts()):
        warn(_CALLER, doubt)
    return record, table


def require_analysable(
    given: VotesInput, config: VotesConfig, *, replay: bool = False, dawid_skene: bool = False
) -> None:
    """Raise what `analyse_votes` would raise about its input, before any work.

    Args:
        given: Votes, and what a model says about the items.
        config: Panel, confidence and the like.
        replay: Whether the votes in hand are to be replayed.
        dawid_skene: Whether the consensus is to be held against that of Dawid and Skene's model.
    """
    votes, model = given
    if not replay:
        _require_panel(votes, config)
    if model is not None and not (votes.counts.sum(1) >= 2).any():
        fact = "must have items with two votes or more, from which the precision of the model is fitted"
        raise fail(_CALLER, f"`path` {fact}, got one vote an item at most.")
    if replay:
        _require_whole_panels(votes, config)
    if dawid_skene:
        if votes.rows is None:
            raise fail(_CALLER, "`dawid_skene` needs votes with annotators, got counts without them.")
        _crowdkit()


def _require_panel(votes: Votes, config: VotesConfig) -> None:
    most = votes.counts.sum(1)
    if most.max() > config.panel:
        item, count = votes.items[int(most.argmax())], int(most.max())
        remedy = f"give `panel` as {count}, or replay panels of {config.panel} by `simulate`"
        if count > LARGEST_PANEL:
            remedy = f"keep at most {LARGEST_PANEL} votes of each item, the largest panel"
        fact = f"`panel` must not be smaller than the votes of an item, got {config.panel}"
        raise fail(_CALLER, f"{fact} where {item!r} has {count}; {remedy}.")


def _require_whole_panels(votes: Votes, config: VotesConfig) -> Tensor:
    """The items with a whole panel, at least two: one half is fitted on, the other replayed."""
    cast = votes.counts.sum(1)
    whole = (cast >= config.panel).nonzero().flatten()
    if len(whole) < 2:
        expected = f"at least two items with {config.panel} votes, a whole panel"
        largest = 0 if len(cast) < 2 else int(cast.topk(2).values[1])
        remedy = f"give `panel` as {largest} or less" if largest else "add votes for other items"
        raise fail(_CALLER, f"`simulate` needs {expected}, got {len(whole)}; {remedy}.")
    return whole


def _belief(
    counts: Tensor, model: ModelBelief | None, config: VotesConfig
) -> tuple[Tensor, list[PrecisionRecord], Tensor | None]:
    """Log-concentrations before any vote, with the fitted precisions, likeliest first, or the fitted prior.

    Logits may be those of softmax, whose precision means nothing: one precision for all items is fitted too.
    """
    if model is None:
        prior = fit_class_prior(counts, max_votes=config.max_votes)
        return prior.expand_as(counts), [], prior
    everything = torch.arange(len(counts))
    fits, held = dict[str, FittedBelief](), dict[str, list[warnings.WarningMessage]]()
    for name in model.sources:
        with warnings.catch_warnings(record=True) as held[name]:
            warnings.simplefilter("always", UnboundedScale)
            fits[name] = model.fit(name, counts, everything, config.max_votes)
    names = sorted(fits, key=lambda name: -fits[name].gain)
    for one in held[names[0]]:  # of the precision that is used
        warnings.warn(one.message, stacklevel=level_of_caller())
    found = [
        PrecisionRecord(name, fits[name].scale, fits[name].gain, fits[name].temperature) for name in names
    ]
    return model.log_alpha(names[0], fits[names[0]], everything), found, None


def _item_table(log_alpha: Tensor, counts: Tensor, config: VotesConfig) -> ItemTable:
    """An item with as many votes as the panel or more is complete: all its votes are its panel."""
    log_alpha, counts, places = _distinct(log_alpha, counts)
    is_complete = counts.sum(1) >= config.panel
    majority = _shares(counts)
    majority[~is_complete] = prob_of_majority(log_alpha[~is_complete], config.panel, counts[~is_complete])
    best, consensus = majority.max(1)
    settled = best >= config.confidence
    gain = torch.zeros_like(best)
    is_open = ~settled & ~is_complete
    gain[is_open] = expected_gain(log_alpha[is_open], config.panel, counts[is_open])
    probs = _after(log_alpha, counts)
    return ItemTable(*(x[places] for x in (consensus, best, settled, gain, probs)))


def _model_gain(log_alpha: Tensor, counts: Tensor, config: VotesConfig) -> float:
    """Nats by which all votes are likelier under these beliefs than under one Dirichlet for all items."""
    with warnings.catch_warnings():  # the precision of the model is the one that is used
        warnings.simplefilter("ignore", UnboundedScale)
        alone = fit_class_prior(counts, max_votes=config.max_votes).expand_as(counts)
    of_model, of_votes = (log_likelihood_of_draws(z, counts, config.max_votes) for z in (log_alpha, alone))
    return of_model - of_votes


def _shares(counts: Tensor) -> Tensor:
    """The classes with the most votes of each item, which share one equally."""
    is_most = (counts == counts.amax(1, keepdim=True)).double()
    return is_most / is_most.sum(1, keepdim=True)


def _is_undecided(counts: Tensor, left: Tensor) -> Tensor:
    """Whether the votes that are left can still make or break a tie: then the belief has a say."""
    return (left > 0) & (lead(counts) <= left)


def _distinct(log_alpha: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that differ, and the place of each row among them: without a model most are alike."""
    both = torch.cat([log_alpha, counts], 1)
    rows, places = torch.unique(both, dim=0, return_inverse=True)
    return *rows.split(log_alpha.shape[1], 1), places


def _after(log_alpha: Tensor, counts: Tensor) -> Tensor:
    """Mean of the belief after the votes."""
    return torch.where(counts > 0, torch.logaddexp(log_alpha, counts.log()), log_alpha).softmax(1)


def _disputed(counts: Tensor, table: ItemTable) -> Tensor:
    """Items with votes, the least sure majority first, then by the entropy of their votes.

    A complete panel without a tie is sure of its majority, however much its votes differ.
    """
    items = counts.any(1).nonzero().flatten()
    differ = torch.special.entr(counts[items] / counts[items].sum(1, keepdim=True)).sum(1)
    keys = -differ.round(decimals=12).numpy(), table.prob_majority[items].round(decimals=12).numpy()
    return items[torch.from_numpy(np.lexsort(keys))]


def _item_record(votes: Votes, table: ItemTable, item: int) -> ItemRecord:
    return ItemRecord(
        name=votes.items[item],
        votes=[int(c) for c in votes.counts[item]],
        consensus=int(table.consensus[item]),
        prob_majority=table.prob_majority[item].item(),
        settled=bool(table.settled[item]),
        gain=table.gain[item].item(),
    )


def annotator_records(votes: Votes, log_alpha: Tensor) -> list[AnnotatorRecord]:
    """Agreement of each annotator with the consensus of the others, least expected first.

    All votes of an annotator for an item are left out of the others, where there are several.
    """
    if votes.rows is None:
        return []
    people = len(votes.annotators)
    own = _OwnVotes(votes)
    number, agreed, expected, variance = torch.zeros(4, people, dtype=torch.float64)
    for rows in votes.rows.split(100_000):
        item, annotator, label = rows.unbind(1)
        others = votes.counts[item] - own.of(item, annotator)
        probability, consensus = _after(log_alpha[item], others).max(1)
        has_others = others.sum(1) > 0
        weight = has_others.double()
        number.index_add_(0, annotator, weight)
        agreed.index_add_(0, annotator, weight * (consensus == label))
        expected.index_add_(0, annotator, weight * probability)
        variance.index_add_(0, annotator, weight * probability * (1 - probability))
    found = []
    for place in range(people):
        n = int(number[place])
        if n == 0:
            continue
        spread = variance[place].sqrt().item()
        deviation = (agreed[place] - expected[place]).item() / spread if spread > 0 else 0.0
        found.append(
            AnnotatorRecord(
                votes.annotators[place],
                n,
                (agreed[place] / n).item(),
                (expected[place] / n).item(),
                deviation,
            )
        )
    return sorted(found, key=lambda one: one.deviation)


class _OwnVotes:
    """Votes of an annotator for an item, who may have several."""

    def __init__(self, votes: Votes) -> None:
        assert votes.rows is not None
        self.people, self.classes = len(votes.annotators), len(votes.class_names)
        item, annotator, label = votes.rows.unbind(1)
        codes = (item * self.people + annotator) * self.classes + label
        codes, self.number = codes.unique(return_counts=True)
        self.voter, self.label = codes // self.classes, codes % self.classes

    def of(self, item: Tensor, annotator: Tensor) -> Tensor:
        """Counts of shape (V, K)."""
        voter = item * self.people + annotator
        first = torch.searchsorted(self.voter, voter)
        labels = torch.searchsorted(self.voter, voter, right=True) - first
        row = torch.arange(len(voter)).repeat_interleave(labels)
        nth = torch.arange(len(row)) - (labels.cumsum(0) - labels)[row]
        place = first[row] + nth
        counts = torch.zeros(len(voter), self.classes, dtype=torch.float64)
        counts[row, self.label[place]] = self.number[place].double()
        return counts


def _dawid_skene(votes: Votes, table: ItemTable) -> dict[str, float]:
    """How often the consensus of Dawid and Skene's model differs from ours and from the plurality."""
    assert votes.rows is not None
    import pandas

    rows = votes.rows.numpy()
    frame = pandas.DataFrame({"task": rows[:, 0], "worker": rows[:, 1], "label": rows[:, 2]})
    with warnings.catch_warnings():  # of pandas, about calls of crowd-kit
        warnings.simplefilter("ignore")
        found = _crowdkit().DawidSkene(n_iter=100).fit_predict(frame)
    items = torch.tensor(found.index.to_numpy())
    labels = torch.tensor(found.to_numpy())
    plurality = votes.counts[items]
    is_plurality = plurality.gather(1, labels[:, None])[:, 0] == plurality.amax(1)
    return {
        "items": float(len(items)),
        "differs_from_consensus": (labels != table.consensus[items]).double().mean().item(),
        "differs_from_plurality": (~is_plurality).double().mean().item(),
    }


def _crowdkit() -> Any:
    with needs("crowdkit", extra="votes", caller=_CALLER):
        from crowdkit import aggregation
    return aggregation


# Simulation


def simulate(
    given: VotesInput, config: VotesConfig, *, of_all_votes: bool = False, on_step: OnStep = lambda _: None
) -> Simulation:
    """Replay the votes of the items with a whole panel, and stop as soon as the majority is sure enough.

    The panel is drawn from the votes of an item, which may be more.

    The truth is the majority of the panel, or `of_all_votes` of the item; where it ties, an item errs by the
    share of the classes that were not chosen. Scales and priors are fitted on the other half of the items,
    and never on those replayed.
    """
    votes, model = given
    whole = _require_whole_panels(votes, config)
    confidences = sorted({*CONFIDENCES, config.confidence})
    beliefs: dict[str, tuple[ModelBelief, str] | None] = {NO_MODEL: None}
    if model is not None:
        beliefs |= {source: (model, source) for source in model.sources}
        if model.softmax is not None:
            beliefs[SOFTMAX_HEAD] = ModelBelief(SOFTMAX_HEAD, model.softmax, True), ONE_PRECISION
    runs: dict[str, list[list[StoppingPoint]]] = {name: [] for name in beliefs}
    fits: dict[str, list[FittedBelief]] = {name: [] for name in beliefs}
    fixed: list[list[StoppingPoint]] = []
    replayed = 0
    for repetition in range(config.repetitions):
        on_step(f"replay {repetition + 1} of {config.repetitions}")
        rng = np.random.default_rng(derive_seed(config.seed, repetition))
        items = whole[torch.from_numpy(rng.permutation(len(whole)))][:_MOST_REPLAYED]
        replayed = len(items)
        prefixes = _prefixes(votes.counts[items], config.panel, rng)
        final = prefixes[-1]
        truth = votes.counts[items] if of_all_votes else final
        share = _shares(truth)
        fixed.append(_fixed(prefixes, share))
        halves = torch.arange(len(items)) % 2 == 0
        for name, belief in beliefs.items():
            log_alpha = torch.empty_like(final)
            for part in (halves, ~halves):
                fit_on, apply_to = items[~part], items[part]
                with warnings.catch_warnings():  # `analyse_votes` has warned of all items
                    warnings.simplefilter("ignore", UnboundedScale)
                    if belief is None:
                        log_alpha[part] = fit_class_prior(votes.counts[fit_on], max_votes=config.max_votes)
                        continue
                    of, source = belief
                    fit = of.fit(source, votes.counts, fit_on, config.max_votes)
                fits[name].append(fit)
                log_alpha[part] = of.log_alpha(source, fit, apply_to)
            runs[name].append(_stopped(log_alpha, prefixes, share, confidences))
    rules = [
        SimulatedRule(
            name,
            _averaged(points),
            fmean(fit.scale for fit in fits[name]) if fits[name] else None,
            geometric_mean(fit.temperature for fit in fits[name]) if fits[name] else None,
        )
        for name, points in runs.items()
    ]
    voted = int(votes.counts.any(1).sum())
    return Simulation(replayed, rules, _averaged(fixed), voted - len(whole))


def _prefixes(counts: Tensor, panel: int, rng: Any) -> list[Tensor]:
    """Counts of the first 0, 1, ... votes of a panel that is drawn from the votes of each item."""
    classes = counts.shape[1]
    votes = np.repeat(np.tile(np.arange(classes), len(counts)), counts.long().numpy().ravel())
    owner = np.repeat(np.arange(len(counts)), counts.sum(1).long().numpy())
    order = np.lexsort((rng.random(len(votes)), owner))
    starts = np.searchsorted(owner[order], np.arange(len(counts)))
    drawn = votes[order][starts[:, None] + np.arange(panel)]
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(drawn), classes).double()
    return [one_hot[:, :m].sum(1) for m in range(panel + 1)]


def _fixed(prefixes: Sequence[Tensor], share: Tensor) -> list[StoppingPoint]:
    """As many votes for every item; a tie of the votes so far is decided by lot."""
    found = []
    for m, counts in enumerate(prefixes[1:], 1):
        right = (_shares(counts) * share).sum(1)
        found.append(StoppingPoint(0.0, float(m), (1 - right).mean().item()))
    return found


def _stopped(
    log_alpha: Tensor, prefixes: Sequence[Tensor], share: Tensor, confidences: Sequence[float]
) -> list[StoppingPoint]:
    """Mean votes and error where voting on an item stops at the first sufficient probability of majority.

    The confidences ascend.
    """
    panel = len(prefixes) - 1
    best, right = torch.zeros(2, len(prefixes), len(share), dtype=share.dtype)
    going = torch.arange(len(share))
    for m, counts in enumerate(prefixes):
        rows, cast, places = _distinct(log_alpha[going], counts[going])
        best[m, going], consensus = (x[places] for x in prob_of_majority(rows, panel, cast).max(1))
        right[m, going] = share[going].gather(1, consensus[:, None])[:, 0]
        going = going[best[m, going] < confidences[-1]]  # the others have stopped at every confidence
    found = []
    for confidence in confidences:
        enough = best >= confidence
        enough[-1] = True
        stop = enough.double().argmax(0)
        error = 1 - right.gather(0, stop[None])[0]
        promised = 1 - best.gather(0, stop[None])[0]
        votes, errors, expected = (x.double().mean().item() for x in (stop, error, promised))
        found.append(StoppingPoint(confidence, votes, errors, promised=expected))
    return found


def _averaged(runs: Sequence[Sequence[StoppingPoint]]) -> list[StoppingPoint]:
    """Means and standard deviations over the repetitions."""

    def spread(values: list[float]) -> float:
        return stdev(values) if len(values) > 1 else 0.0

    found = []
    for points in zip(*runs, strict=True):
        votes, errors = [one.votes for one in points], [one.error for one in points]
        promises = [one.promised for one in points if one.promised is not None]
        found.append(
            StoppingPoint(
                points[0].confidence,
                fmean(votes),
                fmean(errors),
                spread(votes),
                spread(errors),
                fmean(promises) if promises else None,
            )
        )
    return found


def item_rows(votes: Votes, table: ItemTable) -> tuple[list[str], list[list[Any]]]:
    """Heading and rows of the table of all items."""
    rank = torch.zeros(len(votes.items), dtype=torch.int64)
    rank[table.ask_order] = torch.arange(1, len(table.ask_order) + 1)
    heading = ["item", "votes", "consensus", "prob_majority", "settled", "expected_gain", "ask_order"]
    heading += [f"prob_{name}" for name in votes.class_names]
    cast = votes.counts.sum(1).long().tolist()
    columns = zip(
        votes.items,
        cast,
        table.consensus.tolist(),
        table.prob_majority.tolist(),
        table.settled.tolist(),
        table.gain.tolist(),
        rank.tolist(),
        table.probs.tolist(),
        strict=True,
    )
    rows = [
        [
            item,
            n,
            votes.class_names[consensus],
            f"{prob:.6f}",
            f"{settled}".lower(),
            "" if settled else f"{gain:.6g}",
            place or "",
            *(f"{p:.6f}" for p in probs),
        ]
        for item, n, consensus, prob, settled, gain, place, probs in columns
    ]
    return heading, rows
