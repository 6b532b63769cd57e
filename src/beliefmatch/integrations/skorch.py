"""Belief matching in skorch: a net whose probabilities are probabilities, and which learns from votes."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import describe, fail
from beliefmatch.belief import Belief
from beliefmatch.loss import BeliefMatchingLoss

with needs("skorch", extra="skorch", caller="beliefmatch.integrations.skorch"):
    from skorch import NeuralNetClassifier
    from skorch.callbacks import EpochScoring
    from skorch.dataset import ValidSplit
    from skorch.utils import to_numpy

__all__ = ["BeliefNetClassifier"]


class _VotesSplit(ValidSplit):
    """A stratified split; votes are stratified by the class that has most of them."""

    def __call__(self, dataset: Any, y: Any = None, groups: Any = None) -> Any:
        return super().__call__(dataset, y=_majority(y), groups=groups)


_SPLIT = _VotesSplit(5, stratified=True)


class BeliefNetClassifier(NeuralNetClassifier):
    """A `skorch.NeuralNetClassifier` that is trained by belief matching.

    It differs from `NeuralNetClassifier(module, criterion=BeliefMatchingLoss)` in three ways. The module
    returns logits, and `predict_proba` returns their softmax; skorch does that for `CrossEntropyLoss` only.
    `belief` returns the Dirichlet belief of each example. The labels `y` may be counts of votes (N, K)
    instead of class ids (N,); the internal split, accuracy and `score` then take the class with most votes.

    Args:
        module: The network, a class or an instance, that returns logits.
        criterion: The loss. With another one than belief matching this is a `NeuralNetClassifier`.
        train_split: The internal validation split; by default a fifth of the examples, stratified.
        **options: Those of `NeuralNetClassifier`, such as `criterion__kl_weight` and `max_epochs`.

    Example:
        >>> import torch
        >>> from sklearn.datasets import load_iris
        >>> from beliefmatch.integrations.skorch import BeliefNetClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> net = BeliefNetClassifier(torch.nn.Linear(4, 3), criterion__target_confidence=0.95, verbose=0)
        >>> probs = net.fit(X.astype("float32"), y).predict_proba(X.astype("float32"))
        >>> bool(abs(probs.sum(1) - 1).max() < 1e-6)
        True
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        criterion: Any = BeliefMatchingLoss,
        train_split: Any = _SPLIT,
        **options: Any,
    ) -> None:
        super().__init__(module, *args, criterion=criterion, train_split=train_split, **options)

    def belief(self, X: Any) -> Belief:
        """The Dirichlet belief of each example, whose mean is `predict_proba`."""
        logits = self.forward(X)
        return Belief(logits[0] if isinstance(logits, tuple) else logits)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; of votes, for the class that has most of them."""
        return float(super().score(X, _majority(y), sample_weight))

    def check_data(self, X: Any, y: Any) -> None:
        """See `NeuralNetClassifier`; the classes of votes are the columns."""
        super().check_data(X, y)
        if y is None:
            return
        if _is_votes(y):
            self.classes_inferred_ = np.arange(np.shape(y)[1])
        elif len(labels := _texts(y)):
            got = f"{describe(labels[0])}; encode them by sklearn.preprocessing.LabelEncoder"
            raise fail("BeliefNetClassifier", f"`y` must be class ids from 0 to K − 1, got {got}.", TypeError)

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **options: Any) -> Tensor:
        """See `NeuralNetClassifier`; votes may be integers."""
        if isinstance(y_true, Tensor) and y_true.dim() == 2 and not y_true.is_floating_point():
            y_true = y_true.float()
        return super().get_loss(y_pred, y_true, *args, **options)

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        accuracy = EpochScoring(_accuracy, name="valid_acc", lower_is_better=False)
        given = super()._default_callbacks
        return [(name, accuracy if name == "valid_acc" else callback) for name, callback in given]

    def _get_predict_nonlinearity(self) -> Any:
        self.check_is_fitted()
        criterion = getattr(self.criterion_, "_orig_mod", self.criterion_)  # where it is compiled
        if self.predict_nonlinearity == "auto" and isinstance(criterion, BeliefMatchingLoss):
            return partial(torch.softmax, dim=-1)
        return super()._get_predict_nonlinearity()


def _accuracy(net: BeliefNetClassifier, X: Any, y: Any) -> float:
    return net.score(X, y)


def _is_votes(y: Any) -> bool:
    return len(np.shape(y)) == 2


def _texts(y: Any) -> list[str]:
    """The labels that are text."""
    return [] if isinstance(y, Tensor) else [f"{one}" for one in np.ravel(y).tolist() if isinstance(one, str)]


def _majority(y: Any) -> Any:
    """The class with most votes of each example; class ids as they are."""
    return np.asarray(to_numpy(y)).argmax(1) if y is not None and _is_votes(y) else y
