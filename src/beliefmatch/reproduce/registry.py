"""The twelve reproductions: what each trains, the rows and figures it ends with, and the paper's numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from beliefmatch.reproduce import arms, figures, tables
from beliefmatch.reproduce.activations import PARTS, activations_of_run
from beliefmatch.reproduce.arms import BELIEF, CIFAR, ENSEMBLE, MC_ALL, MC_LAST, SOFTMAX, WITHOUT_KL, Arm
from beliefmatch.reproduce.record import Drawing, Reported, Row
from beliefmatch.reproduce.tables import ECE, ERROR, NLL, ArmResult, Block, Measure, Outcome, Run, row, table

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
        notes: Differences from the paper at every scale, and what the paper does not say.
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
_CIFAR_ECES = _reported(
    _RESNET50,
    softmax=(3.82, 13.48),
    mc_last=(3.78, 13.52),
    mc_all=(1.50, 9.76),
    ensemble=(1.04, 3.54),
    belief_matching=(1.66, 4.25),
)
_RESNEXTS = ("ResNeXt-50", "ResNeXt-101")
_TOP1_ERRORS = _reported(_RESNEXTS, softmax=(22.23, 20.72), belief_matching=(22.03, 20.23))
_TOP5_ERRORS = _reported(_RESNEXTS, softmax=(6.36, 5.59), belief_matching=(6.29, 5.26))
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
    "The weights of the last epoch are judged; the paper takes the epoch of the lowest validation error."
)
_CIFAR_NOTES = (
    _LAST_EPOCH,
    "Options that validation chooses (λ, the rate of dropout) are chosen with the first seed for all.",
)
_TRANSFER_NOTES = (
    "A tenth of the training images chooses the epoch of each head, by its error; the paper tells of none.",
    "Heads of several seeds differ in their first weights; the order of the batches and the division of the "
    "images are the same. So ± is smaller than that of independent experiments.",
    "There is no warm-up and no clipping of the gradient; the paper says that all experiments have both.",
    "Features are computed once, without augmentation, by a network in evaluation mode; the authors' code "
    "also trains the BatchNorm layers and prints the best test epoch.",
    "Seconds are of the whole adaptation, with all heads and seeds.",
)

# Measures of a single reproduction


def _wrong_confidence(run: Run) -> float | None:
    rotation = run.record.rotation
    found = rotation.mean_wrong_confidence if rotation is not None else None
    return None if found is None else 100 * found


def _upside_down_confidence(run: Run) -> float | None:
    rotation = run.record.rotation
    return None if rotation is None else 100 * rotation.mean_confidence[-1]


def _representation_rows(outcome: Outcome) -> list[Row]:
    rows = []
    for result in outcome.arms.values():
        for part in PARTS:

            def number(name: str, run: Run, data=result.config.data, part=part) -> float | None:
                return getattr(activations_of_run(run.run_dir.path, data)[part], name)

            for title, name in (("range", "extent"), ("within / between", "tightness")):
                rows.append(row(result, Measure(f"{title}, {part}", partial(number, name), "", 3)))
    return rows


def _with_skipped_steps(result: ArmResult[Run]) -> str:
    skipped = sum(run.record.skipped_steps for run in result.finished)
    return "; ".join(filter(None, [result.note, f"{skipped} steps skipped" if skipped else ""]))


def _transfer_auroc_rows(outcome: Outcome) -> list[Row]:
    """A row for each OOD set, as many as the configuration has."""
    rows = []
    (transfer,) = outcome.transfers.values()
    for result in outcome.arms.values():
        for index, ood in enumerate(transfer.record.scored[0].ood):
            auroc = Measure(f"AUROC, {ood.name}", lambda head, i=index: 100 * head.ood[i].auroc["entropy"])
            rows.append(row(result, auroc))
    return rows


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
        rows=table(
            Block([Measure("top-1 error", ERROR.of), tables.top_error(5)]),
            paper={"top-1 error": _TOP1_ERRORS, "top-5 error": _TOP5_ERRORS},
        ),
        trials=1,
        notes=(
            "10,000 training images are kept aside at paper scale, which the paper trains on.",
            "At CPU scale any folder with train/ and validation/ stands for ImageNet, and small residual "
            "networks for ResNeXt: that shows that the command runs, and nothing about ImageNet.",
        ),
    ),
    Reproduction(
        id="ablation-kl",
        title="Test error of belief matching without the KL term",
        place="section 5.1, regularization effect of prior",
        arms=partial(arms.cifar_arms, datasets=CIFAR, variants=(SOFTMAX, WITHOUT_KL, BELIEF)),
        rows=table(
            Block([ERROR]), paper={"error": _CIFAR_ERRORS | _reported(_RESNET50, without_kl=(5.68, 24.69))}
        ),
        notes=_CIFAR_NOTES,
    ),
    Reproduction(
        id="figure-reliability",
        title="Reliability of ResNet-50 on CIFAR, ECE in 15 groups",
        place="figure on calibration",
        arms=partial(arms.cifar_arms, datasets=CIFAR, variants=(SOFTMAX, MC_LAST, MC_ALL, ENSEMBLE, BELIEF)),
        rows=table(
            Block([ECE]),
            Block(
                [
                    ERROR,
                    NLL,
                    Measure("training loss", tables.training_loss, "nats", 3, not_for=BELIEF.method),
                ],
                group="{group}: beside the paper",
            ),
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
                    Measure("entropy, known", tables.mean_entropy, "nats", 3),
                    Measure("entropy, ood", partial(tables.mean_entropy, ood=0), "nats", 3),
                ]
            )
        ),
        drawings=figures.entropies,
        notes=(*_CIFAR_NOTES, "The paper shows densities and gives no number; AUROC is ours."),
    ),
    Reproduction(
        id="figure-rotation",
        title="How sure networks are of a digit 3 that is turned",
        place="introduction",
        arms=arms.rotation_arms,
        rows=table(
            Block(
                [
                    ERROR,
                    Measure("confidence when wrong, all angles", _wrong_confidence),
                    Measure("confidence upside down", _upside_down_confidence),
                ]
            )
        ),
        drawings=figures.rotated_digit,
        notes=(
            "The paper tells the example in words, after Louizos and Welling (2017), and gives no number.",
            "The digits are scikit-learn's, of 8 by 8 pixels, not MNIST's.",
        ),
    ),
    Reproduction(
        id="figure-representation",
        title="Penultimate activations of three classes of CIFAR-100, with and without the prior",
        place="figure on the representation",
        arms=partial(arms.cifar_arms, datasets=("cifar100",), variants=(WITHOUT_KL, BELIEF)),
        rows=_representation_rows,
        drawings=figures.representations,
        notes=(
            *_CIFAR_NOTES,
            "The classes are taken by their names; the paper calls them 0, 1 and 2, which in CIFAR-100's own "
            "order are others (beaver, dolphin and otter are 4, 30 and 55).",
            "The paper gives no number: the range on the plane, and the spread within classes over the "
            "distance between their means in the whole space, are ours.",
            "The paper does not tell the network; ours is that of its ablation.",
        ),
    ),
    Reproduction(
        id="figure-beta",
        title="Error of ResNet-18 on CIFAR-10 against the prior β",
        place="figure on the impact of β",
        arms=arms.prior_arms,
        rows=table(
            Block([ERROR], note=_with_skipped_steps),
            paper={"error": {"cifar10/preact_resnet18/alone/8": Reported(7.37)}},
        ),
        drawings=figures.prior_sweep,
        notes=(
            _LAST_EPOCH,
            f"λ is {arms.KL_WEIGHT:g} where β is 1, ln β at paper scale "
            f"{', '.join(map(str, arms.EXPONENTS['paper']))}; the paper tells neither.",
            "The paper's words: robust in both ways from e^-1 to e^4; alone, gradients explode from e^-2 "
            "down, the error is 7.37 % at e^8, and all explodes at e^16; with λ ∝ 1/β they explode at e^-8.",
            "Our loss is exact for every finite logit where the paper's code overflows: fewer may explode.",
        ),
    ),
    Reproduction(
        id="controls",
        title="Controls: matched label smoothing, temperature, EDL, energy; spread against the number of "
        "images",
        place="not in the paper",
        arms=arms.control_arms,
        rows=table(
            Block(
                [ERROR, NLL, ECE, *map(tables.ood_auroc, ("entropy", "energy", "mutual_information"))],
                selects=lambda arm: not arms.is_size_arm(arm),
            ),
            Block(
                [*map(tables.mistake_auroc, ("entropy", "confidence", "mutual_information"))],
                group="{group}: own mistakes told from hits",
                selects=lambda arm: not arms.is_size_arm(arm),
            ),
            Block(
                [
                    ERROR,
                    NLL,
                    ECE,
                    Measure("mean spread", tables.belief_spread, "nats", 4),
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
            f"In the sweep λ is {arms.SWEPT_WEIGHT:g}; unless epochs are set by hand, smaller sets are "
            "passed over more often, for as many steps at least.",
        ),
    ),
    Reproduction(
        id="table3",
        title="Transfer of an ImageNet ResNet-50 by its last layer: softmax, belief matching",
        place="table 3",
        transfers=("cifar10", "food101", "stanford_cars"),
        rows=table(
            Block([Measure("error", lambda head: 100 * head.scores.error)]),
            paper={"error": _TRANSFER_ERRORS},
        ),
        trials=5,
        notes=_TRANSFER_NOTES,
    ),
    Reproduction(
        id="figure-transfer",
        title="Predictive entropy after transfer, CIFAR-10 and SVHN, Food-101, Cars",
        place="figure on transfer",
        transfers=("cifar10",),
        rows=_transfer_auroc_rows,
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
            "What the labels alone teach, NLL and ECE are ours: the paper gives errors of the two others.",
            "The weights of the last epoch are judged.",
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
