"""Belief matching as a scikit-learn classifier: `BeliefClassifier` for tables of numbers.

Needs `pip install "beliefmatch[sklearn]"`.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._torch_state import fitting
from beliefmatch._utils import derive_seed
from beliefmatch._validate import (
    describe,
    fail,
    level_of_caller,
    naming_arguments,
    require_choice,
    require_finite_number,
    require_index,
    warn,
)
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.search import HeadSearch
from beliefmatch.belief import AbstentionRule, Belief, Measure
from beliefmatch.mlp import Layers, NetworkTraining, Schedule, forward, initial_layers, train_networks

with needs("scikit-learn", extra="sklearn", caller="beliefmatch.sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
    from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit, check_cv
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data

__all__ = ["BeliefClassifier"]

_NAME = "BeliefClassifier"
_HIDDEN = (100,)
"""Architecture that "auto" compares with the linear model, and that `partial_fit` starts with."""
_FOLDS, _MANY_ROWS, _HELD_OUT = 5, 10_000, 0.1
_TOLERANCE = 1e-3  # of the linear solver, relative to the objective
_FINAL_TOLERANCE = 1e-8  # of the model that is kept; its probabilities are right to about 1e-4, as float32 is
_MAX_RISE = 0.002  # relative rise of the cross-validated NLL that a stronger prior may cost
_WEIGHT_DECAYS = (1e-3, 1e-2, 1e-1)  # of networks
_KL_WEIGHTS_TIMES_CLASSES = (
    1e-2,
    1e-3,
    1e-1,
)  # λK of networks, for one vote a row; the first with every weight decay
_DEFAULT_WEIGHT_DECAY, _DEFAULT_KL_WEIGHT_TIMES_CLASSES = 1e-3, 1e-2  # where nothing can be cross-validated
_CONFIDENCE = 0.9  # threshold of `abstain`
_MOST_WEIGHTS = 10**9  # of a network, 4 GB
_MAX_LOGITS = 4_000_000  # computed at once
_SHOWN = 10  # classes in a message
_LARGEST = {
    "y": 1e15,
    "sample_weight": 1e30,
}  # votes of a row that float32 can add, weights to multiply X² by
_FAR = 100.0  # deviations from the mean of a value that may hide the others
_MAX_DEVIATIONS = 1e6  # deviations from the mean: a number that float32 can square


class BeliefClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of tabular data whose prediction is a Dirichlet over the class probabilities.

    A linear model or a small multilayer perceptron, trained by belief matching on standardised features.
    What is "auto" is chosen by the negative log-likelihood (NLL) of cross-validation. The linear model is
    fitted to its optimum on all rows. Of a perceptron one network is trained for each fold, until the NLL of
    its held-out rows no longer falls; the prediction is the mean of the networks' log-concentrations.

    Args:
        hidden_layer_sizes: Number of units of each hidden layer; () for a linear model; "auto" for the better
            of a linear model and one hidden layer of 100 units.
        kl_weight: λ > 0, the weight of the prior. "auto" chooses the largest whose NLL is within 0.2 % of
            the lowest.
        weight_decay: Factor on half the squared norm of the weights, or "auto".
        prior: β > 0 of the prior Dirichlet, a number or one for each class.
        class_weight: Weights of the classes: a dictionary, "balanced", or None for equal weights.
        cv: Folds of the cross-validation: a number, a splitter or an iterable of pairs of row indices, as in
            scikit-learn. "auto" is 5 stratified folds; above 10,000 rows, one held-out tenth.
        early_stopping: Whether perceptrons stop when the NLL of held-out rows no longer falls. Otherwise one
            network is trained on all rows for `max_iter` epochs.
        max_iter: Largest number of epochs of a perceptron.
        learning_rate: Learning rate of Adam, for perceptrons and `partial_fit`.
        batch_size: Rows of a step of Adam; "auto" is a fifth of the rows, but between 32 and 256.
        n_iter_no_change: Epochs without a lower NLL of held-out rows after which a network stops.
        tol: Fall of that NLL which counts as lower.
        random_state: Seed of the folds, of the initial weights and of the order of the rows. An integer makes
            every `fit` the same.

    Attributes:
        classes_: Labels of the classes, in the order of the columns of `predict_proba`.
        kl_weight_: λ of the fitted model.
        weight_decay_: Weight decay of the fitted model.
        hidden_layer_sizes_: Architecture of the fitted model.
        cv_results_: Architecture, λ, weight decay and cross-validated NLL of every candidate: a dictionary of
            lists. Empty lists where nothing was cross-validated.
        n_iter_: Epoch of the kept weights, the latest of all networks. With early stopping, networks train
            for up to `n_iter_no_change` further epochs, which are discarded. Of a linear model, iterations of
            L-BFGS. Each call of `partial_fit` adds one.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, where `X` has names.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from beliefmatch.sklearn import BeliefClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = BeliefClassifier((), random_state=0).fit(X, y)
        >>> model.predict(X[[0, 50, 100]]).tolist()
        [0, 1, 2]
        >>> model.belief(X[:2])
        Belief(classes=3, shape=(2, 3), dim=1)
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | Literal["auto"] = "auto",
        *,
        kl_weight: float | Literal["auto"] = "auto",
        weight_decay: float | Literal["auto"] = "auto",
        prior: float | Sequence[float] = 1.0,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        cv: Any = "auto",
        early_stopping: bool = True,
        max_iter: int = 500,
        learning_rate: float = 3e-3,
        batch_size: int | Literal["auto"] = "auto",
        n_iter_no_change: int = 15,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.kl_weight = kl_weight
        self.weight_decay = weight_decay
        self.prior = prior
        self.class_weight = class_weight
        self.cv = cv
        self.early_stopping = early_stopping
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BeliefClassifier":
        """Fit the model; what an earlier `fit` or `partial_fit` learnt is forgotten.

        Args:
            X: Features (N, F): an array or a data frame of numbers.
            y: Labels (N,); or votes, counts ≥ 0 of each class, (N, K) with K ≥ 2. The columns of a data frame
                of votes name the classes. A row without votes draws its belief to the prior.
            sample_weight: Weight of the loss of each row, (N,). A weight of 0 leaves the row out. Two votes
                for a row are not the same as a weight of 2: votes outweigh the prior, a weight does not.
        """
        with self._kept_on_failure():
            self._fit(X, y, sample_weight)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "BeliefClassifier":
        """One pass of Adam over some rows, for data that come in parts or do not fit into memory.

        A fitted model is trained on. A new one has the architecture given, one hidden layer of 100 units for
        "auto". Parts of the data cannot be cross-validated: for "auto", λ = 0.01 / K and the weight decay is
        0.001.
        Features are standardised by the mean and deviation of all rows so far. Parameters that `set_params`
        changes between calls hold from the next call on, but for the architecture; "auto" keeps the λ and
        weight decay of the model.

        Args:
            X: Features (N, F).
            y: Labels or votes, as for `fit`.
            classes: Labels of all classes, needed at the first call unless `y` are votes. For votes, names of
                the columns in their order; by default the columns of a data frame, else those of the first
                call, else 0 to K − 1.
            sample_weight: Weight of the loss of each row.
        """
        with self._kept_on_failure():
            self._partial_fit(X, y, classes, sample_weight)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Label of the most probable class of each row."""
        ids = self._log_alpha(X).argmax(1).numpy()
        return self.classes_[ids]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (N, K), the mean of the belief."""
        return self._log_alpha(X).softmax(1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the class probabilities, (N, K); finite where the probability rounds to 0."""
        return self._log_alpha(X).log_softmax(1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-concentrations (N, K) of the belief; of two classes the log-odds of the second, (N,)."""
        logits = self._log_alpha(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def belief(self, X: Any) -> Belief:
        """The Dirichlet over the class probabilities of each row."""
        return Belief(self._log_alpha(X))

    def abstain(
        self,
        X: Any,
        threshold: float | None = None,
        *,
        measure: Measure = "confidence",
        risk: float | None = None,
        calibration: tuple[Any, Any] | None = None,
        delta: float | None = None,
    ) -> np.ndarray:
        """Which rows not to answer, (N,): True where the measure is on the uncertain side of the threshold.

        Args:
            X: Features (N, F).
            threshold: Least confidence or precision, or largest entropy or mutual information, of an answer.
                A confidence of 0.9 where neither it nor `risk` is given.
            measure: See `Belief.abstain`.
            risk: Error rate that the answers must not exceed, in place of `threshold`.
            calibration: Features and labels of held-out rows, with `risk`. They find the threshold, and must
                not have taken part in `fit`.
            delta: Probability with which the guarantee of `risk` may fail, 0.05 by default.
        """
        if measure == "confidence" and all(one is None for one in (threshold, risk, calibration, delta)):
            threshold = _CONFIDENCE
        rule = AbstentionRule(f"{_NAME}.abstain", threshold, measure, risk, calibration, delta)
        return rule.abstains(self.belief(X), self._held_out).numpy()

    def _held_out(self, function: str, X: Any, y: Any) -> tuple[Belief, Tensor]:
        """The belief about held-out rows, and their class ids."""
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise fail(function, f"`calibration` must have labels of shape (N,), got {labels.shape}.")
        with naming_arguments(function, "calibration", y="calibration"):
            belief = self.belief(X)
            ids = _labels(labels, self.classes_, is_part=True).targets
        return belief, torch.from_numpy(ids)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; of votes, the mean share of a row's votes that its predicted class has."""
        if not _is_votes(y):
            return super().score(X, y, sample_weight)
        check_is_fitted(self, "_layers")
        votes = _require_votes(y)
        if votes.shape[1] != len(self.classes_):
            expected = f"votes for {len(self.classes_)} classes"
            raise fail(_NAME, f"`y` must have {expected}, got {votes.shape[1]} columns.")
        _column_names(y, self.classes_)
        predicted = self._log_alpha(X).argmax(1).numpy()
        weights = _check_sample_weight(sample_weight, votes, dtype=np.float64)
        has_votes = votes.sum(1) > 0
        shares = votes[np.arange(len(votes)), predicted][has_votes] / votes.sum(1)[has_votes]
        return float(np.average(shares, weights=weights[has_votes]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    # What the parameters say

    def _options(self) -> "_Options":
        """The parameters, checked."""
        hidden: tuple[int, ...] | None = None
        if not (isinstance(self.hidden_layer_sizes, str) and self.hidden_layer_sizes == "auto"):
            hidden = _hidden(self.hidden_layer_sizes)
        for name in ("max_iter", "n_iter_no_change"):
            if require_index(_NAME, name, getattr(self, name)) < 1:
                raise fail(_NAME, f"`{name}` must be at least 1, got {getattr(self, name)!r}.")
        if not _is_auto(self.batch_size) and require_index(_NAME, "batch_size", self.batch_size) < 1:
            raise fail(_NAME, f'`batch_size` must be at least 1 or "auto", got {self.batch_size!r}.')
        _positive("learning_rate", self.learning_rate)
        if not isinstance(self.early_stopping, (bool, np.bool_)):
            raise fail(
                _NAME,
                f"`early_stopping` must be True or False, got {describe(self.early_stopping)}.",
                TypeError,
            )
        if require_finite_number(_NAME, "tol", self.tol) < 0:
            raise fail(_NAME, f"`tol` must not be negative, got {self.tol!r}.")
        return _Options(
            hidden,
            None if _is_auto(self.kl_weight) else _positive("kl_weight", self.kl_weight),
            None if _is_auto(self.weight_decay) else _positive("weight_decay", self.weight_decay),
            _prior(self.prior),
        )

    def _schedule(self, data: "_Data") -> Schedule:
        size = min(256, max(32, len(data.rows) // 5)) if _is_auto(self.batch_size) else int(self.batch_size)
        return Schedule(
            max_epochs=int(self.max_iter),
            learning_rate=float(self.learning_rate),
            batch_size=size,
            patience=int(self.n_iter_no_change),
            tolerance=float(self.tol),
        )

    # Data

    def _validated(
        self, X: Any, y: Any, *, reset: bool, classes: np.ndarray | None = None, is_part: bool = False
    ) -> tuple[np.ndarray, "_Labels"]:
        """Features in double precision, and labels."""
        if y is None:
            raise fail(_NAME, "requires y to be passed, but the target y is None.")
        if _is_votes(y):
            rows: Any = validate_data(self, X, dtype=np.float64, reset=reset)
            known = classes if classes is not None or reset else self.classes_
            names = _column_names(y, known)
            votes = _require_votes(y)
            labels = _Labels(names, votes, votes)
        else:
            both: Any = validate_data(self, X, y, dtype=np.float64, reset=reset, multi_output=True)
            rows, given = both
            known = None if classes is None else np.unique(classes)
            if not reset and (known is None or np.array_equal(known, np.unique(self.classes_))):
                known = self.classes_  # in the order of the columns of votes
            labels = _labels(given, known, is_part)
        if len(labels.given) != len(rows):
            raise fail(_NAME, f"`y` must have {len(rows)} rows as `X`, got {len(labels.given)}.")
        if len(labels.classes) < 2:
            fact = f"`y` must have at least 2 classes, got 1 class: {labels.classes.tolist()}"
            raise fail(_NAME, f"{fact}.")
        return rows, labels

    def _standardized(self, rows: np.ndarray) -> Tensor:
        with np.errstate(over="ignore"):
            standardized = np.clip(
                np.asarray(self._scaler.transform(rows)), -_MAX_DEVIATIONS, _MAX_DEVIATIONS
            )
        return torch.from_numpy(standardized.astype(np.float32, order="C"))

    # Fitting

    @contextmanager
    def _kept_on_failure(self) -> Iterator[None]:
        """What was fitted before stays, where the block fails, which changes none of it in place."""
        before = dict(self.__dict__)
        try:
            with fitting():
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        options = self._options()
        rows, labels = self._validated(X, y, reset=True)
        weights = _sample_weights(sample_weight, rows)
        used = weights > 0
        if not used.any():
            raise fail(_NAME, "`sample_weight` must be positive for at least one row, got none.")
        _require_prior_of(options.prior, len(labels.classes))
        self.classes_, self._scaler = labels.classes, _fitted(StandardScaler(), rows[used], weights[used])
        data = _weighted(self._standardized(rows[used]), labels.take(used), weights[used], self.class_weight)
        _warn_of_labels(labels.take(used))
        _warn_of_features(rows[used], data.rows)
        random = check_random_state(self.random_state)
        folds = _folds(self.cv, data, labels.given, used, random)
        self._choose(data, folds, options, seed=int(random.randint(2**31)))

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> None:
        options = self._options()
        is_first = not hasattr(self, "_layers")
        rows, labels = self._validated(
            X, y, reset=is_first, classes=None if classes is None else _known_classes(classes), is_part=True
        )
        if is_first:
            self.classes_ = labels.classes
            self._scaler = StandardScaler()
        elif not np.array_equal(labels.classes, self.classes_):
            expected = f"the same as before, {self.classes_.tolist()}"
            raise fail(_NAME, f"`classes` must be {expected}, got {labels.classes.tolist()}.")
        weights = _sample_weights(sample_weight, rows)
        used = weights > 0
        if not used.any():
            return
        _require_prior_of(options.prior, len(labels.classes))
        self._scaler = _fitted(deepcopy(self._scaler), rows[used], weights[used])
        data = _weighted(self._standardized(rows[used]), labels.take(used), weights[used], self.class_weight)
        if is_first:
            hidden = _HIDDEN if options.hidden is None else options.hidden
            candidate = _default_candidate(options, data)
            seed = int(check_random_state(self.random_state).randint(2**31))
            self._set(_initial(hidden, [candidate], data, [seed]), hidden, candidate)
            self.cv_results_, self.n_iter_ = _results([]), 0
        members = len(self._layers[0][0])
        self.kl_weight_ = options.kl_weight or self.kl_weight_
        self.weight_decay_ = options.weight_decay or self.weight_decay_
        candidates = [_candidate(self.kl_weight_, self.weight_decay_, options.prior)] * members
        learning_rate = float(self.learning_rate)
        if hasattr(self, "_training"):
            training = deepcopy(self._training)  # the pass may fail halfway
            training.change(candidates, learning_rate)
        else:
            training = NetworkTraining(self._layers, candidates, learning_rate)
            self._random = check_random_state(self.random_state)
        training.epoch(
            data.rows,
            data.targets,
            data.weights.expand(members, -1),
            batch_size=self._schedule(data).batch_size,
            generator=torch.Generator().manual_seed(int(self._random.randint(2**31))),
        )
        _require_finite(training.layers, learning_rate)
        self._training, self._layers = training, training.layers
        self.n_iter_ += 1

    def _choose(self, data: "_Data", folds: list["_Fold"], options: "_Options", *, seed: int) -> None:
        """Fit the architectures in question and keep the better one."""
        found: list[_Fit] = []
        if options.hidden is None or options.hidden == ():
            found.append(_linear(data, folds, options))
        if options.hidden != ():
            hidden = options.hidden or _HIDDEN
            if folds or options.hidden is not None:
                found.append(self._networks(hidden, data, folds, options, seed))
        best = min(found, key=lambda fit: fit.nll)
        if best.hidden:
            _require_finite(best.layers, float(self.learning_rate), nll=best.nll)
        if not best.converged:
            _warn_of_convergence(best, int(self.max_iter))
        self._set(best.layers, best.hidden, best.candidate)
        self.cv_results_ = _results(found)
        self.n_iter_ = best.iterations
        self.__dict__.pop("_training", None)

    def _networks(
        self,
        hidden: tuple[int, ...],
        data: "_Data",
        folds: list["_Fold"],
        options: "_Options",
        seed: int,
    ) -> "_Fit":
        """Networks of one architecture: the best weight decay first, then λ."""
        schedule = self._schedule(data)
        if not folds:
            return _one_network(hidden, _default_candidate(options, data), data, schedule, seed)
        fit = partial(_fold_networks, hidden, data, folds, schedule, seed, self.early_stopping)
        first, *others = _kl_weights(options, data, _KL_WEIGHTS_TIMES_CLASSES)
        decays = _WEIGHT_DECAYS if options.weight_decay is None else (options.weight_decay,)
        tried = fit([_candidate(first, decay, options.prior) for decay in decays])
        best = min(tried, key=lambda one: one.nll)
        decay = best.candidate.weight_decay
        path = [best]
        if others:
            path += fit([_candidate(one, decay, options.prior) for one in others])
        most = (1 + _MAX_RISE) * min(one.nll for one in path)
        best = max((one for one in path if one.nll <= most), key=lambda one: one.candidate.kl_weight)
        scored = [row for one in [*tried, *path[1:]] for row in one.scored]
        if not self.early_stopping:
            best = _one_network(hidden, best.candidate, data, schedule, seed)._replace(nll=best.nll)
        return best._replace(scored=scored)

    def _set(self, layers: Layers, hidden: tuple[int, ...], candidate: Candidate) -> None:
        self._layers = layers
        self.hidden_layer_sizes_ = hidden
        self.kl_weight_, self.weight_decay_ = candidate.kl_weight, candidate.weight_decay

    # Predicting

    @torch.no_grad()
    def _log_alpha(self, X: Any) -> Tensor:
        """Log-concentrations (N, K) in double precision: the mean of the networks."""
        check_is_fitted(self, "_layers")
        rows: Any = validate_data(self, X, dtype=np.float64, reset=False)
        widest = max(weight.shape[0] * weight.shape[1] for weight, _ in self._layers)
        parts = self._standardized(rows).split(max(1, _MAX_LOGITS // widest))
        return torch.cat([forward(self._layers, one).double().mean(0).t() for one in parts])


class _Options(NamedTuple):
    """Parameters; None for "auto"."""

    hidden: tuple[int, ...] | None
    kl_weight: float | None
    weight_decay: float | None
    prior: float | tuple[float, ...]


class _Labels(NamedTuple):
    """Labels as the estimator knows them."""

    classes: np.ndarray
    targets: np.ndarray
    """Class ids (N,) or votes (N, K)."""
    given: np.ndarray
    """As the user gave them; a splitter of folds looks at them."""

    def take(self, rows: np.ndarray) -> "_Labels":
        return _Labels(self.classes, self.targets[rows], self.given[rows])


class _Data(NamedTuple):
    """What is fitted on."""

    rows: Tensor
    """Standardised features (N, F), float32."""
    targets: Tensor
    """Class ids (N,), or counts (N, K) in float32 that contain the class weights."""
    weights: Tensor
    """Of each row, (N,), float32: sample weights times class weights, with mean 1."""
    classes: int

    @property
    def votes(self) -> float:
        """Mean number of votes of a row."""
        return 1.0 if self.targets.dim() == 1 else max(1.0, self.targets.sum(1).mean().item())

    @property
    def scorable(self) -> Tensor:
        """1 for each row that has votes, else 0."""
        is_known = torch.ones(len(self.rows)) if self.targets.dim() == 1 else self.targets.sum(1) > 0
        return is_known.float()


class _Fold(NamedTuple):
    """Indices of the rows to fit on, and of those to score on."""

    fitted: np.ndarray
    held_out: np.ndarray


class _Fit(NamedTuple):
    """A fitted architecture."""

    hidden: tuple[int, ...]
    candidate: Candidate
    layers: Layers
    nll: float
    """Of cross-validation; NaN without."""
    iterations: int
    converged: bool
    scored: list[tuple[tuple[int, ...], float, float, float]]
    """Architecture, λ, weight decay and NLL of all candidates."""


def _candidate(kl_weight: float, weight_decay: float, prior: float | tuple[float, ...]) -> Candidate:
    return Candidate("belief_matching", {"kl_weight": kl_weight, "prior": prior}, weight_decay=weight_decay)


def _default_candidate(options: _Options, data: _Data) -> Candidate:
    """Where nothing can be cross-validated."""
    (kl_weight,) = _kl_weights(options, data, (_DEFAULT_KL_WEIGHT_TIMES_CLASSES,))
    return _candidate(kl_weight, options.weight_decay or _DEFAULT_WEIGHT_DECAY, options.prior)


def _kl_weights(options: _Options, data: _Data, times_classes: Iterable[float]) -> list[float]:
    if options.kl_weight is not None:
        return [options.kl_weight]
    return [float(f"{data.votes * one / data.classes:.1e}") for one in times_classes]


def _linear(data: _Data, folds: list[_Fold], options: _Options) -> _Fit:
    """The linear model of the best weight decay and λ, fitted to all rows."""
    config = AdaptConfig(
        kl_weights=None if options.kl_weight is None else (options.kl_weight,),
        weight_decays=None if options.weight_decay is None else (options.weight_decay,),
        tolerance=_TOLERANCE,
    )
    if not folds:
        only = _default_candidate(options, data)
        config = AdaptConfig(
            kl_weights=(only.kl_weight,), weight_decays=(only.weight_decay,), tolerance=_TOLERANCE
        )
    features = Features(data.rows.numpy(), data.targets, digest="")
    search = HeadSearch(
        features,
        None,
        data.classes,
        config=config,
        row_weights=data.weights,
        folds=folds,
        max_rise=_MAX_RISE,
    )
    head = search.belief_matching(search.softmax(), options.prior)
    tried = [one for one in search.heads if one.candidate.kind == "belief_matching"]
    final = search.refined(head, _FINAL_TOLERANCE)
    layers = [(final.weight[None], final.bias[None])]
    scored = [((), one.candidate.kl_weight, one.candidate.weight_decay, search.nll(one)) for one in tried]
    nll, scored = search.nll(head), scored if folds else []
    converged = head.converged or (final.gap is not None and final.gap <= _TOLERANCE)
    return _Fit((), head.candidate, layers, nll, head.iterations + final.iterations, converged, scored)


def _fold_networks(
    hidden: tuple[int, ...],
    data: _Data,
    folds: list[_Fold],
    schedule: Schedule,
    seed: int,
    early_stopping: bool,
    candidates: list[Candidate],
) -> list[_Fit]:
    """For each candidate the networks of all folds."""
    copies = len(folds)
    kept, held = torch.zeros(2, copies, len(data.rows), dtype=torch.float32)
    for number, fold in enumerate(folds):
        kept[number, fold.fitted], held[number, fold.held_out] = 1, 1
    kept, held = kept * data.weights, held * data.weights * data.scorable
    batch = [one for one in candidates for _ in folds]
    seeds = [derive_seed(seed, number) for _ in candidates for number in range(copies)]
    trained = train_networks(
        _initial(hidden, batch, data, seeds),
        data.rows,
        data.targets,
        batch,
        schedule,
        row_weights=kept.repeat(len(candidates), 1),
        held_out=held.repeat(len(candidates), 1),
        stop_early=early_stopping,
        seed=seed,
    )
    shares = held.sum(1, dtype=torch.float64) / held.sum(dtype=torch.float64)
    nlls = (trained.nll.view(-1, copies) * shares).sum(1).nan_to_num(math.inf, posinf=math.inf).tolist()
    fits = []
    for number, (candidate, nll) in enumerate(zip(candidates, nlls, strict=True)):
        own = slice(number * copies, (number + 1) * copies)
        layers = [(weight[own].clone(), bias[own].clone()) for weight, bias in trained.layers]
        row = (hidden, candidate.kl_weight, candidate.weight_decay, nll)
        epochs, is_finished = int(trained.epochs[own].max()), bool(trained.finished[own].all())
        fits.append(_Fit(hidden, candidate, layers, nll, epochs, is_finished, [row]))
    return fits


def _one_network(
    hidden: tuple[int, ...], candidate: Candidate, data: _Data, schedule: Schedule, seed: int
) -> _Fit:
    """One network trained on all rows for all epochs."""
    trained = train_networks(
        _initial(hidden, [candidate], data, [derive_seed(seed, 0)]),
        data.rows,
        data.targets,
        [candidate],
        schedule,
        row_weights=data.weights[None],
        seed=seed,
    )
    return _Fit(hidden, candidate, trained.layers, math.nan, schedule.max_epochs, True, [])


def _initial(hidden: tuple[int, ...], candidates: list[Candidate], data: _Data, seeds: list[int]) -> Layers:
    sizes = (data.rows.shape[1], *hidden, data.classes)
    if (weights := sum(size * width for size, width in pairwise(sizes))) > _MOST_WEIGHTS:
        fact = f"`hidden_layer_sizes` must give at most {_MOST_WEIGHTS:,} weights"
        raise fail(_NAME, f"{fact}, got {hidden} for {sizes[0]} features: {weights:,}.")
    counts = data.targets
    if counts.dim() == 1:
        counts = torch.nn.functional.one_hot(counts, data.classes).float()
    shares = (data.weights[:, None] * counts).sum(0) / data.weights.sum()
    return initial_layers(sizes, candidates, shares, seeds)


def _results(fits: list[_Fit]) -> dict[str, list[Any]]:
    names = ("hidden_layer_sizes", "kl_weight", "weight_decay", "nll")
    table = [row for fit in fits for row in fit.scored]
    return {name: [row[column] for row in table] for column, name in enumerate(names)}


def _folds(
    cv: Any, data: _Data, given: np.ndarray, used: np.ndarray, random: np.random.RandomState
) -> list[_Fold]:
    """Pairs of row indices for cross-validation; none where there are too few rows.

    Args:
        cv: The parameter.
        data: Rows of positive weight. Those without votes are fitted on but not scored.
        given: Labels or votes of all rows.
        used: Which of all rows have a positive weight. Splits of the user refer to all rows.
        random: Shuffles the rows.
    """
    seed = int(random.randint(2**31))
    if _is_auto(cv) or (isinstance(cv, Integral) and not isinstance(cv, bool)):
        ids = data.targets.numpy() if data.targets.dim() == 1 else None
        splitter = _splitter(_FOLDS if _is_auto(cv) else int(cv), len(data.rows), ids, seed, _is_auto(cv))
        if splitter is None:
            return []
        with warnings.catch_warnings():
            # a class of fewer rows than folds is held out by some of the folds only
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            pairs = [*splitter.split(np.zeros((len(data.rows), 1)), ids)]
    else:
        place = np.cumsum(used) - 1
        splitter: Any = check_cv(cv, given, classifier=True)
        splits = splitter.split(np.zeros((len(used), 1)), given)
        of_all = [[_row_indices(one, len(used)) for one in pair] for pair in splits]
        if not of_all:
            raise fail(_NAME, f"`cv` must give at least one pair of row indices, got {describe(cv)}.")
        pairs = [[place[one[used[one]]] for one in pair] for pair in of_all]
    scorable = data.scorable.numpy() > 0
    return [_Fold(*one) for one in pairs if len(one[0]) and scorable[one[1]].any()]


def _row_indices(indices: Any, rows: int) -> np.ndarray:
    """One part of a split that the user gave."""
    found = np.asarray(indices)
    found = found.astype(np.int64) if found.size == 0 else found
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise fail(_NAME, f"`cv` must give pairs of row indices, got {describe(indices)}.", TypeError)
    if found.size and not 0 <= found.min() <= found.max() < rows:
        wrong = found.min() if found.min() < 0 else found.max()
        raise fail(_NAME, f"`cv` must give row indices from 0 to {rows - 1}, got {wrong}.")
    return found


def _splitter(folds: int, rows: int, ids: np.ndarray | None, seed: int, is_auto: bool) -> Any:
    """Stratified where there are class ids; None where there are too few rows."""
    counts = None if ids is None else np.unique(ids, return_counts=True)[1]
    if is_auto and rows > _MANY_ROWS:
        make = ShuffleSplit if counts is None or counts.min() < 2 else StratifiedShuffleSplit
        return make(1, test_size=_HELD_OUT, random_state=seed)
    if folds < 2:
        raise fail(_NAME, f"`cv` must be at least 2 folds, got {folds}.")
    if is_auto and rows < 2 * folds:
        return None
    if rows < folds:
        raise fail(_NAME, f"`cv` must be at most the number of rows, {rows}, got {folds}.")
    make = KFold if counts is None or counts.max() < folds else StratifiedKFold
    return make(folds, shuffle=True, random_state=seed)


def _weighted(rows: Tensor, labels: _Labels, weights: np.ndarray, class_weight: Any) -> _Data:
    """Rows with class weights applied as the loss applies them.

    The weight of a class multiplies the loss of its rows. Of votes it multiplies the votes, and λ by their
    mean weight κ: that is κ times the loss of the votes divided by κ.
    """
    classes, targets = len(labels.classes), labels.targets
    if class_weight is not None:
        per_class = _class_weights(class_weight, labels, weights)
        if targets.ndim == 1:
            weights = weights * per_class[targets]
        else:
            votes = targets.sum(1)
            mean = np.where(votes > 0, (targets * per_class).sum(1) / np.maximum(votes, 1e-300), 1.0)
            targets = targets * per_class / np.where(mean > 0, mean, 1.0)[:, None]
            weights = weights * mean
    weights = weights / weights.mean()
    dtype = torch.int64 if targets.ndim == 1 else torch.float32
    as_tensor = torch.from_numpy(np.ascontiguousarray(targets)).to(dtype)
    return _Data(rows, as_tensor, torch.from_numpy(weights).float(), classes)


def _class_weights(class_weight: Any, labels: _Labels, weights: np.ndarray) -> np.ndarray:
    """Weight of each class."""
    if isinstance(class_weight, str) and class_weight == "balanced" and labels.targets.ndim == 2:
        totals = (weights[:, None] * labels.targets).sum(0)
        return totals.sum() / (len(totals) * np.maximum(totals, 1e-300)) * (totals > 0)
    if isinstance(class_weight, str):
        require_choice(_NAME, "class_weight", class_weight, ("balanced",))
        present = np.bincount(labels.targets, weights=weights, minlength=len(labels.classes))
        return present.sum() / (len(present) * np.maximum(present, 1e-300)) * (present > 0)
    if not isinstance(class_weight, dict):
        expected = 'a dictionary, "balanced" or None'
        raise fail(_NAME, f"`class_weight` must be {expected}, got {class_weight!r}.")
    known = labels.classes.tolist()
    if unknown := [one for one in class_weight if one not in known]:
        raise fail(_NAME, f"`class_weight` must name classes of {known}, got {unknown[0]!r}.")
    found = [require_finite_number(_NAME, "class_weight", class_weight.get(one, 1.0)) for one in known]
    if min(found) <= 0:
        raise fail(_NAME, f"`class_weight` must be positive, got {min(found)!r}.")
    return np.array(found)


def _fitted(scaler: StandardScaler, rows: np.ndarray, weights: np.ndarray) -> StandardScaler:
    """The scaler with these rows added."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaler.partial_fit(rows, sample_weight=weights)
    scale = np.asarray(scaler.scale_)
    if not np.isfinite(scale).all():
        column = int(np.flatnonzero(~np.isfinite(scale))[0])
        largest = f"{np.abs(rows[:, column]).max():.3g} in column {column}"
        raise fail(_NAME, f"`X` must be small enough to be squared in double precision, got {largest}.")
    return scaler


def _sample_weights(sample_weight: Any, rows: np.ndarray) -> np.ndarray:
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    _require_at_most("sample_weight", weights)
    return weights


def _require_at_most(name: str, values: np.ndarray) -> None:
    if values.max() > _LARGEST[name]:
        expected = f"at most {_LARGEST[name]:g} for a row"
        raise fail(_NAME, f"`{name}` must be {expected}, got {values.max():.3g}; divide all by one number.")


def _require_finite(layers: Layers, learning_rate: float, nll: float = math.nan) -> None:
    """Weights that are finite, and an NLL that is finite or was not computed."""
    if nll == math.inf or not all(one.isfinite().all() for layer in layers for one in layer):
        fact = "`learning_rate` must be small enough for the weights to stay finite"
        raise fail(_NAME, f"{fact}, got {learning_rate:g}.")


def _warn_of_labels(labels: _Labels) -> None:
    """Warn of classes with a single row of positive weight or none, and of those without a vote."""
    prior_alone = "only the prior gives such a class a probability"
    if labels.targets.ndim == 1:
        rows = np.bincount(labels.targets, minlength=len(labels.classes))
        once = "cross-validation cannot both fit and score such a class"
        found = [("has no row of positive weight of", prior_alone, rows == 0)]
        found.append(("has a single row of", once, rows == 1))
    else:
        found = [("has no vote for", prior_alone, ~labels.targets.any(0))]
    for fact, effect, is_meant in found:
        if is_meant.any():
            meant = labels.classes[is_meant]
            which = "class" if len(meant) == 1 else "each of the classes"
            warn(_NAME, f"`y` {fact} {which} {_named(meant)}; {effect}.")


def _named(classes: np.ndarray) -> str:
    """Labels of the first classes, and how many more there are."""
    more = f" and {len(classes) - _SHOWN} more" if len(classes) > _SHOWN else ""
    return ", ".join(map(repr, classes[:_SHOWN].tolist())) + more


def _warn_of_features(rows: np.ndarray, standardized: Tensor) -> None:
    """Warn where no feature varies, and of values so large that all others become one number."""
    values = standardized.numpy()
    if len(rows) > 1 and (np.ptp(values, axis=0) == 0).all():
        warn(
            _NAME,
            "`X` has the same features in every row; the model can only learn how frequent classes are.",
        )
    for column in np.flatnonzero(np.abs(values).max(0) > min(_FAR, math.sqrt(len(rows)) / 2)):
        low, high = np.quantile(rows[:, column], (0.25, 0.75))
        own_low, own_high = np.quantile(values[:, column], (0.25, 0.75))
        if high > low and own_high == own_low:
            largest = f"{np.abs(rows[:, column]).max():.3g}"
            fact = f"`X` has values of up to {largest} in column {column}, beside which most others are equal"
            warn(_NAME, f"{fact} in single precision; look for wrong values.")


def _warn_of_convergence(fit: _Fit, max_iter: int) -> None:
    if fit.hidden:
        fact = "the NLL of held-out rows was still falling"
        fact += f" after {max_iter} epochs; raise `max_iter` or `learning_rate`"
    else:
        fact = f"the linear model has not converged in {fit.iterations} iterations with "
        fact += f"λ = {fit.candidate.kl_weight:g}, weight decay {fit.candidate.weight_decay:g}"
    warnings.warn(ConvergenceWarning(f"{_NAME}: {fact}."), stacklevel=level_of_caller())


def _require_prior_of(prior: float | tuple[float, ...], classes: int) -> None:
    if isinstance(prior, tuple) and len(prior) != classes:
        raise fail(_NAME, f"`prior` must be a number or one for each of {classes} classes, got {len(prior)}.")


def _is_votes(y: Any) -> bool:
    """Whether `y` has two dimensions and more than one column."""
    shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    return len(shape) == 2 and shape[1] > 1


def _require_votes(y: Any) -> np.ndarray:
    votes = check_array(y, dtype="float64", input_name="y")
    if (votes < 0).any():
        raise fail(_NAME, f"`y` must be counts that are not negative, got {votes.min()}.")
    _require_at_most("y", votes.sum(1))
    if not votes.any():
        raise fail(_NAME, "`y` must have votes, got none: all counts are 0.")
    return votes


def _column_names(y: Any, known: np.ndarray | None) -> np.ndarray:
    """Names of the classes: the columns of a data frame, else those that are known, else 0 to K − 1."""
    width = np.shape(y)[1]
    columns = getattr(y, "columns", None)
    own = None if columns is None else np.asarray(list(columns))
    if own is not None and len(set(own.tolist())) < width:
        raise fail(_NAME, f"`y` must have different names of its columns, got {own.tolist()}.")
    if known is None:
        return np.arange(width) if own is None else own
    if known.shape != (width,) or len(np.unique(known)) < width:
        expected = f"different names of the {width} columns of `y`"
        raise fail(_NAME, f"`classes` must be {expected}, got {known.tolist()}.")
    if own is not None and not np.array_equal(own, known):
        raise fail(_NAME, f"`y` must have the columns {known.tolist()}, got {own.tolist()}.")
    return known


def _labels(given: np.ndarray, classes: np.ndarray | None, is_part: bool) -> _Labels:
    """Class ids of labels; `classes` are those that are known."""
    if given.ndim == 2:
        message = "A column-vector y was passed when a 1d array was expected; it is used as y.ravel()."
        warnings.warn(message, DataConversionWarning, stacklevel=level_of_caller())
        given = given.ravel()
    check_classification_targets(given)
    if classes is None and is_part:
        raise fail(_NAME, "`classes` must be given at the first call of partial_fit.")
    found, ids = np.unique(given, return_inverse=True)
    if classes is None:
        return _Labels(found, ids, given)
    if (found.dtype.kind in "biuf") != (classes.dtype.kind in "biuf"):
        raise fail(_NAME, f"`y` must have labels of {_named(classes)}, got {found[:1].tolist()[0]!r}.")
    order = np.argsort(classes)
    places = order[np.searchsorted(classes, found, sorter=order).clip(max=len(classes) - 1)]
    if len(unknown := found[classes[places] != found]):
        raise fail(_NAME, f"`y` must have labels of {_named(classes)}, got {unknown[:1].tolist()[0]!r}.")
    return _Labels(classes, places[ids], given)


def _known_classes(classes: Any) -> np.ndarray:
    """Labels of all classes as the user lists them, which must have an order."""
    found = np.asarray(classes)
    if found.ndim != 1:
        raise fail(_NAME, f"`classes` must be a list of labels, got {describe(classes)}.", TypeError)
    for one in found.tolist():
        if one is None or one != one:
            raise fail(_NAME, f"`classes` must be labels, got {one!r} among them.")
    try:
        np.unique(found)
    except TypeError as error:
        got = describe(classes)
        raise fail(_NAME, f"`classes` must be labels of one type, got {got}.", TypeError) from error
    return found


def _hidden(sizes: Any) -> tuple[int, ...]:
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        expected = 'a sequence of numbers of units, () for a linear model, or "auto"'
        raise fail(_NAME, f"`hidden_layer_sizes` must be {expected}, got {sizes!r}.")
    found = tuple(require_index(_NAME, "hidden_layer_sizes", one) for one in sizes)
    if any(one < 1 for one in found):
        raise fail(_NAME, f"`hidden_layer_sizes` must be positive, got {found}.")
    return found


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _positive(name: str, value: Any) -> float:
    number = require_finite_number(_NAME, name, value)
    if number <= 0:
        raise fail(_NAME, f"`{name}` must be positive, got {value!r}.")
    return number


def _prior(prior: Any) -> float | tuple[float, ...]:
    if isinstance(prior, Iterable) and not isinstance(prior, str):
        return tuple(_positive("prior", one) for one in prior)
    return _positive("prior", prior)
