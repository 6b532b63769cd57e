"""The layers of the package, and what each may import."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "beliefmatch"
ROOT = "__init__"  # the package itself: loads its public names on first use, used by nobody inside
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# From the ground up. A package or module may import from every layer below its own, and from itself.
LAYERS = (
    ("ground", "_errors"),
    ("ground", "_utils"),
    ("ground", "_coefficients _environment _files _png _torch_state _validate resampling"),
    ("ground", "_config"),
    ("L0", "_special"),
    ("L0", "_rows"),
    ("L0", "_autograd _quadrature elbo"),
    ("L0", "dirichlet"),
    ("L1", "_belief_view _labels"),
    ("L1", "kernels"),
    ("L1", "loss metrics votes"),
    ("L1", "belief linear_loss"),
    ("L2", "data methods models"),
    ("L3", "semi"),
    ("L3", "train"),
    ("L3", "adaptation"),
    ("L3", "kl_weight mlp"),
    ("L4", "experiments"),
    ("L5", "reproduce"),
    ("L5", "report"),
    ("L5", "adapting evaluating sklearn"),
    ("L5", "integrations"),
    ("L5", "cli"),
    ("L5", "__main__"),
)
HEIGHT = {unit: height for height, (_, units) in enumerate(LAYERS) for unit in units.split()}

# Packages that importing a unit may load. All others are extras, imported inside the function
# that uses them. Commands answer `--help` without torch, and reports are drawn when asked for.
CORE = {"torch", "numpy", "msgspec"}
AT_IMPORT = {
    "_config": {"msgspec"},
    "_environment": set(),
    "_errors": set(),
    "_files": set(),
    "_utils": set(),
    "resampling": set(),
    "report": {"matplotlib", "msgspec", "rich"},
    "cli": {"msgspec", "rich", "typer"},
}
# Files that are themselves loaded on first use, because they build on the classes of an extra.
AT_IMPORT_OF_FILE = {
    "metrics/modules.py": {"torchmetrics"},
    "integrations/lightning.py": {"pytorch_lightning"},
    "integrations/skorch.py": {"skorch"},
    "sklearn.py": {"sklearn"},
    "kernels/triton_dirichlet.py": {"triton"},
    "kernels/triton_loss.py": {"triton"},
    "kernels/triton_math.py": {"triton"},
    "kernels/triton_rows.py": {"triton"},
}


class Import(NamedTuple):
    """One imported module, where it stands and whether importing the file executes it."""

    module: str
    line: int
    at_import: bool


def imports(code: str) -> Iterator[Import]:
    tree = ast.parse(code)
    executed = set(_executed(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in executed)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names if base == PACKAGE else [None]:
                module = f"{base}.{alias.name}" if alias else base
                yield Import(module, node.lineno, node in executed)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the file is imported: outside functions and TYPE_CHECKING blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _executed(child)


def violations(source: Path) -> list[str]:
    """Every broken rule, as `file:line: what`."""
    return [
        f"{path.relative_to(source)}:{found.line}: {problem}"
        for path in sorted(source.rglob("*.py"))
        for found in imports(path.read_text(encoding="utf-8"))
        if (problem := _problem(path.relative_to(source), found))
    ]


def _problem(path: Path, found: Import) -> str | None:
    unit = _unit(path)
    if found.module.startswith("."):
        return f"{found.module} is a relative import"
    if found.module.split(".")[0] == PACKAGE:
        return _problem_inside(unit, found)
    return _problem_outside(unit, found, AT_IMPORT_OF_FILE.get(path.as_posix(), set()))


def _problem_inside(unit: str, found: Import) -> str | None:
    if unit == ROOT:
        is_late = not found.at_import or found.module == f"{PACKAGE}._utils"  # which loads the others late
        return None if is_late else f"{found.module} is loaded at once, not on first use"
    target = [*found.module.split("."), ROOT][1]
    for place in (unit, target):
        if place not in HEIGHT:
            return f"{place} has no layer; new packages and modules are placed in LAYERS"
    if target == unit or HEIGHT[target] < HEIGHT[unit]:
        return None
    layer, other = LAYERS[HEIGHT[unit]][0], LAYERS[HEIGHT[target]][0]
    return f"{unit} ({layer}) may not import {target} ({other})"


def _problem_outside(unit: str, found: Import, of_file: set[str]) -> str | None:
    top = found.module.split(".")[0]
    if top in sys.stdlib_module_names or not found.at_import:
        return None
    if top in AT_IMPORT.get(unit, CORE) | of_file:
        return None
    return f"{unit} may not import {top} at module level"


def _unit(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_every_import_runs_downwards():
    assert violations(SOURCE) == []


def test_every_unit_has_a_layer_and_every_layer_holds_only_units_that_exist():
    units = {_unit(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")} - {ROOT}
    assert sorted(HEIGHT) == sorted(units)


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("_special.py", "from beliefmatch.loss import x", "may not import loss"),
        ("_special.py", "from beliefmatch import loss", "may not import loss"),
        ("_special.py", "import beliefmatch.loss", "may not import loss"),
        ("_special.py", "def f():\n    from beliefmatch.loss import x", "may not import loss"),
        ("methods/softmax.py", "import beliefmatch.models.digits", "may not import models"),
        ("metrics/scoring.py", "from beliefmatch.belief import Belief", "may not import belief"),
        ("report/tables.py", "from beliefmatch.cli import main", "may not import cli"),
        ("train/loop.py", "from beliefmatch import Belief", "Belief has no layer"),
        ("train/loop.py", "import beliefmatch", "has no layer"),
        ("attic/box.py", "from beliefmatch._special import x", "attic has no layer"),
        ("train/loop.py", "from . import other", "relative import"),
        ("loss.py", "import scipy", "may not import scipy at module level"),
        ("data/digits.py", "class A:\n    import sklearn", "may not import sklearn"),
        ("cli/compare.py", "import torch", "may not import torch at module level"),
        ("metrics/scoring.py", "import torchmetrics", "may not import torchmetrics at module level"),
        ("__init__.py", "from beliefmatch.loss import x", "not on first use"),
    ],
)
def test_the_checker_catches(tmp_path, file, code, complaint):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(code)
    (found,) = violations(tmp_path)
    assert complaint in found
    assert found.startswith(f"{Path(file)}:")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("loss.py", "import math\nimport torch\nfrom beliefmatch import kernels, _special"),
        ("data/digits.py", "def f():\n    import sklearn"),
        ("methods/base.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich"),
        ("cli/compare.py", "def f():\n    import torch\n    from beliefmatch.report import table"),
        ("metrics/modules.py", "import torchmetrics"),
        ("__init__.py", "def __getattr__(name):\n    from beliefmatch.loss import x"),
    ],
)
def test_the_checker_lets_pass(tmp_path, file, code):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(code)
    assert violations(tmp_path) == []


def _sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_module_opens_with_a_docstring():
    bare = [path.name for path in _sources() if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert bare == []
