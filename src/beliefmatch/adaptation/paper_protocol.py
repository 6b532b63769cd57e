"""The paper's training of heads: Adam on minibatches of the features as they are, without weight decay.

Its learning rate is 3e-4 at batches of 64 for 100 epochs. On features of other scales than the paper's that
is often not enough, so the default is the solver of `beliefmatch.adaptation.solver`; this one is there to
compare with the paper. Heads share the batches and nothing else.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor, nn

from beliefmatch._utils import OnProgress, derive_seed
from beliefmatch._validate import fail
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.fitted import Candidate, FittedHead, Init, Point
from beliefmatch.adaptation.objectives import family, loss_of
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import Evaluator, product
from beliefmatch.adaptation.search import strongest_prior
from beliefmatch.adaptation.types import labelled, ordered
from beliefmatch.train.sampler import EpochSampler

__all__ = ["default_kl_weights", "fit_by_adam", "paper_heads"]

_MOST_KL_WEIGHT = 0.01
_LEAST_DOUBT, _MOST_DOUBT = 1e-3, 1.0  # of λK
_MOST_BYTES = 8 << 30
_FRESH = 5  # what a seed is for


def paper_heads(
    sets: FeatureSets, classes: int, init: Init | None, config: AdaptConfig, on_progress: OnProgress | None
) -> tuple[dict[str, list[FittedHead]], list[FittedHead]]:
    """Heads of every setting and seed: those of the table by its lines, and all.

    The mean NLL over the seeds chooses λ and the prior.
    """
    wanted = [*_wanted(classes, config, has_ids=sets.train.targets.dim() == 1)]
    fitted = fit_by_adam(sets, wanted, classes, config, init=init, on_progress=on_progress)
    settings: dict[str, list[FittedHead]] = {}
    for head in fitted:
        settings.setdefault(replace(head.candidate, seed=0).name, []).append(head)
    beliefs = [heads for heads in settings.values() if heads[0].candidate.kind == "belief_matching"]
    finite = [one for one in map(_with_mean_nll, beliefs) if math.isfinite(one.rank)]
    if not finite:
        raise fail("adapt", "`protocol` paper must end with a finite loss, but every head diverged.")
    chosen = strongest_prior(finite).candidate
    table = {}
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
        if config.needs_softmax:
            yield Candidate("softmax", seed=seed)
        if "label_smoothing" in config.controls:
            for one in weights:
                yield Candidate("label_smoothing", {"matched_kl_weight": one}, seed=seed)
        if "evidential" in config.controls and has_ids:
            yield Candidate("evidential", seed=seed)


def default_kl_weights(classes: int) -> list[float]:
    """1 and 3 times powers of ten, from 0.01 or 1/K, the less, down to 0.001/K.

    What λ asks for depends on λK: with β = 1 the label of one vote gets about 1/(1 + λK). So the grid goes
    from one half, or the 0.01 of the paper, to a doubt of one in a thousand.

    >>> default_kl_weights(10), len(default_kl_weights(1000))
    ([0.01, 0.003, 0.001, 0.0003, 0.0001], 7)
    """
    most, least = min(_MOST_KL_WEIGHT, _MOST_DOUBT / classes), _LEAST_DOUBT / classes
    first, last = math.floor(math.log10(least)) - 1, math.ceil(math.log10(most))
    grid = [float(f"{digit}e{power}") for power in range(last, first, -1) for digit in (3, 1)]
    return [one for one in grid if least * (1 - 1e-9) <= one <= most * (1 + 1e-9)]


def _with_mean_nll(heads: Sequence[FittedHead]) -> FittedHead:
    """The first of these heads with the mean NLL of all."""
    first = heads[0]
    assert first.validation is not None
    mean = fmean(math.nan if one.nll is None else one.nll for one in heads)
    return replace(first, validation=first.validation._replace(nll=mean))


def fit_by_adam(
    sets: FeatureSets,
    candidates: Sequence[Candidate],
    classes: int,
    config: AdaptConfig,
    *,
    init: Init | None = None,
    on_progress: OnProgress | None = None,
) -> list[FittedHead]:
    """Train every candidate; each keeps the weights of its first epoch with the lowest validation error.

    A head whose best epoch is the last one has not converged, and neither has one whose loss became infinite.

    Args:
        sets: Features to train on, and those that choose the epoch.
        candidates: The heads; those of one seed see the same batches.
        classes: K.
        config: Number of epochs, size of batches and learning rate.
        init: Weight and bias that all heads start from; otherwise each seed draws its own.
        on_progress: Called with (fraction, description).
    """
    train = sets.train
    if 4 * len(train) * train.width > _MOST_BYTES:
        fact = f"`protocol` must be default for features of more than {_MOST_BYTES >> 30} GiB, got paper"
        raise fail("adapt", f"{fact}.")
    groups: dict[tuple[str, int], list[int]] = {}
    for place, one in enumerate(candidates):
        groups.setdefault((family(one), one.seed), []).append(place)
    evaluator, places = Evaluator(sets.validation), labelled(train)
    rows, targets = torch.cat([some for some, _ in ordered(train, places)]), train.targets[places]
    fitted: dict[int, FittedHead] = {}
    for number, members in enumerate(groups.values()):

        def tell(epoch: int, number: int = number) -> None:
            if on_progress is not None:
                fraction = (number + epoch / config.epochs) / len(groups)
                on_progress(fraction, f"training heads: epoch {epoch} of {config.epochs}")

        training = _AdamTraining(
            [candidates[place] for place in members], classes, rows, targets, init, config
        )
        fitted |= zip(members, training.run(evaluator, tell), strict=True)
    return [fitted[place] for place in range(len(candidates))]


class _AdamTraining:
    """Heads of one family and seed in training."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        classes: int,
        rows: Tensor,
        targets: Tensor,
        init: Init | None,
        config: AdaptConfig,
    ) -> None:
        self.candidates, self.classes, self.epochs = candidates, classes, config.epochs
        self.rows, self.targets = rows, targets
        weight, bias = init or _drawn(candidates[0].seed, classes, rows.shape[1])
        self.weight = nn.Parameter(weight.expand(len(candidates), -1, -1).clone())
        self.bias = nn.Parameter(bias.expand(len(candidates), -1).clone())
        self.optimizer = torch.optim.Adam([self.weight, self.bias], lr=config.learning_rate, fused=True)
        seed = 0 if init is None else candidates[0].seed  # fresh heads differ by their first weights
        self.sampler = EpochSampler(len(rows), config.batch_size, seed)

    def run(self, evaluator: Evaluator, on_epoch: Callable[[int], None]) -> list[FittedHead]:
        """Train; each head at its best epoch."""
        many, weight, bias = len(self.candidates), self.weight.detach(), self.bias.detach()
        best_weight, best_bias = weight.clone(), bias.clone()
        best_epoch, least = [0] * many, [math.inf] * many
        curves: list[list[Point]] = [[] for _ in self.candidates]
        for epoch in range(1, self.epochs + 1):
            losses = self._epoch(epoch)
            scores = evaluator.scores(self.candidates, weight, bias)
            for place, (loss, one) in enumerate(zip(losses, scores, strict=True)):
                curves[place].append(Point(epoch, loss, one.nll, one.error))
                if math.isfinite(loss) and one.error < least[place]:
                    best_epoch[place], least[place] = epoch, one.error
                    best_weight[place], best_bias[place] = weight[place], bias[place]
            on_epoch(epoch)
        found = []
        for place, scores in enumerate(evaluator.scores(self.candidates, best_weight, best_bias)):
            epoch, is_finite = best_epoch[place], math.isfinite(curves[place][-1].loss)
            head = FittedHead(
                self.candidates[place],
                best_weight[place],
                best_bias[place],
                validation=scores,
                converged=is_finite and 0 < epoch < self.epochs,
                iterations=epoch,
                curve=tuple(curves[place]),
                notes=() if is_finite else ("its loss was not finite",),
            )
            found.append(head)
        return found

    def _epoch(self, epoch: int) -> list[float]:
        """Train on all batches once; the mean loss of each head."""
        total = torch.zeros(len(self.candidates), dtype=torch.float64)
        weight, bias = self.weight.detach(), self.bias.detach()
        loss_and_grad = loss_of(self.candidates, self.classes, progress=(epoch - 1) / self.epochs)
        for chosen in self.sampler.batches(epoch - 1):
            rows = self.rows[chosen]
            loss, grad = loss_and_grad(product(weight, bias, rows), self.targets[chosen], slice(None))
            total += loss.sum(1, dtype=torch.float64)
            grad = grad / len(rows)
            self.weight.grad = (grad.reshape(-1, len(rows)) @ rows).view_as(weight)
            self.bias.grad = grad.sum(2)
            self.optimizer.step()
        return (total / len(self.rows)).tolist()


def _drawn(seed: int, classes: int, width: int) -> Init:
    """Weights as `torch.nn.Linear` draws them."""
    generator = torch.Generator().manual_seed(derive_seed(seed, _FRESH))
    limit = 1 / math.sqrt(width)
    return (
        torch.empty(classes, width).uniform_(-limit, limit, generator=generator),
        torch.empty(classes).uniform_(-limit, limit, generator=generator),
    )
