"""The Pi-model (Laine and Aila 2017): two predictions of one network should agree, whatever chance did."""

from typing import Literal

import torch
from torch import Tensor, nn

from beliefmatch.checks import describe, fail, require_choice
from beliefmatch.semi.divergences import Divergence, Order, mean_of, named, ordered
from beliefmatch.semi.passes import drawn_seed, logits_of, require_batch, still
from beliefmatch.semi.settings import ORDERS, TARGETS

__all__ = ["pi_model"]


def pi_model(
    model: nn.Module,
    inputs: Tensor,
    others: Tensor | None = None,
    *,
    divergence: Divergence | str = "dirichlet",
    order: Order = "paper",
    target: Literal["still", "stochastic"] = "still",
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean divergence between the predictions of a network with and without its stochastic parts.

    .. math:: \|φ(\bar f(x)) - φ(f(x))\|^2 \quad\text{or}\quad \mathrm{KL}(\bar q \,\|\, q)

    with f̄ the target, which no gradient flows through. Without `others`, a network that has no stochastic
    parts agrees with itself, and the loss is zero.

    Args:
        model: a classifier in the mode it is trained in. Its buffers, such as the averages of BatchNorm, are
            left as they are; BatchNorm in training mode normalises each pass by the pass's own batch.
        inputs: examples to predict, (N, ...), of any type that the network takes, such as token ids.
        others: the same examples for the target, for instance augmented another time; `inputs` if not given.
        divergence: "squared" (softmax in the paper), "dirichlet" (belief matching in the paper),
            "categorical", or a function of two tensors of logits with one value a row.
        order: "paper", KL(target ‖ prediction), or "release", KL(prediction ‖ target).
        target: "still", with dropout and its like switched off, as in the paper, or "stochastic", with a
            draw of its own.
        generator: of the stochastic parts; the global one, as ever, if not given. The state of the global
            one is left alone if it is.

    Returns:
        A scalar, in float32 at least.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
        >>> loss = pi_model(network, torch.randn(8, 5), divergence="squared")
        >>> loss.backward()
    """
    require_batch("pi_model", model, inputs, floating=False)
    require_choice("pi_model", "order", order, ORDERS)
    require_choice("pi_model", "target", target, TARGETS)
    measure = named("pi_model", "divergence", divergence)
    others = inputs if others is None else others
    if not isinstance(others, Tensor) or others.shape[:1] != inputs.shape[:1]:
        expected = f"the {len(inputs)} examples of `inputs`"
        raise fail("pi_model", f"`others` must have {expected}, got {describe(others)}.")
    first, second = drawn_seed(generator), drawn_seed(generator)
    prediction = logits_of("pi_model", model, inputs, first)
    with torch.no_grad(), still(model, target == "still"):
        aim = logits_of("pi_model", model, others, second)
    return mean_of("pi_model", ordered(measure, order, aim, prediction), inputs)
