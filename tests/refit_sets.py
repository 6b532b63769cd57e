"""Feature sets and quick wishes for tests of refitting."""

import warnings
from functools import cache

import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from head_features import CLASSES, features

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
