"""The paper's formula in float32 beside ours and the truth: the table of docs/mathematics.md.

python tools/precision_table.py            prints the table
python tools/precision_table.py --write    puts it into docs/mathematics.md
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from beliefmatch import belief_matching_loss

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import oracle  # noqa: E402  (the sixty-digit formulas that the tests use)

PAGE = ROOT / "docs" / "mathematics.md"
BEGIN, END = "<!-- precision table: begin -->", "<!-- precision table: end -->"
CLASSES, LABEL, KL_WEIGHT = 10, 3, 0.01
LEVELS = (-80, -40, -10, 0, 5, 10, 15, 20, 40, 80, 90)


def pasted(logits: Tensor) -> Tensor:
    """The loss as the paper prints it and as it is usually pasted, in the logits' own type."""
    alpha, prior = logits.exp(), torch.ones_like(logits)
    total = alpha.sum()
    likelihood = torch.digamma(alpha[LABEL]) - torch.digamma(total)
    divergence = (
        torch.lgamma(total)
        - torch.lgamma(alpha).sum()
        - torch.lgamma(prior.sum())
        + ((alpha - prior) * (torch.digamma(alpha) - torch.digamma(total))).sum()
    )
    return KL_WEIGHT * divergence - likelihood


def ours(logits: Tensor) -> Tensor:
    return belief_matching_loss(logits, torch.tensor(LABEL), kl_weight=KL_WEIGHT)


def evaluate(function, logits: Tensor) -> tuple[float, list[float]]:
    z = logits.clone().requires_grad_()
    value = function(z)
    (gradient,) = torch.autograd.grad(value, z)
    return value.item(), gradient.tolist()


def row(level: float, noise: Tensor, dtype: torch.dtype) -> str:
    logits = (level + noise).to(dtype)
    counts = [float(k == LABEL) for k in range(CLASSES)]
    arguments = (logits.tolist(), counts, [1.0] * CLASSES, KL_WEIGHT)
    truth, exact = oracle.loss(*arguments), oracle.gradient(*arguments)
    cells = [f"{level:g}", f"{float(truth):.6g}"]
    for function in (pasted, ours):
        value, gradient = evaluate(function, logits)
        cells.append(f"{value:.6g}")
        cells.append(f"{oracle.relative_error(gradient, exact):.0e}")
    return "| " + " | ".join([cells[0], cells[1], cells[2], cells[4], cells[3], cells[5]]) + " |"


def table() -> str:
    noise = torch.randn(CLASSES, generator=torch.Generator().manual_seed(0))
    head = "| logits | loss: truth | as pasted | ours | gradient error: as pasted | ours |"
    lines = [
        f"float32, K = {CLASSES}, λ = {KL_WEIGHT}, β = 1, one label; logits are the level plus the same "
        "standard normal noise. Gradient errors are relative to the largest component.",
        "",
        head,
        "|---:|---:|---:|---:|---:|---:|",
        *(row(level, noise, torch.float32) for level in LEVELS),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Precision of the loss in float32.")
    parser.add_argument("--write", action="store_true", help="update docs/mathematics.md")
    args = parser.parse_args()
    text = table()
    print(text)
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
