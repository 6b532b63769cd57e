"""Records of evaluations that never happened, with numbers that belong together."""

import base64
import math
import struct
import zlib
from functools import cache

import numpy as np

from beliefmatch.experiments.evaluation_record import (
    Bins,
    BrierShares,
    ClassScores,
    Confusion,
    Curve,
    Detection,
    EvaluationRecord,
    Example,
    Number,
    OODSet,
    RiskThresholdRecord,
)

SCORES = ("entropy", "confidence", "mutual_information", "differential_entropy", "precision", "energy")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=document.title="owned">',
    "$x^2$ %{x} <b>bold</b> &lt;i&gt;",
    "=cmd()",
    "🦊 fox | `tick`",
    "שלום עולם",
    "__proto__",
    "[red]a\nb[/red] \x1b[31m\u2028</style>",
)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def model(
    name="softmax",
    *,
    index=0,
    classes=DIGITS,
    ood=("svhn", "noise"),
    examples=2000,
    images=True,
    scores=SCORES,
):
    """A record of a model that grows surer and worse calibrated as `index` falls."""
    random = np.random.default_rng(100 + index)
    known = _predict(random, len(classes), examples, sharpness=5.0 / (1 + 0.45 * index), signal=2.6)
    strange = {
        place: _predict(random, len(classes), max(examples // 2, 1), 4.0 / (1 + index), 0.4 + 0.5 * order)
        for order, place in enumerate(ood)
    }
    return _record(name, list(classes), known, strange, images=images, scores=scores)


@cache
def three():
    """What a comparison usually looks like."""
    names = ("softmax", "label smoothing", "belief matching")
    return tuple(model(name, index=index) for index, name in enumerate(names))


@cache
def hostile():
    """Names that would like to be more than names."""
    classes = (*HOSTILE, "plain", "x" * 200)
    return tuple(
        model(name, index=index, classes=classes, ood=HOSTILE[:3], examples=300)
        for index, name in enumerate(HOSTILE)
    )


def single_example():
    """One example, one model, rightly classified: hardly anything can be said."""
    return model("alone", classes=("no", "yes"), ood=(), examples=1, images=False)


def _predict(random, classes, examples, sharpness, signal):
    """Probabilities (N, K), targets."""
    targets = random.integers(0, classes, examples)
    logits = random.normal(size=(examples, classes))
    logits[np.arange(examples), targets] += signal
    logits *= sharpness * np.sqrt(random.uniform(0.2, 1.6, (examples, 1)))
    probs = np.exp(logits - logits.max(1, keepdims=True))
    return probs / probs.sum(1, keepdims=True), targets


def _entropy(probs):
    return -(probs * np.log(np.maximum(probs, 1e-300))).sum(1)


def _record(name, classes, known, strange, *, images, scores):
    probs, targets = known
    predicted, confidence, entropy = probs.argmax(1), probs.max(1), _entropy(probs)
    right = predicted == targets
    bins = _bins(confidence, right, np.linspace(0, 1, 16))
    mass = _bins(confidence, right, np.quantile(confidence, np.linspace(0, 1, 16)))
    risk = _risk(confidence, right)
    return EvaluationRecord(
        name=name,
        source=f"runs/{name}.npz",
        kind="logits" if len(scores) > 2 else "probs",
        examples=len(targets),
        class_names=classes,
        scores=_scores(probs, targets, bins, risk),
        brier_shares=BrierShares(
            float(0.02 * confidence.mean()), float(0.5 * right.mean()), 1 - 1 / len(classes), 0.0004
        ),
        reliability=bins,
        reliability_by_mass=mass,
        entropy=_density(entropy, len(classes)),
        misclassification=_detections(entropy[right], entropy[~right], scores),
        ood=[_ood(place, *found, entropy, scores) for place, found in strange.items()],
        risk_coverage=risk,
        risk_thresholds=[_risk_threshold(target, risk, confidence) for target in (0.001, 0.01, 0.05, 0.1)],
        confusion=_confusion(targets, predicted, len(classes)),
        classes=[_class(index, probs, targets, predicted) for index in range(len(classes))],
        mistakes=_examples(np.flatnonzero(~right), -confidence, probs, targets, images),
        doubtful=_examples(np.arange(len(targets)), -entropy, probs, targets, images),
        conventions={
            "ece": "15 groups of equal width, group i = (i/15, (i+1)/15]; a confidence of 0 is in the first.",
            "fpr95": "Share of OOD examples kept where 95 % of the known ones are kept.",
            "brier": "Sum over classes of squared differences, mean over examples.",
        },
        settings={
            "n_bins": 15,
            "top_k": 5,
            "resamples": 1000,
            "seed": 0,
            "level": 0.95,
            "fields": {"logits": "logits"},
        },
        versions={"python": "3.11.2", "beliefmatch": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
        hardware={"processor": "a processor", "logical_cores": 8},
        created="2026-01-02T03:04:05+00:00",
        wall_seconds=1.25,
    )


def _scores(probs, targets, bins, risk):
    taken = probs[np.arange(len(targets)), targets]
    right = probs.argmax(1) == targets
    gaps = [
        (count, abs(c - a))
        for count, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True)
        if count
    ]
    ece = sum(count * gap for count, gap in gaps) / len(targets)
    aurc = float(np.mean(risk.y))
    brier = (probs**2).sum(1) - 2 * taken + 1
    alone = len(targets) == 1
    return {
        "error": _around(1 - right.mean(), 0.01),
        "top_k_error": Number(None, why="needs more than 5 classes")
        if probs.shape[1] <= 5
        else _around(((probs > taken[:, None]).sum(1) >= 5).mean(), 0.004),
        "nll": _around(-np.log(taken).mean(), 0.02),
        "brier": _around(brier.mean(), 0.01),
        "ece": _around(ece, 0.008),
        "mce": _around(max(gap for _, gap in gaps), 0.05),
        "adaptive_ece": _around(0.95 * ece, 0.008),
        "classwise_ece": _around(ece / 4, 0.002),
        "debiased_ece": Number(None, why="needs two examples in a group")
        if alone
        else _around(0.9 * ece, 0.008),
        "overconfidence": _around(probs.max(1).mean() - right.mean(), 0.01, lowest=-1.0),
        "aurc": _around(aurc, 0.005),
        "excess_aurc": _around(aurc / 3, 0.004),
        "mean_confidence": _around(probs.max(1).mean(), 0.005),
        "mean_entropy": _around(_entropy(probs).mean(), 0.02),
    }


def _around(value, half, *, lowest=0.0):
    value = float(value)
    return Number(value, max(value - half, lowest), value + half)


def _bins(confidence, right, edges):
    group = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
    means = [
        (float(confidence[group == i].mean()), float(right[group == i].mean()))
        if (group == i).any()
        else None
        for i in range(len(edges) - 1)
    ]
    return Bins(
        lower=edges[:-1].tolist(),
        upper=edges[1:].tolist(),
        count=[int((group == i).sum()) for i in range(len(edges) - 1)],
        confidence=[mean[0] if mean else None for mean in means],
        accuracy=[mean[1] if mean else None for mean in means],
    )


def _density(entropy, classes):
    top = math.log(classes)
    grid = np.linspace(0, top, 101)
    width = 0.05 * top
    both = np.concatenate([entropy, -entropy, 2 * top - entropy])
    kernels = np.exp(-0.5 * ((grid[:, None] - both[None, :]) / width) ** 2).sum(1)
    return Curve(grid.tolist(), (kernels / (len(entropy) * width * math.sqrt(2 * math.pi))).tolist())


def _detections(in_distribution, ood, scores):
    return [
        _detection(score, in_distribution + 0.05 * i * np.sin(7 * in_distribution), ood)
        for i, score in enumerate(scores)
    ]


def _detection(score, in_distribution, ood):
    if not len(in_distribution) or not len(ood):
        nothing = Number(None, why="one of the two groups is empty")
        return Detection(score, nothing, nothing, nothing, nothing, Curve([], []))
    thresholds = np.quantile(np.concatenate([in_distribution, ood]), np.linspace(1, 0, 60))
    false = [0.0, *((in_distribution >= t).mean() for t in thresholds), 1.0]
    true = [0.0, *((ood >= t).mean() for t in thresholds), 1.0]
    area = float(np.trapezoid(true, false))
    kept = float((ood <= np.quantile(in_distribution, 0.95)).mean())
    curve = Curve([float(x) for x in false], [float(y) for y in true])
    return Detection(
        score, _around(area, 0.008), _around(0.97 * area, 0.01), _around(0.96 * area, 0.01),
        _around(kept, 0.02), curve,
    )  # fmt: skip


def _ood(name, probs, _targets, entropy, scores):
    strange = _entropy(probs)
    return OODSet(
        name=name,
        source=f"data/{name}.npz",
        examples=len(probs),
        mean_confidence=float(probs.max(1).mean()),
        entropy=_density(strange, probs.shape[1]),
        detections=_detections(entropy, strange, scores),
    )


def _risk(confidence, right):
    order = np.argsort(-confidence, kind="stable")
    risk = np.cumsum(~right[order]) / np.arange(1, len(right) + 1)
    kept = np.unique(np.linspace(0, len(right) - 1, 200).astype(int))
    return Curve(((kept + 1) / len(right)).tolist(), risk[kept].tolist())


def _risk_threshold(target, risk, confidence):
    allowed = [
        x for x, y in zip(risk.x, risk.y, strict=True) if y <= 0.8 * target and x * len(confidence) > 40
    ]
    if not allowed:
        return RiskThresholdRecord(target, 0.05, None, 0.0, None, None)
    coverage = max(allowed)
    threshold = float(np.quantile(confidence, 1 - coverage))
    return RiskThresholdRecord(target, 0.05, threshold, coverage, 0.7 * target, 0.98 * target)


def _confusion(targets, predicted, classes):
    matrix = np.zeros((classes, classes), dtype=int)
    np.add.at(matrix, (targets, predicted), 1)
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:20]
    pairs = [[int(i // classes), int(i % classes), int(wrong.flat[i])] for i in order if wrong.flat[i]]
    return Confusion(matrix.tolist() if classes <= 50 else None, pairs)


def _class(index, probs, targets, predicted):
    own = targets == index
    return ClassScores(
        index=index,
        examples=int(own.sum()),
        predicted=int((predicted == index).sum()),
        error=float((predicted[own] != index).mean()) if own.any() else None,
        mean_probability=float(probs[:, index].mean()),
        calibration_error=float(abs(probs[:, index].mean() - own.mean()) + 0.004 * (index % 7)),
    )


def _examples(rows, key, probs, targets, images):
    entropy = _entropy(probs)
    chosen = rows[np.argsort(key[rows], kind="stable")][:12]
    return [
        Example(
            index=int(row),
            target=int(targets[row]),
            predicted=int(probs[row].argmax()),
            confidence=float(probs[row].max()),
            target_probability=float(probs[row, targets[row]]),
            entropy=float(entropy[row]),
            image=png(int(row)) if images else None,
        )
        for row in chosen
    ]


def png(seed):
    """A grey picture of 28 by 28, in base64."""
    x, y = np.meshgrid(np.linspace(-1, 1, 28), np.linspace(-1, 1, 28))
    values = 127 + 127 * np.sin(3 * x * (1 + seed % 5) + y * (seed % 7)) * np.exp(-2 * (x**2 + y**2))
    rows = b"".join(b"\0" + row.tobytes() for row in values.astype(np.uint8))
    header = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()
