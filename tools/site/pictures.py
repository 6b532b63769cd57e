"""Figures of the concept pages, drawn by the library's own functions when the site is built.

A page asks for one by a line such as `<!-- picture: beliefs -->`; the text after the name describes it.
"""

import re
from collections.abc import Callable

import matplotlib
import numpy as np
import torch
from gallery import picture
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter

from beliefmatch import Belief, metrics
from beliefmatch.report.figure import paper_style

__all__ = ["with_pictures"]

_MARK = re.compile(r"^<!-- picture: (?P<name>[\w-]+): (?P<alt>.+?) -->$", re.MULTILINE)
_CORNERS = np.array([[0.5, 3**0.5 / 2], [0, 0], [1, 0]])
_ACCENT = "#d9653b"


def with_pictures(markdown: str) -> str:
    """A page in which marks are replaced by the figures they name."""
    return _MARK.sub(lambda mark: _drawn(mark["name"], mark["alt"]), markdown)


def _drawn(name: str, alt: str) -> str:
    matplotlib.use("agg")
    with style.context(paper_style()):
        return picture(_PICTURES[name](), f"picture-{name}", alt)


def _simplexes(beliefs: dict[str, Belief]) -> Figure:
    """Densities of beliefs about three classes, side by side."""
    figure = Figure(figsize=(2.3 * len(beliefs), 2.5), layout="constrained")
    steps = 70
    points = np.array([(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]) / steps
    inner = 0.985 * points + 0.005
    places = inner @ _CORNERS
    for axes, (title, belief) in zip(figure.subplots(1, len(beliefs)), beliefs.items(), strict=True):
        density = belief.log_prob(torch.tensor(inner)).exp().numpy()
        levels = np.linspace(0, density.max(), 11)
        if np.ptp(density) < 1e-9:
            axes.fill(*_CORNERS.T, color=_ACCENT, alpha=0.25, linewidth=0)
        else:
            for level in levels[:-1]:
                axes.tricontourf(*places.T, density, levels=[level, np.inf], colors=[_ACCENT], alpha=0.13)
        axes.fill(*_CORNERS.T, fill=False, edgecolor=matplotlib.rcParams["axes.edgecolor"], linewidth=1)
        for name, (x, y) in zip("ABC", _CORNERS, strict=True):
            below = y == 0
            axes.text(
                x,
                y + (-0.03 if below else 0.03),
                name,
                ha="center",
                va="top" if below else "bottom",
                fontsize=9,
            )
        axes.set_title(title, fontsize=9)
        axes.set(xlim=(-0.08, 1.08), ylim=(-0.13, 1.0), aspect="equal")
        axes.axis("off")
    return figure


def _posterior() -> Figure:
    prior = torch.zeros(3, dtype=torch.float64)
    start = Belief(prior)
    steps = {
        "prior": [0, 0, 0],
        "one vote for A": [1, 0, 0],
        "4 of 6 for A": [4, 1, 1],
        "20 of 30 for A": [20, 5, 5],
    }
    return _simplexes({title: start.update(torch.tensor(votes).double()) for title, votes in steps.items()})


def _beliefs() -> Figure:
    alpha = {"certain of A": [30, 1, 1], "certain of equal chances": [20, 20, 20], "no idea": [1, 1, 1]}
    made = {}
    for title, values in alpha.items():
        belief = Belief(torch.tensor(values).double().log())
        measures = f"entropy {belief.entropy():.2f}\nmutual information {belief.mutual_information():.3f}"
        made[f"{title}\n{measures}"] = belief
    return _simplexes(made)


def _target() -> Figure:
    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes = figure.subplots()
    weight = np.logspace(-5, 0, 200)
    for classes in (3, 10, 100, 1000):
        axes.semilogx(weight, (1 + 1 / weight) / (classes + 1 / weight), label=f"{classes} classes")
    axes.set(xlabel="weight of the prior, λ", ylabel="probability of the label", ylim=(0, 1.02))
    axes.set_title("Confidence that the optimum asks for")
    axes.legend(loc="lower left")
    return figure


def _precision() -> Figure:
    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes = figure.subplots()
    precision = torch.logspace(-1, 3, 200, dtype=torch.float64)
    mean = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64)
    belief = Belief((precision[:, None] * mean).log())
    axes.semilogx(precision, belief.entropy(), label="entropy: total")
    axes.semilogx(precision, belief.expected_entropy(), label="expected entropy: if p were known")
    axes.semilogx(precision, belief.mutual_information(), label="mutual information: about p")
    axes.set(xlabel="precision α₀, with the mean (0.8, 0.1, 0.1)", ylabel="nats", ylim=(0, None))
    axes.set_title("One entropy, two parts")
    axes.legend()
    return figure


def _reliability() -> Figure:
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(20000, 5, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    factors = {"overconfident": 2.0, "calibrated": 1.0, "underconfident": 0.5}
    for axes, (name, factor) in zip(figure.subplots(1, 3, sharey=True), factors.items(), strict=True):
        probs = (factor * logits).softmax(1)
        confidence, correct = probs.max(1).values, probs.argmax(1) == targets
        bins = metrics.reliability_bins(confidence, correct, n_bins=10)
        axes.plot([0, 1], [0, 1], linestyle="dotted", color="gray")
        axes.plot(bins.confidence, bins.accuracy, marker="o", color=_ACCENT)
        ece = metrics.expected_calibration_error(probs, targets)
        axes.set_title(f"{name}, ECE {ece:.1%}", fontsize=9)
        axes.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.axes[0].set_ylabel("accuracy")
    return figure


def _temperature() -> Figure:
    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes = figure.subplots()
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(5000, 5, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    factors = torch.logspace(-0.7, 0.9, 40)
    nll = [metrics.nll((factor * logits).softmax(1), targets) for factor in factors]
    axes.semilogx(factors, nll, color=_ACCENT)
    axes.axvline(1, linestyle="dotted", color="gray")
    axes.set(xlabel="factor on the logits of a calibrated model", ylabel="NLL, nats")
    axes.set_title("NLL against a factor on the logits")
    axes.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    return figure


_PICTURES: dict[str, Callable[[], Figure]] = {
    "posterior": _posterior,
    "beliefs": _beliefs,
    "target": _target,
    "precision": _precision,
    "reliability": _reliability,
    "temperature": _temperature,
}
