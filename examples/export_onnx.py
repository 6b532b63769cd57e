"""A classifier with a belief from training to ONNX, and its use without torch and without beliefmatch.

    pip install "beliefmatch[export,sklearn]"
    python examples/export_onnx.py --out model.onnx

A small network learns scikit-learn's digits 0 to 7 with belief matching and is exported. From then on numpy
and onnxruntime are enough: the file says what it expects, and its mutual information separates the digits 8
and 9, which it has never seen, from those that it knows. The confidence is scored beside it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import beliefmatch

KNOWN = 8


def run(path: Path) -> float:
    """Train, export, and return the AUROC of the mutual information between known and unknown digits."""
    digits = load_digits()
    pixels = (digits.data / 16).astype(np.float32)
    is_known = digits.target < KNOWN
    test = np.arange(len(pixels)) % 4 == 0
    model = train(pixels[is_known & ~test], digits.target[is_known & ~test])
    made = beliefmatch.export(
        model,
        path,
        torch.from_numpy(pixels[:4]),
        outputs=["probs", "mutual_information"],
        class_names=[f"{digit}" for digit in range(KNOWN)],
        preprocessing={"inputs": "8 x 8 grey pixels between 0 and 1, row by row"},
        overwrite=True,
    )
    worst = max(made.differences.values())
    print(f"{path}: largest difference from the network {worst:.1g}, in batches of {made.batch_sizes}")
    return use(path, pixels[is_known & test], digits.target[is_known & test], pixels[~is_known])


def train(pixels: np.ndarray, targets: np.ndarray) -> nn.Module:
    """A network of two layers, trained in some seconds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KNOWN))
    inputs, ids = torch.from_numpy(pixels), torch.from_numpy(targets)
    loss = beliefmatch.BeliefMatchingLoss(kl_weight=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model(inputs), ids).backward()
        optimizer.step()
    return model


def use(path: Path, known: np.ndarray, targets: np.ndarray, unknown: np.ndarray) -> float:
    """What a program without torch does with the file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{path}", providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["beliefmatch"])
    print(f"expects {about['preprocessing']['inputs']}; classes {', '.join(about['class_names'])}")
    probs, information = session.run(["probs", "mutual_information"], {"inputs": known})
    probs_of_unknown, information_of_unknown = session.run(
        ["probs", "mutual_information"], {"inputs": unknown}
    )
    error = (probs.argmax(1) != targets).mean()
    by_information = auroc(information, information_of_unknown)
    by_confidence = auroc(1 - probs.max(1), 1 - probs_of_unknown.max(1))
    print(f"error on known digits {100 * error:.1f} %")
    print(f"AUROC of the mutual information {by_information:.3f}, of the confidence {by_confidence:.3f}")
    return by_information


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Probability that an unknown example has the larger score."""
    return float((unknown[:, None] > known).mean() + (unknown[:, None] == known).mean() / 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("model.onnx"))
    run(parser.parse_args().out)
