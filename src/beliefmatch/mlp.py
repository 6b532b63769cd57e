"""Multilayer perceptrons of one architecture, many at once: one for each candidate and each fold.

All networks see the same minibatches; the weights of the rows decide which network learns from which row. So
a fold costs a mask, and the first layers of all networks are one matrix product. As in
`beliefmatch.adaptation.solver`, the objective of each network is the weighted mean loss of its rows plus
half its weight decay times the squared norm of its weights. Networks are optimised by Adam.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.objectives import loss_of
from beliefmatch.adaptation.scoring import product

__all__ = [
    "Layers",
    "NetworkTraining",
    "Schedule",
    "TrainedNetworks",
    "forward",
    "initial_layers",
    "train_networks",
]

Layers = list[tuple[Tensor, Tensor]]
"""Weights (M, out, in) and biases (M, out) of each layer of M networks; one layer is a linear model."""
_BLOCK_NUMBERS = 4_000_000  # activations held at once where no gradient is needed


class Schedule(NamedTuple):
    """How networks are trained."""

    max_epochs: int
    learning_rate: float
    batch_size: int
    patience: int
    """Epochs without a lower NLL of the held-out rows after which a network stops."""
    tolerance: float
    """Fall of the NLL that counts as lower."""


class TrainedNetworks(NamedTuple):
    """M networks and how they did on the rows that were held out from each."""

    layers: Layers
    """At the epoch of the lowest held-out NLL; at the last epoch without held-out rows."""
    nll: Tensor
    """Weighted mean of the held-out rows, (M,); NaN without them."""
    epochs: Tensor
    """Epochs of training that the layers have had, (M,)."""
    finished: Tensor
    """Whether training ended as it should, (M,): by the held-out rows if they can end it, else by
    `max_epochs`."""


def forward(layers: Layers, rows: Tensor) -> Tensor:
    """Logits (M, K, B) of rows (B, F)."""
    (weight, bias), *others = layers
    values = product(weight, bias, rows)
    for weight, bias in others:
        values = torch.baddbmm(bias[:, :, None], weight, values.relu())
    return values


def initial_layers(
    sizes: Sequence[int], candidates: Sequence[Candidate], shares: Tensor, seeds: Sequence[int]
) -> Layers:
    """Random layers, whose biases of the last layer are the best belief without looking at the features.

    Without features the optimum of the loss is the posterior of the mean counts, α = β + c/λ.

    Args:
        sizes: Number of features, of the units of each hidden layer, and of classes.
        candidates: Belief matching with λ and β, one for each network.
        shares: Mean counts of the classes, (K,).
        seeds: Of the random weights, one for each network; networks of one seed start alike.
    """
    layers: Layers = []
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for number, (size, width) in enumerate(pairwise(sizes), 2):
        is_last = number == len(sizes)
        bound = (3 / size) ** 0.5 if is_last else (6 / size) ** 0.5  # He et al. 2015
        weight = torch.empty(len(seeds), width, size, dtype=torch.float32)
        for one, generator in zip(weight, generators, strict=True):
            one.uniform_(-bound, bound, generator=generator)
        layers.append((weight, torch.zeros(len(seeds), width, dtype=torch.float32)))
    if len(layers) == 1:
        layers[0][0].zero_()  # convex: no symmetry to break
    for bias, candidate in zip(layers[-1][1], candidates, strict=True):
        prior = torch.tensor(candidate.prior, dtype=torch.float32)
        bias.copy_((prior + shares / candidate.kl_weight).log())
    return layers


@torch.no_grad()
def train_networks(
    layers: Layers,
    rows: Tensor,
    targets: Tensor,
    candidates: Sequence[Candidate],
    schedule: Schedule,
    *,
    row_weights: Tensor,
    held_out: Tensor | None = None,
    stop_early: bool = True,
    seed: int = 0,
) -> TrainedNetworks:
    """Train networks of one architecture, each until its held-out rows say that it is enough.

    Args:
        layers: To start from; not changed.
        rows: Standardised features (N, F), float32.
        targets: Class ids (N,) or counts (N, K).
        candidates: λ, β and weight decay of each network, M of them with one β.
        schedule: How to train.
        row_weights: Of each row for the training of each network, (M, N).
        held_out: Weight of each row in the NLL that tells when a network has trained enough, (M, N). By
            default every network trains for `max_epochs`.
        stop_early: Whether a network stops where that NLL no longer falls, and goes back to where it was
            lowest.
        seed: Of the order of the rows.
    """
    training = NetworkTraining(layers, candidates, schedule.learning_rate)
    best = [(weight.clone(), bias.clone()) for weight, bias in layers]
    lowest = torch.full((len(candidates),), torch.inf, dtype=torch.float64)
    # small falls add up: each counts from the last that was large enough
    reference, waited = lowest.clone(), torch.zeros(len(candidates), dtype=torch.int64)
    epochs = torch.zeros(len(candidates), dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(1, schedule.max_epochs + 1):
        training.epoch(rows, targets, row_weights, batch_size=schedule.batch_size, generator=generator)
        if held_out is None or not stop_early:
            continue
        networks = training.networks
        nll = _mean_nll(training.layers, rows, targets, held_out[networks])
        is_lower = nll < lowest[networks]
        improved = networks[is_lower]
        lowest[improved], epochs[improved] = nll[is_lower], epoch
        for kept, now in zip(best, training.layers, strict=True):
            for all_values, some_values in zip(kept, now, strict=True):
                all_values[improved] = some_values[is_lower]
        is_progress = nll < reference[networks] - schedule.tolerance
        reference[networks[is_progress]] = nll[is_progress]
        waited[networks] = torch.where(is_progress, 0, waited[networks] + 1)
        going = (waited[networks] < schedule.patience).nonzero()[:, 0]
        if len(going) < len(networks):
            training.keep(going)
        if not len(going):
            break
    if held_out is None or not stop_early:
        best = [(weight.clone(), bias.clone()) for weight, bias in training.layers]
        epochs = torch.full_like(epochs, schedule.max_epochs)
        lowest = torch.full_like(lowest, torch.nan)
        if held_out is not None:
            lowest = _mean_nll(best, rows, targets, held_out)
        return TrainedNetworks(best, lowest, epochs, torch.ones_like(epochs, dtype=torch.bool))
    return TrainedNetworks(best, lowest, epochs, waited >= schedule.patience)


class NetworkTraining:
    """Networks under training by Adam, their parameters end to end in one tensor (M, P); networks can leave.

    Args:
        layers: To start from; not changed.
        candidates: λ, β and weight decay of each network, with one β.
        learning_rate: Of Adam.
    """

    def __init__(self, layers: Layers, candidates: Sequence[Candidate], learning_rate: float) -> None:
        self.networks = torch.arange(len(candidates))
        self._shapes = [weight.shape[1:] for weight, _ in layers]
        flat = torch.cat([one.flatten(1) for layer in layers for one in layer], 1)
        self._optimizer = torch.optim.Adam([flat], lr=learning_rate)
        self.change(candidates, learning_rate)

    def change(self, candidates: Sequence[Candidate], learning_rate: float) -> None:
        """Use other λ, β, weight decays and another learning rate from the next step on."""
        self._loss = loss_of(candidates, self._shapes[-1][0])
        self._decay = torch.tensor([one.weight_decay for one in candidates], dtype=torch.float32)
        self._optimizer.param_groups[0]["lr"] = learning_rate

    @property
    def _flat(self) -> Tensor:
        return self._optimizer.param_groups[0]["params"][0]

    @property
    def layers(self) -> Layers:
        """Views of the parameters."""
        return self._unpacked(self._flat)

    def _unpacked(self, flat: Tensor) -> Layers:
        layers, at = [], 0
        for out, size in self._shapes:
            weight = flat[:, at : at + out * size].view(-1, out, size)
            layers.append((weight, flat[:, at + out * size : at + out * size + out]))
            at += out * size + out
        return layers

    @torch.no_grad()
    def epoch(
        self,
        rows: Tensor,
        targets: Tensor,
        row_weights: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        """One pass over the rows in random order, with their weights (M, N) for all networks."""
        for some in torch.randperm(len(rows), generator=generator).split(batch_size):
            self._step(rows[some], targets[some], row_weights[self.networks[:, None], some])

    def _step(self, rows: Tensor, targets: Tensor, row_weights: Tensor) -> None:
        """Down the gradient of each network's objective, by backpropagation."""
        flat = self._flat
        layers, flat.grad = self.layers, torch.empty_like(flat)
        inputs: list[Tensor] = []  # of each layer but the first, (M, in, B)
        values = product(*layers[0], rows)
        for weight, bias in layers[1:]:
            inputs.append(values.relu_())
            values = torch.baddbmm(bias[:, :, None], weight, values)
        grad = self._loss(values, targets, self.networks)[1]
        grad *= (row_weights / row_weights.sum(1, keepdim=True).clamp(min=1e-30))[:, None]
        grads, decay = self._unpacked(flat.grad), self._decay[self.networks, None, None]
        for number in reversed(range(len(layers))):
            weight, (weight_grad, bias_grad) = layers[number][0], grads[number]
            bias_grad.copy_(grad.sum(2))
            weight_grad.copy_(decay * weight)
            if number:
                weight_grad.baddbmm_(grad, inputs[number - 1].mT)
                grad = torch.bmm(weight.mT, grad).mul_(inputs[number - 1] > 0)
            else:
                weight_grad += (grad.reshape(-1, len(rows)) @ rows).view_as(weight)
        self._optimizer.step()

    def keep(self, networks: Tensor) -> None:
        """Leave out all other networks; by their places among those that are left."""
        self.networks = self.networks[networks]
        moments = self._optimizer.state.pop(self._flat)
        kept = self._flat[networks]
        self._optimizer.param_groups[0]["params"] = [kept]
        self._optimizer.state[kept] = {
            name: value[networks] if value.dim() else value for name, value in moments.items()
        }


def _mean_nll(layers: Layers, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean NLL of each network, (M,)."""
    widest = max(weight.shape[0] * weight.shape[1] for weight, _ in layers)
    size, total = max(1, _BLOCK_NUMBERS // widest), torch.zeros(len(weights), dtype=torch.float64)
    for some in torch.arange(len(rows)).split(size):
        logs, labels = forward(layers, rows[some]).log_softmax(1), targets[some]
        if labels.dim() == 1:
            nll = -logs.gather(1, labels.expand(len(logs), 1, -1))[:, 0]
        else:
            nll = -(logs * (labels / labels.sum(1, keepdim=True).clamp(min=1e-30)).t()).sum(1)
        total += (nll.double() * weights[:, some]).sum(1)
    return total / weights.sum(1, dtype=torch.float64)
