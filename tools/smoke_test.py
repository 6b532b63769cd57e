"""Try an installed wheel: laws of the loss, a belief, and a small comparison with its page.

    python -I tools/smoke_test.py [--native]

It needs the extra `demo` and must not see the sources, hence `-I`. With `--native` the compiled kernel must
be there.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import torch

import beliefmatch
from beliefmatch import Belief, belief_matching_loss, kernels

COMPARE = (
    *("compare", "--epochs", "1", "--seeds", "1", "--methods", "softmax,belief_matching", "--jobs", "1"),
    *("--limit", "100", "--ood", "noise", "--out"),
)


def check_loss() -> None:
    """The gradient vanishes at the posterior α = β + onehot/λ, and is finite at logits of 90."""
    targets, kl_weight = torch.arange(5), 0.01
    posterior = torch.ones(5, 7) + torch.nn.functional.one_hot(targets, 7) / kl_weight
    logits = posterior.log().requires_grad_()
    belief_matching_loss(logits, targets, kl_weight=kl_weight).backward()
    assert logits.grad is not None and logits.grad.abs().max() < 1e-6
    large = torch.full((5, 7), 90.0, requires_grad=True)
    belief_matching_loss(large, targets, kl_weight=kl_weight).backward()
    assert large.grad is not None and large.grad.isfinite().all()
    belief = Belief(logits.detach())
    assert torch.equal(belief.predictions, targets) and belief.update(torch.ones(5, 7)).precision[0] > 100


def check_kernel(*, native: bool) -> None:
    """The kernel of the CPU."""
    status = kernels.status()
    print(f"  kernel {status.name}: {status.reason}")
    assert status.name == "native" or not native, status


def check_commands() -> None:
    """The installed command compares two methods and writes a page."""
    command = shutil.which("beliefmatch", path=f"{Path(sys.executable).parent}")
    assert command is not None
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split() == ["beliefmatch", metadata.version("beliefmatch")]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([command, *COMPARE, directory], check=True, stdout=subprocess.DEVNULL)
        assert "<html" in Path(directory, "report.html").read_text("utf-8")


if __name__ == "__main__":
    print(
        f"  beliefmatch {beliefmatch.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}"
    )
    check_loss()
    check_kernel(native="--native" in sys.argv)
    check_commands()
