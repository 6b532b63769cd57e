"""The twelve reproductions: what each trains, the rows and figures it ends with, and the paper's numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from beliefmatch.reproduce import arms, figures, tables
from beliefmatch.reproduce.arms import BELIEF, CIFAR, ENSEMBLE, MC_ALL, MC_LAST, SOFTMAX, WITHOUT_KL, Arm
from beliefmatch.reproduce.record import Drawing, Reported, Row
from beliefmatch.reproduce.tables import ECE, ERROR, NLL, Block, Measure, Outcome, table

__all__ = ["REGISTRY", "Reproduction"]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper, or a control that it lacks.

    Args:
        id: As users type it.
        title: What it shows.
        place: Where it is in the paper.
        rows: Reads the numbers from the outcome, with the paper's where there are some.
        arms: Arms to train at a scale.
        transfers: Datasets that a pretrained network is transferred to, instead of arms.
        drawings: Reads the figures from the outcome.
        trials: Number of seeds in the paper; None where it gives none.
        fixed: Settings that identify its rows, in addition to those of every reproduction.
        notes: Differences from the paper at every scale, and what the paper does not state.
    """

    id: str
    title: str
    place: str
    rows: Callable[[Outcome], list[Row]]
    arms: Callable[[str], Sequence[Arm]] = lambda scale: ()
    transfers: tuple[str, ...] = ()
    drawings: Callable[[Outcome], list[Drawing]] = lambda outcome: []
    trials: int | None = None
    fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# Numbers of the paper, in percent

Number = float | tuple[float, float]
"""Alone, or with a standard deviation."""


def _reported(columns: Sequence[str], **rows: Sequence[Number]) -> dict[str, Reported]:
    """A table of the paper; the key of an arm is that of its column, then that of its row."""
    return {
        f"{column}/{name}": Reported(*number) if isinstance(number, tuple) else Reported(number)
        for name, numbers in rows.items()
        for column, number in zip(columns, numbers, strict=True)
    }


_RESNET50 = ("cifar10/preact_resnet50", "cifar100/preact_resnet50")
_CIFAR_ERRORS = _reported(
    ("cifar10/preact_resnet18", "cifar100/preact_resnet18", *_RESNET50),
    softmax=((6.13, 0.13), (26.44, 0.33), (5.76, 0.06), (25.00, 0.23)),
    mc_last=((6.13, 0.08), (26.15, 0.10), (5.75, 0.22), (25.17, 0.09)),
    mc_all=((6.50, 0.14), (27.32, 0.45), (5.84, 0.23), (26.74, 0.37)),
    belief_matching=((5.93, 0.07), (24.19, 0.34), (5.59, 0.05), (23.86, 0.37)),
)
_ABLATION_ERRORS = _CIFAR_ERRORS | _reported(_RESNET50, without_kl=(5.68, 24.69))
_CIFAR_ECES = _reported(
    _RESNET50,
    softmax=(3.82, 13.48),
    mc_last=(3.78, 13.52),
    mc_all=(1.50, 9.76),
    ensemble=(1.04, 3.54),
    belief_matching=(1.66, 4.25),
)
_RESNEXTS = ("ResNeXt-50", "ResNeXt-101")
_IMAGENET_ERRORS = {
    "top-1 error": _reported(_RESNEXTS, softmax=(22.23, 20.72), belief_matching=(22.03, 20.23)),
    "top-5 error": _reported(_RESNEXTS, softmax=(6.36, 5.59), belief_matching=(6.29, 5.26)),
}
_TRANSFER_ERRORS = _reported(
    ("cifar10", "food101", "stanford_cars"),
    softmax=((5.44, 0.10), (28.49, 0.08), (42.99, 0.14)),
    belief_matching=((5.03, 0.04), (26.41, 0.07), (39.99, 0.20)),
)
_SEMI_ERRORS = _reported(
    ("pi", "vat"),
    softmax=((16.52, 0.21), (13.33, 0.37)),
    belief_matching=((16.01, 0.36), (12.40, 0.23)),
)

# Notes that several share

_LAST_EPOCH = (
    "The weights of the last epoch are evaluated; the paper takes the epoch of the lowest validation error."
)
_CIFAR_NOTES = (
    _LAST_EPOCH,
    "Options chosen on validation images (λ, the dropout rate) are chosen with the first seed for all seeds.",
)
_TRANSFER_NOTES = (
    "The epoch of each head is chosen by its error on a tenth of the training images; the paper mentions no "
    "such choice.",
    "Heads of several seeds differ in their initial weights; the order of the batches and the split of the "
    "images are the same. So ± is smaller than that of independent experiments.",
    "There is no warm-up and no clipping of the gradient; the paper says that all experiments have both.",
    "Features are computed once, without augmentation, by a network in evaluation mode; the authors' code "
    "also trains the BatchNorm layers and prints the best test epoch.",
    "Seconds are of the whole adaptation, with all heads and seeds.",
)

