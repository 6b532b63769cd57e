"""Features of a few classes, heads trained the plain way, and a quick configuration for refits."""

import warnings
from functools import cache

import numpy as np
import torch
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.head_init import initial_weights
from torch import Tensor, nn

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.types import Features
from beliefmatch.loss import belief_matching_loss
from beliefmatch.train.sampler import EpochSampler

CLASSES, WIDTH = 4, 7


def features(many: int = 90, seed: int = 0, *, classes: int = CLASSES, width: int = WIDTH) -> Features:
    """Rows that a linear head can tell apart, not without error."""
    weight = np.random.default_rng(99).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(many, width)).astype(np.float32)
    noisy = rows @ weight.T + 1.5 * rng.normal(size=(many, classes))
    return Features(rows, torch.from_numpy(noisy.argmax(1)), f"{seed}")


def votes(many: int = 90, seed: int = 0) -> Features:
    """The same with some votes for other classes, in a few rows none at all."""
    one = features(many, seed)
    counts = np.random.default_rng(seed + 1).poisson(0.4, size=(many, CLASSES)).astype(np.float32)
    counts[np.arange(many), one.targets.numpy()] += 3
    counts[::17] = 0
    return Features(one.rows, torch.from_numpy(counts), "votes")


def plain_loss(candidate: Candidate, logits: Tensor, targets: Tensor, progress: float) -> Tensor:
    """The mean loss by the public functions."""
    if candidate.kind == "belief_matching":
        beta = candidate.prior
        prior = torch.tensor(beta) if isinstance(beta, tuple) else beta
        return belief_matching_loss(logits, targets, kl_weight=candidate.kl_weight, prior=prior)
    if targets.dim() == 1:
        return candidate.method.objective_at(progress)(logits, targets)
    some = targets.sum(1) > 0
    shares = targets[some] / targets[some].sum(1, keepdim=True)
    return candidate.method.objective(logits[some], shares) * some.sum() / len(targets)


def trained_alone(
    data: Features,
    candidate: Candidate,
    *,
    classes: int,
    epochs: int,
    batch_size: int,
    weight_decay: float = 0.0,
) -> nn.Linear:
    """One `nn.Linear` by autograd and torch's Adam, from the same first weights and over the same batches."""
    weight, bias = initial_weights([candidate], None, classes, data.rows.shape[1])
    head = nn.Linear(data.rows.shape[1], classes)
    with torch.no_grad():
        head.weight.copy_(weight[0])
        head.bias.copy_(bias[0])
    groups = [{"params": [head.weight], "weight_decay": weight_decay}, {"params": [head.bias]}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    sampler, rows = EpochSampler(len(data), batch_size, seed=0), torch.from_numpy(data.rows)
    for epoch in range(epochs):
        for number, batch in enumerate(sampler.batches(epoch)):
            progress = (epoch + number / sampler.n_batches) / epochs
            loss = plain_loss(candidate, head(rows[batch]), data.targets[batch], progress)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return head


def assert_same(one: FittedHead, other: FittedHead) -> None:
    """Equal to rounding."""
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.bias, other.bias, rtol=1e-4, atol=1e-5)
    assert one.epoch == other.epoch


SETS = FeatureSets(features(200), features(150, 5), features(60, 6), {"noise": features(30, 7)})
FEW = AdaptConfig(kl_weights=(0.03, 0.003), epochs=6, learning_rate=0.01, batch_size=32, risks=(0.4,))


def quiet(*args, **options):
    """The same whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refit(*args, **options)


@cache
def knowing_head() -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a head that knows the classes."""
    wanted = [Candidate("softmax", "softmax")]
    (head,) = fit_heads(features(300, 11), wanted, classes=CLASSES, epochs=30, optimizer="lbfgs")
    return head.weight, head.bias
