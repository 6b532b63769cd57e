"""Records of comparisons that never happened, with numbers that belong together."""

from functools import cache

import numpy as np

from beliefmatch.experiments.records import (
    Compared,
    ComparisonRecord,
    Costs,
    OODScores,
    RotatedDigit,
    Rotation,
    RunRecord,
    Scores,
    Trial,
)
from evaluation_records import DIGITS, HOSTILE, model

FIVE = (
    ("softmax", "softmax"),
    ("label_smoothing:smoothing=0.01", "label smoothing (ε = 0.01)"),
    ("mc_dropout:layers=last", "MC dropout (last layer, p = 0.5)"),
    ("ensemble:members=5", "ensemble of 5"),
    ("belief_matching:kl_weight=auto", "belief matching (λ = 0.003)"),
)
SETS = ("natural patches", "rotated digits", "noise")
ANGLES = tuple(range(0, 181, 15))
EPOCHS = 12


def comparison(methods=FIVE, *, seeds=(0, 1, 2), ood=SETS, rotated_digit=True, search=True):
    """Methods of which the later ones are better; the last has a belief and a search if it may."""
    compared = [
        Compared(key, label, [run(key, index, seed, ood, rotated_digit, search) for seed in seeds])
        for index, (key, label) in enumerate(methods)
    ]
    return ComparisonRecord(
        methods=compared,
        seeds=list(seeds),
        rotated_digit=RotatedDigit(3, 55, list(ANGLES), images()) if rotated_digit else None,
        settings={
            "model": "digits",
            "data": {"name": "digits", "validation": 0.2, "split_seed": 0},
            "training": {"epochs": EPOCHS, "batch_size": 64, "warmup": [0.1, 0.5]},
            "command": "beliefmatch compare --seeds 3",
        },
        versions={"python": "3.11.2", "beliefmatch": "0.1.0", "torch": "2.13.0"},
        hardware={"processor": "a processor", "logical_cores": 2},
        created="2026-01-02T03:04:05+00:00",
        wall_seconds=61.5,
    )


@cache
def five():
    """What `beliefmatch compare` makes of digits."""
    return comparison()


@cache
def evaluations_of_five():
    """Evaluations of the first seed's predictors."""
    return evaluations(five(), examples=540)


@cache
def hostile_comparison():
    """Labels, options, sets and classes that would like to be more than names."""
    methods = [(f"key{index} {name}", name) for index, name in enumerate(HOSTILE)]
    return comparison(methods, seeds=(0, 1), ood=HOSTILE[:3])


def evaluations(record, *, classes=DIGITS, examples=300, ood=None):
    """One for each method."""
    sets = tuple(found.name for found in record.methods[0].runs[0].ood) if ood is None else ood
    return tuple(
        model(method.label, index=index, classes=classes, ood=sets, examples=examples, images=False)
        for index, method in enumerate(record.methods)
    )


def run(key, index, seed, ood=(), rotated_digit=True, search=False):
    """A run of the method that stands at `index`."""
    random = np.random.default_rng([index, seed])
    name, belief = key.split(":")[0], "belief" in key
    networks = 5 if name == "ensemble" else 1
    trials = [0.01, 0.003, 0.001] if search and belief else []
    return RunRecord(
        method=name,
        options={"kl_weight": 0.003} if belief else {},
        seed=seed,
        config={"method": name, "seed": seed},
        fingerprint=f"{index}{seed}" * 8,
        data={"train": 898, "validation": 359, "test": 540, "digest": "5f2c" * 16},
        class_names=list(DIGITS),
        curves=[curves(random, index) for _ in range(networks)],
        skipped_steps=0,
        validation=scores(random, index, 359),
        test=scores(random, index, 540),
        ood=[ood_scores(random, index, name, belief) for name in ood],
        costs=costs(random, networks, name),
        search=[
            Trial("kl_weight", value, scores(random, index, 359), chosen=value == 0.003) for value in trials
        ],
        learned={"temperature": 1.25} if name == "temperature" else {},
        rotation=rotation(random, index, belief) if rotated_digit else None,
        engine={"accelerator": "cpu", "precision": "32", "processes": 1},
        versions={"python": "3.11.2"},
        hardware={"processor": "a processor", "logical_cores": 2},
        created="2026-01-02T03:04:05+00:00",
        wall_seconds=4.2,
    )


def scores(random, index, examples):
    error = float(0.045 - 0.004 * index + 0.003 * random.normal())
    return Scores(
        examples=examples,
        error=error,
        nll=4 * error + 0.01 * float(random.uniform()),
        brier=1.6 * error,
        ece=float(0.02 - 0.003 * index + 0.002 * random.uniform()),
        mean_confidence=0.98 - 0.01 * index,
    )


def ood_scores(random, index, name, belief):
    areas = {
        score: float(0.9 + 0.015 * index + 0.01 * random.uniform())
        for score in ("entropy", "confidence", *(("mutual_information",) if belief else ()))
    }
    return OODScores(name, 500, areas, {s: 1.2 - a for s, a in areas.items()}, 0.7 - 0.05 * index)


def costs(random, networks, name):
    seconds = networks * float(3 + 0.1 * random.uniform())
    samples = 40.0 if name == "mc_dropout" else networks
    return Costs(networks, 60_170, seconds, networks * 898 * EPOCHS / seconds, 0.01, 0.0123 * samples)


def curves(random, index):
    epochs = np.arange(EPOCHS)
    noise = 1 + 0.1 * random.normal(size=EPOCHS)
    return {
        "loss": (2.3 * np.exp(-epochs / (2 + 0.3 * index)) * noise).tolist(),
        "validation_error": (0.04 + 0.8 * np.exp(-epochs / 1.5) * noise).tolist(),
        "rate": [0.1] * EPOCHS,
    }


def rotation(random, index, belief):
    turned = np.abs(np.cos(np.radians(ANGLES)))
    confidence = np.clip(0.99 - 0.08 * index + 0.4 * (turned - 1) + 0.05 * random.normal(size=13), 0.2, 1)
    predicted = [3 if angle < 50 else int(random.choice([2, 5, 9])) for angle in ANGLES]
    wrong = [c for c, k in zip(confidence.tolist(), predicted, strict=True) if k != 3]
    return Rotation(
        predicted=predicted,
        confidence=confidence.tolist(),
        entropy=(1.2 - confidence).tolist(),
        mutual_information=(0.3 * (1.2 - confidence)).tolist() if belief else None,
        mean_confidence=np.clip(confidence + 0.02, 0, 1).tolist(),
        recognised=(1 / (1 + np.exp((np.array(ANGLES) - 50) / 10))).tolist(),
        wrong_confidence=float(np.mean(wrong)),
        mean_wrong_confidence=float(np.mean(wrong)) - 0.01,
    )


def images():
    """A hook that turns."""
    y, x = np.mgrid[-1:1:8j, -1:1:8j]
    pictures = []
    for angle in np.radians(ANGLES):
        u, v = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
        ring = np.exp(-20 * (np.hypot(u, 2 * v % 1.2 - 0.6) - 0.5) ** 2) * (u > -0.3)
        pictures.append(np.clip(ring, 0, 1).tolist())
    return pictures