_ENTRIES = (
    Reproduction(
        id="table1",
        title="Test error on CIFAR: softmax, MC dropout, belief matching",
        place="table 1",
        arms=partial(
            arms.cifar_arms,
            datasets=CIFAR,
            networks=arms.RESNETS,
            variants=(SOFTMAX, MC_LAST, MC_ALL, BELIEF),
        ),
        rows=table(Block([ERROR]), paper={"error": _CIFAR_ERRORS}),
        trials=5,
        notes=_CIFAR_NOTES,
    ),
    Reproduction(
        id="table2",
        title="Top-1 and top-5 error on ImageNet: softmax, belief matching",
        place="table 2",
        arms=arms.imagenet_arms,
        rows=table(Block([Measure("top-1 error", ERROR.of), tables.top_error(5)]), paper=_IMAGENET_ERRORS),
        trials=1,
        notes=(
            "At paper scale 10,000 training images are held out, which the paper trains on.",
            "At CPU scale any folder with train/ and validation/ stands for ImageNet, and small residual "
            "networks for ResNeXt: that shows that the command runs, and nothing about ImageNet.",
        ),
    ),
    Reproduction(
        id="ablation-kl",
        title="Test error of belief matching without the KL term",
        place="section 5.1, regularization effect of prior",
        arms=partial(arms.cifar_arms, datasets=CIFAR, variants=(SOFTMAX, WITHOUT_KL, BELIEF)),
        rows=table(Block([ERROR]), paper={"error": _ABLATION_ERRORS}),
        notes=_CIFAR_NOTES,
    ),
    Reproduction(
        id="figure-reliability",
        title="Reliability of ResNet-50 on CIFAR, ECE with 15 bins",
        place="figure on calibration",
        arms=partial(arms.cifar_arms, datasets=CIFAR, variants=(SOFTMAX, MC_LAST, MC_ALL, ENSEMBLE, BELIEF)),
        rows=table(
            Block([ECE]),
            Block([ERROR, NLL, tables.TRAINING_LOSS], group="{group}: not in the paper"),
            paper={"ECE": _CIFAR_ECES},
        ),
        drawings=figures.reliability,
        notes=(
            *_CIFAR_NOTES,
            "The paper gives ECE without a deviation, and draws softmax and belief matching alone.",
            "The training loss is the cross-entropy of the last epoch, under augmentation and with dropout.",
        ),
    ),
    Reproduction(
        id="figure-ood",
        title="Predictive entropy of ResNet-50 on CIFAR-100 and on SVHN",
        place="figure on uncertainty representation",
        arms=partial(arms.cifar_arms, datasets=("cifar100",), variants=(SOFTMAX, BELIEF, ENSEMBLE, MC_ALL)),
        rows=table(
            Block(
                [
                    *map(tables.ood_auroc, ("entropy", "mutual_information", "energy")),
                    Measure("entropy, test", tables.mean_entropy, "nats", 3),
                    Measure("entropy, OOD", partial(tables.mean_entropy, ood=0), "nats", 3),
                ]
            )
        ),
        drawings=figures.entropies,
        notes=(*_CIFAR_NOTES, "The paper shows densities and gives no number; AUROC is ours."),
    ),
    Reproduction(
        id="figure-rotation",
        title="Confidence of networks in a rotated digit 3",
        place="introduction",
        arms=arms.rotation_arms,
        rows=table(Block([ERROR, *tables.ROTATION])),
        drawings=figures.rotated_digit,
        notes=(
            "The paper describes the example, after Louizos and Welling (2017), and gives no number.",
            "The digits are scikit-learn's, of 8 by 8 pixels, not MNIST's.",
        ),
    ),
    Reproduction(
        id="figure-representation",
        title="Penultimate activations of three classes of CIFAR-100, with and without the prior",
        place="figure on the representation",
        arms=partial(arms.cifar_arms, datasets=("cifar100",), variants=(WITHOUT_KL, BELIEF)),
        rows=table(Block(tables.ACTIVATIONS)),
        drawings=figures.representations,
        notes=(
            *_CIFAR_NOTES,
            "The classes are found by their names; the paper calls them 0, 1 and 2, which in CIFAR-100's own "
            "order are others (beaver, dolphin and otter are 4, 30 and 55).",
            "The paper gives no number: the range on the plane, and the distance of activations from the "
            "mean of their class over the distance between these means in the whole space, are ours.",
            "The paper does not name the network; ours is that of its ablation.",
        ),
    ),
    Reproduction(
        id="figure-beta",
        title="Error of ResNet-18 on CIFAR-10 against the prior β",
        place="figure on the impact of β",
        arms=arms.prior_arms,
        rows=table(
            Block([ERROR], with_skipped_steps=True),
            paper={"error": {"cifar10/preact_resnet18/alone/8": Reported(7.37)}},
        ),
        drawings=figures.prior_sweep,
        notes=(
            _LAST_EPOCH,
            f"λ is {arms.KL_WEIGHT:g} where β is 1, ln β at paper scale "
            f"{', '.join(map(str, arms.EXPONENTS['paper']))}; the paper states neither.",
            "The paper's words: robust in both ways from e^-1 to e^4; alone, gradients explode from e^-2 "
            "down, the error is 7.37 % at e^8, and all explodes at e^16; with λ ∝ 1/β they explode at e^-8.",
            "Our loss is exact for every finite logit where the paper's code overflows: fewer may explode.",
        ),
    ),
    Reproduction(
        id="controls",
        title="Controls: matched label smoothing, temperature, EDL, energy; number of training images",
        place="not in the paper",
        arms=arms.control_arms,
        rows=table(
            Block(
                [ERROR, NLL, ECE, *map(tables.ood_auroc, ("entropy", "energy", "mutual_information"))],
                selects=lambda arm: not arms.is_size_arm(arm),
            ),
            Block(
                tables.MISCLASSIFICATION,
                group="{group}: misclassification detection",
                selects=lambda arm: not arms.is_size_arm(arm),
            ),
            Block(
                [
                    ERROR,
                    NLL,
                    ECE,
                    Measure("mean mutual information", tables.mean_mutual_information, "nats", 4),
                    Measure("median α₀", tables.median_precision, "", 1),
                    *map(tables.ood_auroc, ("entropy", "mutual_information")),
                ],
                selects=arms.is_size_arm,
            ),
        ),
        drawings=figures.data_sizes,
        fixed=("data.limit", "data.validation"),
        notes=(
            _LAST_EPOCH,
            "Belief matching and label smoothing are shown at every λ; nothing is chosen.",
            f"In the sweep over the number of images λ is {arms.SWEPT_WEIGHT:g}; unless epochs are set by "
            "hand, smaller sets are trained on for more epochs, so that no training has fewer steps.",
        ),
    ),
    Reproduction(
        id="table3",
        title="Transfer of an ImageNet ResNet-50 by its last layer: softmax, belief matching",
        place="table 3",
        transfers=("cifar10", "food101", "stanford_cars"),
        rows=table(
            Block([Measure("error", lambda head: 100 * head.scores.error)]), paper={"error": _TRANSFER_ERRORS}
        ),
        trials=5,
        notes=_TRANSFER_NOTES,
    ),
    Reproduction(
        id="figure-transfer",
        title="Predictive entropy after transfer, CIFAR-10 and SVHN, Food-101, Cars",
        place="figure on transfer",
        transfers=("cifar10",),
        rows=table(Block(tables.transfer_aurocs)),
        drawings=figures.transfer_entropies,
        notes=(
            *_TRANSFER_NOTES,
            "CIFAR-10 has automobiles: Cars is no OOD set for it, as the paper says.",
        ),
    ),
    Reproduction(
        id="table4",
        title="Pi-model and VAT on CIFAR-10 with few labels: softmax, belief matching",
        place="table 4",
        arms=arms.semi_supervised_arms,
        rows=table(Block([ERROR, NLL, ECE]), paper={"error": _SEMI_ERRORS}),
        trials=5,
        notes=(
            "Training on the labels alone, NLL and ECE are ours: the paper gives errors of the two others.",
            "The weights of the last epoch are evaluated.",
            "There is no warm-up, and at paper scale no clipping of the gradient, as in the settings of "
            "Oliver et al. that the paper refers to; it says elsewhere that it has both in all experiments.",
            "The labels alone are trained with VAT's settings.",
            "Images are scaled by channel, without contrast normalisation and ZCA; borders are black, not "
            "mirrored; BatchNorm's averages see labelled images alone. More in docs/semi-supervised.md.",
            "At CPU scale the weight of each consistency loss is the best of two or three by the validation "
            "error of one seed.",
            "A comparison of consistency measures, not the state of the art: public baselines are better by "
            "now.",
        ),
    ),
)
REGISTRY = {entry.id: entry for entry in _ENTRIES}
"""By id, in the order in which they are listed and run."""
