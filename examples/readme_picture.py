"""The picture of the README: a network before and after its repair, with temperature scaling as the control.

    python examples/readme_picture.py [DIRECTORY]

A network learns the digits 0 to 7 from 300 images, a fifth of which get a random label. It is repaired with
300 correct labels of other images: half of them fit the last layer, the other half choose λ and fit the
temperatures. The remaining 843 images test it, and the digits 8 and 9 are out of distribution. The picture
shows the first seed; the table is the mean and standard deviation of five.

Needs `pip install "beliefmatch[sklearn,stats,report]"`.
"""

import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib import pyplot
from matplotlib.axes import Axes
from sklearn.datasets import load_digits
from torch import Tensor, nn

from beliefmatch import adapt
from beliefmatch.metrics import auroc, expected_calibration_error, reliability_bins

KNOWN = 8  # digits below this are the classes
TRAINING, HELD_OUT = 300, 300
WRONG = 0.2  # share of the training labels that are drawn at random
SEEDS = range(5)
HEADS = {
    "before": "untouched",
    "before + temperature": "untouched + temperature",
    "softmax refitted + temperature": "softmax + temperature",
    "after": None,  # the belief matching head that `adapt` delivers
}
THEMES = {"light": ("#ffffff", "#24292f", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}
COLOURS = {"before": "#0072B2", "before + temperature": "#E69F00", "after": "#D55E00"}
OOD_COLOUR = "#8a929b"


class Answers(NamedTuple):
    """Probabilities of one head for test images and OOD images, and the test labels."""

    probs: Tensor
    ood: Tensor
    targets: Tensor

    def scores(self) -> dict[str, float]:
        """Error, NLL and ECE on the test images; AUROC of the entropy against the OOD images."""
        return {
            "error %": 100 * (self.probs.argmax(1) != self.targets).double().mean().item(),
            "NLL": F.nll_loss(self.probs.log(), self.targets).item(),
            "ECE %": 100 * expected_calibration_error(self.probs, self.targets),
            "AUROC %": 100 * auroc(entropy(self.probs), entropy(self.ood)),
        }


def entropy(probs: Tensor) -> Tensor:
    """Predictive entropy in nats."""
    return torch.special.entr(probs).sum(1)


def train(images: Tensor, labels: Tensor) -> nn.Module:
    """A network that has fitted its training labels, the wrong ones too."""
    network = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, KNOWN)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return network


def repair(seed: int) -> dict[str, Answers]:
    """Train a network, repair it, and return what each head answers."""
    torch.manual_seed(seed)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float() / 16, torch.from_numpy(digits)
    known, ood = (labels < KNOWN).nonzero()[:, 0], images[labels >= KNOWN]
    known = known[torch.randperm(len(known))]
    sizes = [TRAINING, HELD_OUT // 2, HELD_OUT // 2, len(known) - TRAINING - HELD_OUT]
    first, fit, choose, test = ((images[rows], labels[rows]) for rows in known.split(sizes))
    wrong = torch.rand(TRAINING) < WRONG
    network = train(first[0], torch.where(wrong, torch.randint(KNOWN, (TRAINING,)), first[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on what 150 examples cannot decide
        found = adapt(network, fit, validation=choose, test=test, ood=ood, labels="same").adaptation
    assert found.sets.test is not None
    (other,) = found.sets.ood.values()
    features = [torch.tensor(one.rows[:]) for one in (found.sets.test, other)]
    answers = {}
    for name, label in HEADS.items():
        (head,) = found.table[label or found.label]
        probs, ood_probs = (head.predict(rows).probs for rows in features)
        answers[name] = Answers(probs, ood_probs, test[1])
    return answers


def draw(answers: dict[str, Answers], theme: str, path: Path) -> None:
    """Reliability, and the entropy of test and OOD images before and after the repair; 1200 pixels wide."""
    background, ink, lines = THEMES[theme]
    style: Any = {
        "figure.facecolor": background, "axes.facecolor": background, "axes.edgecolor": lines,
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink,
        "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.9), dpi=100, width_ratios=(1.05, 1, 1))
        _reliability(axes[0], answers, lines)
        for one, name in zip(axes[1:], ("before", "after"), strict=True):
            _entropies(one, answers[name], name)
        axes[2].set_ylim(axes[1].get_ylim())
        figure.tight_layout(w_pad=2.5)
        figure.savefig(path, metadata={"Software": None})
        pyplot.close(figure)


def _reliability(axes: Axes, answers: dict[str, Answers], lines: str) -> None:
    axes.plot([0, 1], [0, 1], color=lines, linewidth=1.5, zorder=0)
    for name, colour in COLOURS.items():
        one = answers[name]
        confidence, classes = one.probs.max(1)
        bins = reliability_bins(confidence, classes == one.targets, n_bins=8, scheme="mass")
        dash = "--" if name == "before + temperature" else "-"
        label = f"{name}: ECE {one.scores()['ECE %']:.1f} %"
        axes.plot(bins.confidence, bins.accuracy, dash, color=colour, marker="o", markersize=5, label=label)
    axes.set(xlim=(0.25, 1.02), ylim=(0.25, 1.02), xlabel="confidence", ylabel="accuracy")
    axes.set_title("Reliability")
    axes.legend(loc="upper left", fontsize=9, handlelength=1.8, borderaxespad=0.2)


def _entropies(axes: Axes, one: Answers, name: str) -> None:
    edges = torch.linspace(0, 1.6, 17).tolist()
    for probs, colour, label in (
        (one.probs, COLOURS[name], "digits 0 to 7"),
        (one.ood, OOD_COLOUR, "digits 8 and 9: OOD"),
    ):
        shares = torch.full((len(probs),), 100 / len(probs))
        values = entropy(probs).clamp(max=edges[-1])
        axes.hist(values, edges, weights=shares, histtype="stepfilled", color=colour, alpha=0.25)
        axes.hist(values, edges, weights=shares, histtype="step", color=colour, linewidth=1.8, label=label)
    axes.set(xlabel="predictive entropy, nats", ylabel="share of the images, %", xlim=(0, edges[-1]))
    axes.set_title(f"Entropy {name} the repair: AUROC {one.scores()['AUROC %']:.0f} %")
    axes.legend(loc="upper right", fontsize=9, handlelength=1.2)


def table(runs: list[dict[str, Answers]]) -> str:
    """Mean and standard deviation of the scores over the seeds, as Markdown."""
    columns = list(next(iter(runs[0].values())).scores())
    text = [["head", *columns], ["---", *["---:"] * len(columns)]]
    for name in HEADS:
        scores = torch.tensor([list(run[name].scores().values()) for run in runs])
        digits = [1 if "%" in column else 3 for column in columns]
        pairs = zip(scores.mean(0).tolist(), scores.std(0).tolist(), digits, strict=True)
        label = f"{name}: belief matching" if name == "after" else name
        text.append([label, *(f"{mean:.{digit}f} ± {sd:.{digit}f}" for mean, sd, digit in pairs)])
    return "\n".join(f"| {' | '.join(row)} |" for row in text)


def run(directory: Path) -> str:
    """Write the pictures and return the table."""
    directory.mkdir(parents=True, exist_ok=True)
    runs = [repair(seed) for seed in SEEDS]
    for theme in THEMES:
        draw(runs[0], theme, directory / f"repair_{theme}.png")
    return table(runs)


if __name__ == "__main__":
    print(run(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")))
