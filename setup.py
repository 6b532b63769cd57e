"""The compiled part of the package and its long description; everything else is in pyproject.toml.

The extension is optional: where no C++ compiler works, the package installs without it and computes the
same numbers more slowly (`beliefmatch doctor` tells). It uses the stable ABI and no headers but Python's.

The long description is README.md with links and pictures as addresses, since an index has no files beside it.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
RELATIVE_LINK = re.compile(r"""(?P<before>\]\(|\b(?:src|srcset|href)=")(?P<path>(?!\w+:|\#)[^)"\s]+)""")
PICTURES = (".png", ".svg", ".jpg")


def long_description() -> str:
    """README.md with relative links as addresses in the repository, at the tag of this version."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    repository, tag = project["urls"]["Repository"], f"v{project['version']}"

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["path"].endswith(PICTURES) else "blob"
        return f"{link['before']}{repository}/{kind}/{tag}/{link['path']}"

    text = Path("README.md").read_text("utf-8")
    prose_and_code = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else RELATIVE_LINK.sub(absolute, part) for part in prose_and_code
    )


skipped = os.environ.get("BELIEFMATCH_BUILD_NATIVE", "1") == "0"

setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[] if skipped else [native],
    options={} if skipped else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
