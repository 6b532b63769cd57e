"""The compiled part of the package; everything else is in pyproject.toml.

The extension is optional: where no C++ compiler works, the package installs without it and computes the
same numbers more slowly (`beliefmatch doctor` tells). It uses the stable ABI and no headers but Python's.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/beliefmatch/kernels/cpp")
# -fwrapv: lanes that will not be used may hold numbers whose bits overflow
FLAGS = [
    "-g0",
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fwrapv",
    "-fvisibility=hidden",
    "-Wno-psabi",
]

native = Extension(
    "beliefmatch.kernels._native",
    sources=[str(SOURCES / "module.cpp")],
    depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
    extra_compile_args=[] if sys.platform == "win32" else FLAGS,
    extra_link_args=["-pthread"] if sys.platform == "linux" else [],
    py_limited_api=True,
    optional=True,
)
skipped = os.environ.get("BELIEFMATCH_BUILD_NATIVE", "1") == "0"

setup(
    ext_modules=[] if skipped else [native],
    options={} if skipped else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
