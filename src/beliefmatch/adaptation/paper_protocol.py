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
from beliefmatch.adaptation.feature_rows import labelled, ordered
from beliefmatch.adaptation.fitted import Candidate, FittedHead, Init, Point
from beliefmatch.adaptation.objectives import family, loss_of
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import Evaluator, product
from beliefmatch.adaptation.search import best_prior
from beliefmatch.train.sampler import EpochSampler

__all__ = ["default_kl_weights", "fit_by_adam", "paper_heads"]

_MAX_KL_WEIGHT = 0.01
_MIN_DOUBT, _MAX_DOUBT = 1e-3, 1.0  # of λK
_MAX_BYTES = 8 << 30
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
    finite = [one for one in map(_with_mean_nll, beliefs) if math.isfinite(one.selection_nll)]
    if not finite:
        raise fail("adapt", "`protocol` paper must end with a finite loss, but every head diverged.")
    chosen = best_prior(finite).candidate
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
    most, least = min(_MAX_KL_WEIGHT, _MAX_DOUBT / classes), _MIN_DOUBT / classes
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
    if 4 * len(train) * train.width > _MAX_BYTES:
        fact = f"`protocol` must be default for features of more than {_MAX_BYTES >> 30} GiB, got paper"
        raise fail("adapt", f"{fact}.")
    groups: dict[tuple[str, int], list[int]] = {}
    for index, one in enumerate(candidates):
        groups.setdefault((family(one), one.seed), []).append(index)
    evaluator, indices, fitted = Evaluator(sets.validation), labelled(train), dict[int, FittedHead]()
    rows, targets = torch.cat([some for some, _ in ordered(train, indices)]), train.targets[indices]
    for number, members in enumerate(groups.values()):

        def tell(epoch: int, number: int = number) -> None:
            if on_progress is not None:
                fraction = (number + epoch / config.epochs) / len(groups)
                on_progress(fraction, f"training heads: epoch {epoch} of {config.epochs}")

        some = [candidates[index] for index in members]
        weight, bias = init or _drawn(some[0].seed, classes, train.width)
        heads = weight.expand(len(some), -1, -1).clone(), bias.expand(len(some), -1).clone()
        seed = 0 if init is None else some[0].seed  # fresh heads differ by their first weights
        losses = _training(some, heads, rows, targets, config, seed)
        fitted |= zip(members, _best_epochs(some, heads, losses, evaluator, tell), strict=True)
    return [fitted[index] for index in range(len(candidates))]


def _training(
    candidates: Sequence[Candidate],
    heads: Init,
    rows: Tensor,
    targets: Tensor,
    config: AdaptConfig,
    seed: int,
) -> Iterator[list[float]]:
    """Train weights (H, K, F) and biases (H, K) in place; after each epoch, the mean loss of each head."""
    parameters = [nn.Parameter(one) for one in heads]
    optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    sampler = EpochSampler(len(rows), config.batch_size, seed)
    (weight, bias), classes = heads, heads[1].shape[1]
    for epoch in range(config.epochs):
        loss_and_grad = loss_of(candidates, classes, progress=epoch / config.epochs)
        total = torch.zeros(len(candidates), dtype=torch.float64)
        for chosen in sampler.batches(epoch):
            batch = rows[chosen]
            loss, grad = loss_and_grad(product(weight, bias, batch), targets[chosen], slice(None))
            total += loss.sum(1, dtype=torch.float64)
            grad = grad / len(batch)
            parameters[0].grad = (grad.reshape(-1, len(batch)) @ batch).view_as(weight)
            parameters[1].grad = grad.sum(2)
            optimizer.step()
        yield (total / len(rows)).tolist()


def _best_epochs(
    candidates: Sequence[Candidate],
    heads: Init,
    training: Iterator[list[float]],
    evaluator: Evaluator,
    on_epoch: Callable[[int], None],
) -> list[FittedHead]:
    """Go through the training; each head at its first epoch with the lowest validation error."""
    (weight, bias), (best_weight, best_bias) = heads, (one.clone() for one in heads)
    best, least = [0] * len(candidates), [math.inf] * len(candidates)
    curves: list[list[Point]] = [[] for _ in candidates]
    for epoch, losses in enumerate(training, 1):
        scores = evaluator.scores(candidates, weight, bias)
        for index, (loss, one) in enumerate(zip(losses, scores, strict=True)):
            curves[index].append(Point(epoch, loss, one.nll, one.error))
            if math.isfinite(loss) and one.error < least[index]:
                best[index], least[index] = epoch, one.error
                best_weight[index], best_bias[index] = weight[index], bias[index]
        on_epoch(epoch)
    found = []
    for index, scores in enumerate(evaluator.scores(candidates, best_weight, best_bias)):
        is_finite = math.isfinite(curves[index][-1].loss)
        head = FittedHead(
            candidates[index],
            best_weight[index],
            best_bias[index],
            validation=scores,
            converged=is_finite and 0 < best[index] < len(curves[index]),
            iterations=best[index],
            curve=tuple(curves[index]),
            notes=() if is_finite else ("its loss was not finite",),
        )
        found.append(head)
    return found


def _drawn(seed: int, classes: int, width: int) -> Init:
    """Weights as `torch.nn.Linear` draws them."""
    generator = torch.Generator().manual_seed(derive_seed(seed, _FRESH))
    limit = 1 / math.sqrt(width)
    return (
        torch.empty(classes, width, dtype=torch.float32).uniform_(-limit, limit, generator=generator),
        torch.empty(classes, dtype=torch.float32).uniform_(-limit, limit, generator=generator),
    )
