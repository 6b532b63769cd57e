"""Last-layer Laplace: a Gaussian around the weights of a softmax head (Daxberger et al. 2021).

Curvature and prior are laplace-torch's: the generalised Gauss-Newton matrix in Kronecker factors, one of the
features and one of the classes, and the prior precision of the highest marginal likelihood of the training
features. The predictive distribution is the probit approximation. It is computed here, because of a linear
layer it needs no Jacobians: the variance of a logit is a sum over the eigenvalues of the two factors.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from beliefmatch._environment import needs
from beliefmatch.adaptation.feature_rows import Features, labelled
from beliefmatch.adaptation.fitted import Candidate, FittedHead
from beliefmatch.adaptation.scoring import score
from beliefmatch.methods.base import Prediction

__all__ = ["LaplaceHead", "WeightPosterior", "laplace_head", "require_laplace", "why_no_laplace"]

MAX_CLASSES, MAX_WIDTH = 2000, 8192
"""Beyond which the factors' eigenvectors would take too long."""
MAX_WORK = 2e11
"""Rows times squared classes: one gradient for each class of each row, a few minutes."""
_BATCH_NUMBERS = 20_000_000  # of a batch's curvature, rows times squared classes
_BATCH_ROWS = 512


class WeightPosterior(NamedTuple):
    """A Gaussian over weight and bias in the eigenvectors of its two factors; all in double precision."""

    feature_vectors: Tensor
    """(F, F), one a column."""
    class_vectors: Tensor
    """(K, K), one a column; those of the bias are the same."""
    weight_variance: Tensor
    """(F, K), along each pair of them."""
    bias_variance: Tensor
    """(K,)."""

    def variance(self, rows: Tensor) -> Tensor:
        """Of each logit (N, K) of rows (N, F)."""
        along = (rows.double() @ self.feature_vectors).square() @ self.weight_variance + self.bias_variance
        return along @ self.class_vectors.square().t()


@dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceHead(FittedHead):
    """A head whose weights are uncertain."""

    is_linear: ClassVar[bool] = False
    posterior: WeightPosterior

    def predict(self, rows: Tensor) -> Prediction:
        """Softmax of the logits, each shrunk by its variance; the probit approximation."""
        logits = (rows @ self.weight.t() + self.bias).double()
        shrunk = logits / (1 + math.pi / 8 * self.posterior.variance(rows)).sqrt()
        return Prediction(probs=shrunk.softmax(1), logits=shrunk)


def require_laplace() -> None:
    """laplace-torch must be there."""
    with needs("laplace-torch", extra="laplace", caller="adapt"), _quiet():
        import curvlinops  # pyright: ignore[reportMissingImports]
        import laplace  # pyright: ignore[reportMissingImports]

        assert laplace and curvlinops


def why_no_laplace(train: Features, classes: int) -> str | None:
    """Why there is no fair comparison with it, if so."""
    if train.targets.dim() == 2:
        return "a Laplace approximation needs class ids, not counts"
    if classes > MAX_CLASSES or train.width > MAX_WIDTH:
        return f"a Laplace approximation of {train.width} features and {classes} classes is too large"
    work = len(train) * classes**2
    if work > MAX_WORK:
        return f"a Laplace approximation on {len(train)} rows of {classes} classes takes too long"
    return None


def laplace_head(head: FittedHead, train: Features, validation: Features | None = None) -> LaplaceHead:
    """A Gaussian around the weights of a softmax head, with its validation scores.

    Args:
        head: A trained softmax head, or the network's own.
        train: Features that it was trained on.
        validation: Features to score it on.
    """
    with _quiet():
        posterior, precision = _fitted(head, train)
    options = {"prior_precision": precision, "structure": "kron"}
    made = LaplaceHead(
        candidate=Candidate("laplace", options, seed=head.candidate.seed),
        weight=head.weight,
        bias=head.bias,
        converged=head.converged,
        notes=(f"around the weights of {head.candidate.name}",),
        posterior=posterior,
    )
    return made if validation is None else replace(made, validation=score(made, validation))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without that library's warnings, which are about choices made here on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _fitted(head: FittedHead, train: Features) -> tuple[WeightPosterior, float]:
    from laplace.baselaplace import KronLaplace  # pyright: ignore[reportMissingImports]
    from laplace.curvature.curvlinops import CurvlinopsGGN  # pyright: ignore[reportMissingImports]

    classes, width = head.weight.shape
    layer = nn.utils.skip_init(nn.Linear, width, classes)  # draws nothing from the caller's chance
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    approximation = KronLaplace(layer, "classification", backend=CurvlinopsGGN)
    approximation.fit(_loader(train, classes))
    approximation.optimize_prior_precision(method="marglik", link_approx="probit")
    precision = float(approximation.prior_precision.detach().squeeze())
    return _posterior(approximation.H, precision), precision


def _posterior(curvature: Any, precision: float) -> WeightPosterior:
    """From the eigenvalues and eigenvectors of the factors of the weight, and of the bias."""
    of_classes, of_features = (values.detach().double().clamp(min=0) for values in curvature.eigenvalues[0])
    class_vectors, feature_vectors = (one.detach().double() for one in curvature.eigenvectors[0])
    (of_bias,) = (values.detach().double().clamp(min=0) for values in curvature.eigenvalues[1])
    weight_variance = 1 / (of_features[:, None] * of_classes[None] + precision)
    return WeightPosterior(feature_vectors, class_vectors, weight_variance, 1 / (of_bias + precision))


class _Rows(Dataset):
    """Rows of a class by lists of their positions."""

    def __init__(self, features: Features) -> None:
        self.features, self.indices = features, labelled(features)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        indices = self.indices[torch.tensor(positions)]
        rows = torch.tensor(self.features.rows[indices.numpy()], dtype=torch.float32)
        return rows, self.features.targets[indices]


def _loader(train: Features, classes: int) -> DataLoader:
    dataset = _Rows(train)
    size = max(1, min(_BATCH_ROWS, _BATCH_NUMBERS // classes**2))
    batches: Any = BatchSampler(SequentialSampler(dataset), size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=batches, generator=torch.Generator())
