"""Scores of a prediction against the class that came true."""

from torch import Tensor

from beliefmatch.metrics._inputs import checked

__all__ = ["error", "nll"]


def error(probs: Tensor, targets: Tensor) -> float:
    r"""Share of examples whose most probable class is not the target, in [0, 1].

    Args:
        probs: class probabilities, shape (N, K); of tied classes the first counts.
        targets: class ids, shape (N,).

    >>> import torch
    >>> error(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), torch.tensor([0, 0, 0]))
    0.3333333333333333
    """
    probs, targets = checked("error", probs, targets)
    return (probs.argmax(1) != targets).double().mean().item()


def nll(probs: Tensor, targets: Tensor) -> float:
    r"""Mean negative log-likelihood :math:`-\frac1N\sum_i \ln p_i(y_i)` in nats, in [0, ∞].

    A proper score: no forecast does better in expectation than the true probabilities.
    It is infinite where a class came true that was given probability zero.

    Args:
        probs: class probabilities, shape (N, K).
        targets: class ids, shape (N,).

    >>> import torch
    >>> round(nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1])), 4)
    0.4904
    """
    probs, targets = checked("nll", probs, targets)
    return -probs.gather(1, targets[:, None]).log().mean().item()
