"""The search for the best head of each kind, along paths with warm starts.

Softmax goes first, along weight decay, in the direction in which the validation NLL falls until it rises
again. All other heads take the weight decay that it chose, and start from its weights: label smoothing and
belief matching come to softmax as ε and λ go to 0. λ starts where it makes little difference and grows as
long as the validation NLL stays near the lowest. So few heads are fitted, and few of them from far away.

A few validation rows choose badly. Where there are few, and the head is new, the training rows choose too:
every candidate is fitted five more times without a fifth of them, in the same batch, and these rows count
like validation rows. An existing head has probably seen the training rows; then they choose nothing.
The choice between the kinds is made later, in `refit`, by the validation rows alone.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import OnProgress
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate, FittedHead, HeadScores, Init
from beliefmatch.adaptation.objectives import loss_of
from beliefmatch.adaptation.scoring import Evaluator, scorable
from beliefmatch.adaptation.solver import Design, solve
from beliefmatch.loss import LowTargetConfidence, belief_matching_loss

__all__ = ["MAX_RISE", "HeadSearch", "best_prior", "strongest_prior"]

_STEP = math.sqrt(10)  # between neighbours of a path
_FIRST_WEIGHT_DECAY, _MIN_WEIGHT_DECAY = 3.0, 0.03  # over the number of rows
_MAX_WEIGHT_DECAY = 10.0
_FIRST_DOUBT = 1e-3  # of λK, for one vote
_KL_WEIGHTS = (1e-9, 10.0)
_PLATEAU = 2e-3  # relative fall of the NLL below which a longer path is not worth its time
MAX_RISE = 0.01
"""Relative rise of the validation NLL that a stronger prior may cost."""
_PROBE = 15  # iterations after which a head whose validation NLL rises is given up
_EXPOSURE = 0.5  # weight of all background rows relative to all labelled ones (Hendrycks et al. 2019)
_NEAR, _FINE = 0.1, 0.01  # of the tolerance, where a fit starts close to its optimum
_FEW_ROWS = 200  # of validation, below which training rows choose too
_FOLDS = 5
_SOME_LOGITS = 100_000  # on which the scale of a first belief is fitted


class HeadSearch:
    """Fits heads, and keeps all that were tried in `heads`.

    Args:
        train: Features to fit on.
        validation: Features that neither the heads nor the network have seen; None for cross-validation
            alone.
        classes: K.
        init: Weight and bias of an existing head to start from.
        background: Rows of no class.
        config: What to try.
        row_weights: Weight of each row of `train`, in fits and in cross-validation; 1 by default.
        folds: For cross-validation, pairs of the rows to fit on and of those to choose on. By default five
            folds where `validation` is None or has few rows and the head is new.
        max_rise: Relative rise of the NLL that a stronger prior may cost.
        on_progress: Called with (fraction, description).
    """

    def __init__(
        self,
        train: Features,
        validation: Features | None,
        classes: int,
        *,
        init: Init | None = None,
        background: Features | None = None,
        config: AdaptConfig,
        row_weights: Tensor | None = None,
        folds: Sequence[tuple[np.ndarray, np.ndarray]] | None = None,
        max_rise: float = MAX_RISE,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.design = Design(train, background, classes, row_weights=row_weights)
        self._evaluator = None if validation is None else Evaluator(validation)
        self.classes, self.config, self.max_rise = classes, config, max_rise
        self.heads: list[FittedHead] = []
        self._on_progress = on_progress
        self._starts: dict[int, Init] = {}  # standardised weights by the identity of a head
        self._row_nll: dict[int, Tensor] = {}  # by the identity of a head, where training rows choose too
        self._weights = None if row_weights is None else row_weights[self.design.indices].float()
        few = self._evaluator is None or (init is None and len(self._evaluator) < _FEW_ROWS)
        if folds is None:
            folds = _dealt(train) if few else []
        self._folds = [_fold(train, self.design.indices, *one, row_weights) for one in folds]
        self._init = None if init is None else self.design.to_standardized(*init)

    @property
    def evaluator(self) -> Evaluator:
        """Scores on the validation rows."""
        assert self._evaluator is not None
        return self._evaluator

    def run(self) -> dict[str, FittedHead]:
        """Fit all kinds; the best head of each, by its label."""
        softmax = self.softmax()
        belief = best_prior([self.belief_matching(softmax, one) for one in self.config.priors], self.nll)
        best = [softmax, belief]
        controls = self.config.controls
        if "label_smoothing" in controls:
            best.append(self.label_smoothing(softmax))
        if "evidential" in controls and self.design.targets.dim() == 1:
            decay = softmax.candidate.weight_decay
            # not from zero: relu has no gradient there
            best += self.fit([Candidate("evidential", weight_decay=decay)], softmax)
        if self.design.n_background:
            best += [self.with_background(one) for one in (belief, softmax)]
        return {one.candidate.label: one for one in best}

    def fit(
        self,
        candidates: Sequence[Candidate],
        near: FittedHead | None = None,
        *,
        row_weights: Tensor | None = None,
        give_up: float = math.inf,
        tolerance: float | None = None,
    ) -> list[FittedHead]:
        """Fit candidates of one family together, from the weights of a head nearby or from zero.

        A head whose validation NLL is above `give_up` after some iterations is left as it is.
        """
        if self._on_progress is not None:
            names = f"{candidates[0].name} and {len(candidates) - 1} more" if candidates[1:] else ""
            self._on_progress(1 - 0.85 ** len(self.heads), f"fitting {names or candidates[0].name}")
        is_resampled = row_weights is not None
        folds = [] if is_resampled else self._folds
        copies = 1 + len(folds)  # the head itself, and one without each fold
        if folds:
            give_up = math.inf
            every = torch.ones(len(self.design), dtype=torch.float32)
            row_weights = torch.stack([every, *(one.kept for one in folds)])
            row_weights = row_weights.repeat(len(candidates), 1)
        if self._weights is not None:
            row_weights = self._weights.expand(len(candidates) * copies, -1) * (
                1.0 if row_weights is None else row_weights
            )
        batch = [one for one in candidates for _ in range(copies)]
        starts = [self._start(one, near) for one in candidates for _ in range(copies)]
        init = torch.stack([weight for weight, _ in starts]), torch.stack([bias for _, bias in starts])

        def is_hopeless(weight: Tensor, bias: Tensor) -> bool:
            scores = self.evaluator.scores(candidates, *self.design.to_raw(weight, bias))
            return min(one.nll for one in scores) > give_up

        solution = solve(
            self.design,
            loss_of(batch, self.classes),
            torch.tensor([one.weight_decay for one in batch], dtype=torch.float32),
            init,
            row_weights=row_weights,
            background=candidates[0].background,
            tolerance=tolerance or self.config.tolerance,
            probe=(_PROBE, is_hopeless) if math.isfinite(give_up) else None,
        )
        weight, bias = self.design.to_raw(solution.weight, solution.bias)
        scores: Sequence[HeadScores | None] = [None] * len(candidates)
        if self._evaluator is not None:
            scores = self._evaluator.scores(candidates, weight[::copies], bias[::copies])
        fitted = []
        for number, candidate in enumerate(candidates):
            index = number * copies
            head = FittedHead(
                candidate,
                weight[index],
                bias[index],
                validation=scores[number],
                converged=bool(solution.converged[index]),
                gap=solution.gap[index].item(),
                iterations=int(solution.iterations[index]),
            )
            self._starts[id(head)] = solution.weight[index], solution.bias[index]
            if folds:
                held_out = [
                    fold.evaluator.row_nll(replace(head, weight=weight[own], bias=bias[own]))
                    for own, fold in enumerate(folds, index + 1)
                ]
                own = [] if self._evaluator is None else [self._evaluator.row_nll(head)]
                self._row_nll[id(head)] = torch.cat([*own, *held_out])
            fitted.append(head)
        if folds or not is_resampled:
            self.heads += fitted
        return fitted

    def nll(self, head: FittedHead) -> float:
        """Mean NLL of the rows that choose; infinite for a head that diverged."""
        rows = self._row_nll.get(id(head))
        return head.selection_nll if rows is None else self._mean(rows).nan_to_num(math.inf).item()

    def row_nll(self, head: FittedHead) -> Tensor:
        """NLL of each of the rows that choose."""
        rows = self._row_nll.get(id(head))
        return self.evaluator.row_nll(head) if rows is None else rows

    def softmax(self) -> FittedHead:
        """The softmax head of the best weight decay."""
        given = self.config.weight_decays
        if given is not None:
            path: list[FittedHead] = []
            for one in sorted(given, reverse=True):
                path += self.fit([_softmax(one)], path[-1] if path else None)
            return min(path, key=self.nll)
        first = self.fit([_softmax(_rounded(_FIRST_WEIGHT_DECAY / len(self.design)))])[0]
        best = self._follow(first, 1 / _STEP)
        best = best if best is not first else self._follow(first, _STEP)
        return self._strongest_decay(min([best, *self._between(best)], key=self.nll))

    def _strongest_decay(self, best: FittedHead) -> FittedHead:
        """The strongest weight decay whose validation NLL is within one standard error of the best.

        On many rows this is the best one; on few, the lowest NLL is often chance.
        """
        rows = self.row_nll(best)
        stronger = [
            one
            for one in self.heads
            if one.candidate.kind == "softmax"
            and one.converged  # not one that was given up
            and one.candidate.weight_decay > best.candidate.weight_decay
        ]
        for one in sorted(stronger, key=lambda one: -one.candidate.weight_decay):
            excess = self.row_nll(one) - rows
            if self._mean(excess) <= excess.std() / math.sqrt(max(len(excess), 1)):
                return one
        return best

    def _mean(self, rows: Tensor) -> Tensor:
        """Mean of the rows that choose, by their weights."""
        if self._weights is None or not self._folds:
            return rows.mean()
        n_validation = 0 if self._evaluator is None else len(self._evaluator)
        weights = torch.cat(
            [torch.ones(n_validation, dtype=torch.float32), *(one.weights for one in self._folds)]
        ).to(rows)
        return (weights * rows).sum() / weights.sum()

    def _between(self, best: FittedHead) -> list[FittedHead]:
        """A head halfway to the better neighbour of the best weight decay."""
        decay = best.candidate.weight_decay
        tried = {one.candidate.weight_decay: one for one in self.heads if one.candidate.kind == "softmax"}
        below = [one for one in tried if one < decay]
        above = [one for one in tried if one > decay]
        neighbours = [tried[one] for one in (*sorted(below)[-1:], *sorted(above)[:1])]
        if not neighbours:
            return []
        other = min(neighbours, key=self.nll).candidate.weight_decay
        return self.fit([_softmax(_rounded(math.sqrt(decay * other)))], best, give_up=self.nll(best))

    def _follow(self, best: FittedHead, step: float) -> FittedHead:
        """Change the weight decay of softmax in one direction as long as the validation NLL falls."""
        least = _MIN_WEIGHT_DECAY / len(self.design)
        while least < best.candidate.weight_decay * step < _MAX_WEIGHT_DECAY:
            candidate = _softmax(_rounded(best.candidate.weight_decay * step))
            (last,) = self.fit([candidate], best, give_up=(1 + MAX_RISE) * self.nll(best))
            if not self.nll(last) < self.nll(best):
                break
            is_flat = self.nll(last) > (1 - _PLATEAU) * self.nll(best)
            best = last
            if is_flat:
                break
        return best

    def belief_matching(self, near: FittedHead, prior: Any = 1.0) -> FittedHead:
        """The belief matching head of the strongest prior that costs at most `MAX_RISE` of the NLL."""
        options = {} if prior == 1 else {"prior": prior}

        decay = near.candidate.weight_decay
        if self.config.weight_decays is None:  # softmax has the shares of a row's votes, belief matching all
            decay = _rounded(self._votes() * decay)

        def make(kl_weight: float, weight_decay: float = decay) -> Candidate:
            return Candidate(
                "belief_matching", {"kl_weight": kl_weight, **options}, weight_decay=weight_decay
            )

        if self.config.kl_weights is not None:
            given = sorted(set(self.config.kl_weights), reverse=True)
            return strongest_prior(self.fit([make(one) for one in given], near), self.nll, self.max_rise)
        most = (1 + self.max_rise) * self.nll(near)
        path = self.fit([make(_rounded(self._votes() * _FIRST_DOUBT / self.classes))], near)
        step = _STEP if self.nll(path[0]) <= most else 1 / _STEP
        while _KL_WEIGHTS[0] < path[-1].candidate.kl_weight * step < _KL_WEIGHTS[1]:
            path += self.fit([make(_rounded(path[-1].candidate.kl_weight * step))], path[-1])
            is_near = self.nll(path[-1]) <= min(most, *((1 + self.max_rise) * self.nll(one) for one in path))
            has_fallen = self.nll(path[-1]) < (1 - _PLATEAU) * self.nll(path[-2])
            if (not is_near) if step > 1 else (is_near or not has_fallen):
                break
        chosen = strongest_prior(path, self.nll, self.max_rise)
        if (
            self.nll(chosen) > most and self.config.weight_decays is None
        ):  # another weight decay may suit it better
            around = [make(chosen.candidate.kl_weight, _rounded(decay * one)) for one in (_STEP, 1 / _STEP)]
            chosen = min([chosen, *self.fit(around, chosen)], key=self.nll)
        return chosen

    def label_smoothing(self, near: FittedHead) -> FittedHead:
        """The best of the label smoothing heads that ask for the confidence of the λ tried."""
        decay = near.candidate.weight_decay
        weights = {  # of one vote, since softmax has the shares of a row's votes
            _rounded(one.candidate.kl_weight / self._votes()): 0
            for one in self.heads
            if one.candidate.kind == "belief_matching"
        }
        wanted = [
            Candidate("label_smoothing", {"matched_kl_weight": one}, weight_decay=decay) for one in weights
        ]
        # a small ε has its optimum close to softmax, which the head starts from
        return min(self.fit(wanted, near, tolerance=_NEAR * self.config.tolerance), key=self.nll)

    def with_background(self, head: FittedHead) -> FittedHead:
        """The head fitted with rows that have no votes: for softmax, with outlier exposure."""
        is_softmax = head.candidate.kind == "softmax"
        exposure = _EXPOSURE * len(self.design) / self.design.n_background if is_softmax else 0.0
        candidate = replace(head.candidate, background=True, exposure=exposure)
        # background rows weigh little, so that the head without them is nearly at the optimum already
        (found,) = self.fit([candidate], head, tolerance=_FINE * self.config.tolerance)
        return found

    def refined(self, head: FittedHead, tolerance: float) -> FittedHead:
        """The head closer to its optimum. It is fitted to all rows alone, without the folds."""
        every = torch.ones(1, len(self.design), dtype=torch.float32)
        (found,) = self.fit([head.candidate], head, row_weights=every, tolerance=tolerance)
        return found

    def _start(self, candidate: Candidate, near: FittedHead | None) -> Init:
        if near is None and self._init is None:
            weight = torch.zeros(self.classes, self.design.width, dtype=torch.float32)
            return weight, weight.new_zeros(self.classes)
        start = self._init if near is None else self._starts[id(near)]
        assert start is not None
        if candidate.kind != "belief_matching":
            return start
        if near is not None and near.candidate.options == candidate.options:
            return start
        scale, shift = self._rescaled(*start, candidate)
        return start[0] * scale, start[1] * scale + shift

    def _rescaled(self, weight: Tensor, bias: Tensor, candidate: Candidate) -> tuple[float, float]:
        """Scale and shift of logits with the lowest belief matching loss, on evenly spaced rows."""
        rows, targets = self._some()
        logits = (rows @ weight.t() + bias).double()
        prior: Any = candidate.prior
        if isinstance(prior, tuple):
            prior = torch.tensor(prior, dtype=torch.float32)
        both = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # ln of the scale, shift
        optimizer = torch.optim.LBFGS([both], max_iter=20, line_search_fn="strong_wolfe")
        start = math.log(len(bias) + self._votes() / candidate.kl_weight) - logits.logsumexp(1).mean().item()

        def loss() -> Tensor:
            optimizer.zero_grad()
            scaled = both[0].clamp(-5, 5).exp() * logits + start + both[1]
            value = belief_matching_loss(scaled, targets, kl_weight=candidate.kl_weight, prior=prior)
            value.backward()
            return value

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LowTargetConfidence)  # the search has chosen this λ, not the user
            optimizer.step(loss)  # type: ignore[arg-type]
        scale, shift = both[0].detach().clamp(-5, 5).exp().item(), start + both[1].item()
        return (scale, shift) if math.isfinite(scale + shift) else (1.0, start)

    def _votes(self) -> float:
        """Mean number of votes of a row."""
        targets = self.design.targets
        return 1.0 if targets.dim() == 1 else max(1.0, targets.sum(1).mean().item())

    def _some(self) -> tuple[Tensor, Tensor]:
        step = -(-len(self.design) * self.classes // _SOME_LOGITS)
        rows, labels, at = [], [], 0
        for _, block, targets in self.design.blocks(65536):
            first = -at % step
            at += len(block)
            rows.append(block[first::step])
            labels.append(targets[first::step])
        return torch.cat(rows), torch.cat(labels)


def best_prior(
    heads: Sequence[FittedHead], nll: Callable[[FittedHead], float] = attrgetter("selection_nll")
) -> FittedHead:
    """The head of the lowest NLL among those that `strongest_prior` chooses for each prior β."""
    by_prior: dict[Any, list[FittedHead]] = {}
    for one in heads:
        by_prior.setdefault(one.candidate.prior, []).append(one)
    return min((strongest_prior(path, nll) for path in by_prior.values()), key=nll)


def strongest_prior(
    path: Sequence[FittedHead],
    nll: Callable[[FittedHead], float] = attrgetter("selection_nll"),
    max_rise: float = MAX_RISE,
) -> FittedHead:
    """The head of the largest λ whose validation NLL is at most `max_rise` above the best of the path.

    The NLL of belief matching falls to that of softmax as λ goes to 0, so the lowest NLL alone would choose
    no prior at all.
    """
    most = (1 + max_rise) * min(map(nll, path))
    return max((one for one in path if nll(one) <= most), key=lambda one: one.candidate.kl_weight)


class _Fold(NamedTuple):
    """A share of the training rows to score on."""

    evaluator: Evaluator
    kept: Tensor
    """1 for each row of the design that is fitted on, else 0."""
    weights: Tensor
    """Of the rows to score on."""


def _fold(
    train: Features, indices: Tensor, fitted_on: np.ndarray, held_out: np.ndarray, weights: Tensor | None
) -> _Fold:
    evaluator = Evaluator(train.subset(np.sort(held_out)))
    scored = torch.from_numpy(np.sort(held_out))[evaluator.indices]
    kept = torch.isin(indices, torch.from_numpy(np.asarray(fitted_on, np.int64))).float()
    own = torch.ones(len(scored), dtype=torch.float32) if weights is None else weights[scored]
    return _Fold(evaluator, kept, own)


def _dealt(train: Features) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows that have a class or votes, dealt out to folds by turns within each class.

    Rows without votes are fitted on in every fold.
    """
    rows = scorable(train)
    if len(rows) < 2 * _FOLDS:
        return []
    targets = train.targets[rows]
    ids = targets if targets.dim() == 1 else targets.argmax(1)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    dealt = rows[order[ids[order].argsort(stable=True)]].numpy()
    every = np.arange(len(train))
    return [(np.setdiff1d(every, dealt[one::_FOLDS]), dealt[one::_FOLDS]) for one in range(_FOLDS)]


def _softmax(weight_decay: float) -> Candidate:
    return Candidate("softmax", weight_decay=weight_decay)


def _rounded(value: float) -> float:
    """Two digits, so that a name says all of it."""
    return float(f"{value:.1e}")
