"""Belief matching in fastai, for learners whose targets have another shape than the loss expects."""

from torch import Tensor

from beliefmatch.loss import BeliefMatchingLoss

__all__ = ["BeliefMatchingLossFlat"]


class BeliefMatchingLossFlat(BeliefMatchingLoss):
    """`BeliefMatchingLoss` for fastai's tabular and text learners, in place of `CrossEntropyLossFlat`.

    The classes are the last dimension of the logits; all others are flattened, as are class ids. Tabular
    learners give class ids of shape (N, 1), and text learners give logits of shape (N, T, K). For images and
    for segmentation, `BeliefMatchingLoss` itself has all that fastai needs.

    Example:
        >>> import torch
        >>> from beliefmatch.integrations.fastai import BeliefMatchingLossFlat
        >>> loss = BeliefMatchingLossFlat(target_confidence=0.95)
        >>> f"{loss(torch.zeros(4, 3), torch.tensor([[0], [1], [2], [2]])):.3f}"
        '1.500'
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch; see `belief_matching_loss`."""
        classes = logits.shape[-1]
        flat = targets.reshape(-1, classes) if targets.is_floating_point() else targets.reshape(-1)
        return super().forward(logits.reshape(-1, classes), flat)

    def activation(self, logits: Tensor) -> Tensor:
        """Class probabilities, the mean of the belief, from logits."""
        return logits.softmax(-1)

    def decodes(self, probs: Tensor) -> Tensor:
        """Predicted class ids, from probabilities or logits."""
        return probs.argmax(-1)
