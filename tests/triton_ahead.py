"""Compiles what the Triton kernel launches, without a device; a command, since tests interpret Triton.

For each call: registers, spills, shared memory, and how many bits of logits a thread loads and stores for its
elements of a tile, read off the assembly of the kernel itself, without what it calls for few rows.
"""

import json
import re
import subprocess
import sys
import tempfile
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from beliefmatch import dirichlet
from beliefmatch.kernels import triton_kernel
from beliefmatch.kernels.reference import LossInputs, Options

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
}


class Launches:
    """In the place of a module of kernels: keeps their arguments instead of launching them."""

    def __init__(self, module):
        self.module, self.seen = module, []

    def __getattr__(self, name):
        kernel = getattr(self.module, name)
        return _Recorder(kernel, self.seen) if isinstance(kernel, triton.JITFunction) else kernel


class _Recorder:
    def __init__(self, kernel, seen):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        return lambda *args, **options: self.seen.append((self.kernel, args, options))


def launches_of(call, code):
    """The kernels that a call launches, with their arguments."""
    module = getattr(triton_kernel, code)()
    launches = Launches(module)
    with patch.object(triton_kernel, code, lambda: launches):
        call()
    return launches.seen


def source_of(kernel, args, options):
    """As Triton specialises a launch: ones are constants, multiples of sixteen are known to be that."""
    names = kernel.arg_names
    values = {**dict(zip(names, args, strict=False)), **{k: v for k, v in options.items() if k in names}}
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(names):
        value = values[name]
        if isinstance(value, torch.Tensor):
            signature[name], attributes[i,] = POINTERS[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif isinstance(value, int) and not isinstance(value, bool) and value != 1 and not name.isupper():
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0:
                attributes[i,] = [["tt.divisibility", 16]]
        else:
            signature[name], constants[name] = "constexpr", value
    return ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)


def figures(kernel, args, options, target):
    warps = options["num_warps"]
    compiled = triton.compile(source_of(kernel, args, options), target=target, options={"num_warps": warps})
    tile = options["ROWS"] * options["BLOCK"] / (warps * target.warp_size) if "ROWS" in options else None
    facts = {"kernel": kernel.__name__, "shared": compiled.metadata.shared, "elements": tile}
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        (registers,), (spills,) = (
            re.findall(rf"\.{name}: *(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")
        )
        return {**facts, "registers": int(registers), "spills": int(spills)}
    text = compiled.asm["ptx"]
    (body,) = re.findall(rf"\.entry {kernel.__name__}\([\s\S]*?\n}}", text)
    bits = {
        kind: sum(map(_bits, re.findall(rf"{kind}\.global((?:\.v\d)?\.b(?:16|32))\b", body)))
        for kind in ("ld", "st")
    }
    return {**facts, **bits, **_allocated(text, kernel.__name__, target.arch)}


def _bits(access):
    (vector, width) = re.fullmatch(r"(?:\.v(\d))?\.b(\d+)", access).groups()
    return int(vector or 1) * int(width)


def _allocated(ptx, kernel, arch):
    """What the assembler gives the kernel and what it calls."""
    name = f"sm_{arch}" + ("a" if arch >= 90 else "")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(arch).path, "-v", "--gpu-name", name, file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"Function properties for (\S+)\n.*?(\d+) bytes spill stores", said)
    own = sum(int(count) for function, count in spills if function == kernel)
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)))
    return {
        "registers": registers,
        "spills": own,
        "rare spills": sum(int(count) for _, count in spills) - own,
    }


def loss_call(shape, dtype=torch.float32, has_ids=True, priors=None, with_grad=True, has_weight=False):
    def call():
        logits = torch.zeros(shape, dtype=dtype)
        targets = (
            torch.zeros(shape[:1] + shape[2:], dtype=torch.int64)
            if has_ids
            else torch.zeros(shape, dtype=dtype)
        )
        options = Options(1.0, 0.01, 1, has_ids, -100, "mean")
        weight = torch.ones(shape[1]) if has_weight else None
        inputs = LossInputs(logits, targets, weight, priors, None, options)
        triton_kernel._evaluate(inputs, torch.empty_like(logits) if with_grad else None)

    return call


LOSSES = {
    "ids": loss_call((8, 1000)),
    "few classes": loss_call((4096, 10)),
    "without gradient": loss_call((8, 1000), with_grad=False),
    "long rows": loss_call((4, 131072), torch.bfloat16),
    "votes": loss_call((8, 1000), has_ids=False),
    "priors": loss_call((8, 1000), has_ids=False, priors=torch.ones(1, 1000)),
    "weighted votes": loss_call((4096, 10), has_ids=False, has_weight=True),
    "longest votes": loss_call((8, 8192), has_ids=False),
    "image": loss_call((1, 32, 64, 64)),
}
DIRICHLET = {
    "mutual information": lambda: triton_kernel._measure(
        dirichlet.mutual_information, torch.zeros(8, 1000), 1
    ),
    "differential entropy": lambda: triton_kernel._measure(
        dirichlet.differential_entropy, torch.zeros(8, 10), 1
    ),
    "divergence": lambda: triton_kernel._divergence(torch.zeros(8, 1000), torch.zeros(8, 1000), 1),
}


def main(target, *names):
    triton_kernel._WARP = TARGETS[target].warp_size
    for name in names:
        call, code = (LOSSES[name], "_loss_code") if name in LOSSES else (DIRICHLET[name], "_dirichlet_code")
        for kernel, args, options in launches_of(call, code):
            print(json.dumps({"call": name, **figures(kernel, args, options, TARGETS[target])}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
