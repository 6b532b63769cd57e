"""Table 3 and its figure: the last layer of an ImageNet ResNet-50 fitted to smaller sets.

They stand on `beliefmatch adapt`, which fits last layers on stored features. What is to be asked of it is
`PROTOCOL`; what the paper found is `ERRORS`. Who brings `adapt` gives `TABLE3` and `FIGURE` their arms.
"""

from beliefmatch.experiments.reproduction.base import Reproduction
from beliefmatch.experiments.reproduction.record import Reported

__all__ = ["ERRORS", "FIGURE", "PROTOCOL", "TABLE3"]

ERRORS = {
    "cifar10/softmax": Reported(5.44, 0.10),
    "cifar10/belief_matching": Reported(5.03, 0.04),
    "food101/softmax": Reported(28.49, 0.08),
    "food101/belief_matching": Reported(26.41, 0.07),
    "stanford_cars/softmax": Reported(42.99, 0.14),
    "stanford_cars/belief_matching": Reported(39.99, 0.20),
}
"""Test error in percent."""

PROTOCOL = {
    "network": "resnet50",
    "pretrained": "ImageNet",
    "trained": "last linear layer",
    "epochs": 100,
    "batch_size": 64,
    "optimizer": "adam",
    "learning_rate": 3e-4,
    "kl_weight": 0.01,
    "seeds": 5,
    "data": ("cifar10", "food101", "stanford_cars"),
    "enlarged": {"cifar10": 8},
    "foreign": ("svhn", "food101", "stanford_cars"),  # of CIFAR-10, in the figure
}
"""The paper's settings."""


TABLE3 = Reproduction(
    id="table3",
    title="Transfer of an ImageNet ResNet-50 by its last layer: softmax, belief matching",
    place="table 3",
    waits_for="`beliefmatch adapt`",
)
FIGURE = Reproduction(
    id="figure-transfer",
    title="Predictive entropy after transfer, CIFAR-10 and SVHN, Food-101, Cars",
    place="figure on transfer",
    waits_for="`beliefmatch adapt`",
)
