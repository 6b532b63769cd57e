"""Adam on all heads at once."""

import torch
from torch import Tensor, nn

__all__ = ["Adam"]


class Adam:
    """torch's fused Adam on two stacks, weights (H, K, F) and biases (H, K), from which heads can leave.

    Every number of the stacks has moments of its own, so that a head's steps do not depend on the others.

    Args:
        weight: first weights; taken over.
        bias: first biases; taken over.
        learning_rate: the paper's is 3e-4.
        weight_decay: added to the grad of the weights, times the weight; biases have none.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, *, learning_rate: float, weight_decay: float = 0.0
    ) -> None:
        self._rates = learning_rate, weight_decay
        self._begin(weight, bias)

    def _begin(self, weight: Tensor, bias: Tensor) -> None:
        learning_rate, weight_decay = self._rates
        self._weight, self._bias = nn.Parameter(weight), nn.Parameter(bias)
        self._optimizer = torch.optim.Adam(
            [{"params": [self._weight], "weight_decay": weight_decay}, {"params": [self._bias]}],
            lr=learning_rate,
            fused=True,
        )

    @property
    def weight(self) -> Tensor:
        """(H, K, F); changes in place with every step."""
        return self._weight.detach()

    @property
    def bias(self) -> Tensor:
        """(H, K); changes in place with every step."""
        return self._bias.detach()

    def step(self, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """Take a step of all heads."""
        self._weight.grad, self._bias.grad = weight_grad, bias_grad
        self._optimizer.step()

    def keep(self, places: Tensor) -> None:
        """Go on with these heads alone, each where it was."""
        states = [self._optimizer.state[one] for one in (self._weight, self._bias)]
        self._begin(self.weight[places], self.bias[places])
        for parameter, state in zip((self._weight, self._bias), states, strict=True):
            if state:
                self._optimizer.state[parameter] = {
                    name: value if value.dim() == 0 else value[places] for name, value in state.items()
                }
