"""Table 4: Pi-model and VAT on CIFAR-10 with 4,000 labels, softmax and belief matching.

It stands on training with unlabelled images (`beliefmatch train --semi`). What is to be asked of it is
`PROTOCOL`; what the paper found is `ERRORS`. Who brings it gives `TABLE4` its arms.
"""

from beliefmatch.experiments.reproduction.base import Reproduction
from beliefmatch.experiments.reproduction.record import Reported

__all__ = ["ERRORS", "PROTOCOL", "TABLE4"]

ERRORS = {
    "pi/softmax": Reported(16.52, 0.21),
    "pi/belief_matching": Reported(16.01, 0.36),
    "vat/softmax": Reported(13.33, 0.37),
    "vat/belief_matching": Reported(12.40, 0.23),
}
"""Test error in percent."""

PROTOCOL = {
    "network": "wrn28_2",
    "activation": "leaky_relu",
    "data": "cifar10",
    "labelled": 4000,
    "unlabelled": 41_000,
    "validation": 5000,
    "steps": 500_000,
    "batch_size": 100,
    "optimizer": "adam",
    "learning_rate": {"pi": 3e-4, "vat": 3e-3},
    "decay": {"by": 0.2, "at": 400_000},
    "consistency_weight": {"pi": 0.5, "vat": 0.03},
    "ramp_steps": 200_000,
    "vat": {"epsilon": 6.0, "xi": 1e-6},
    "kl_weight": 0.01,
    "seeds": 5,
}
"""The paper's settings, those of Oliver et al. (2018) among them."""


TABLE4 = Reproduction(
    id="table4",
    title="Pi-model and VAT on CIFAR-10 with 4,000 labels: softmax, belief matching",
    place="table 4",
    waits_for="`beliefmatch train --semi`",
)
