"""The paper's tables and figures, each by a name: what to train, what to read of it, what the paper says.

A new one is a file with a `Reproduction`, and a line in `REPRODUCTIONS`. The table holds addresses so that
naming them imports none of them.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from beliefmatch._utils import require_name

if TYPE_CHECKING:
    from beliefmatch.reproduce.asked import ReproduceConfig
    from beliefmatch.reproduce.base import Reproduction
    from beliefmatch.reproduce.working import Work

__all__ = ["REPRODUCTIONS", "begin", "reproduction"]

_HERE = "beliefmatch.reproduce"

REPRODUCTIONS = {
    "table1": f"{_HERE}.table1:TABLE1",
    "table2": f"{_HERE}.table2:TABLE2",
    "ablation-kl": f"{_HERE}.ablation:ABLATION",
    "figure-reliability": f"{_HERE}.reliability:RELIABILITY",
    "figure-ood": f"{_HERE}.ood:OOD",
    "figure-rotation": f"{_HERE}.rotation:ROTATION",
    "figure-representation": f"{_HERE}.representation:REPRESENTATION",
    "figure-beta": f"{_HERE}.beta:BETA",
    "controls": f"{_HERE}.controls:CONTROLS",
    "table3": f"{_HERE}.transfer:TABLE3",
    "figure-transfer": f"{_HERE}.transfer:FIGURE",
    "table4": f"{_HERE}.semi_supervised:TABLE4",
}


def reproduction(name: str) -> Reproduction:
    """One of the table by its name; a ValueError has the nearest to a mistyped one."""
    require_name("reproduce", "id", name, REPRODUCTIONS, other=", or all, or list")
    return resolve_name(REPRODUCTIONS[name])


def begin(what: Reproduction, asked: ReproduceConfig) -> Work[Any]:
    """What runs a reproduction."""
    return resolve_name(what.worker)(what, asked)
