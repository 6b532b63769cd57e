"""The tables and figures of the paper, by id: what to train, what to read from it, the paper's numbers.

The ids are listed here without importing what they stand for; `registry` describes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beliefmatch._utils import require_name

if TYPE_CHECKING:
    from beliefmatch.reproduce.config import ReproduceConfig
    from beliefmatch.reproduce.registry import Reproduction
    from beliefmatch.reproduce.runner import Runner

__all__ = ["REPRODUCTIONS", "reproduction", "runner_for"]

REPRODUCTIONS = (
    "table1", "table2", "ablation-kl", "figure-reliability", "figure-ood", "figure-rotation",
    "figure-representation", "figure-beta", "controls", "table3", "figure-transfer", "table4",
)  # fmt: skip


def reproduction(name: str) -> Reproduction:
    """The table or figure with an id; a ValueError suggests the nearest to a mistyped one."""
    require_name("reproduce", "id", name, REPRODUCTIONS, other=", or all, or list")
    from beliefmatch.reproduce.registry import REGISTRY

    return REGISTRY[name]


def runner_for(name: str, config: ReproduceConfig) -> Runner:
    """The runner of a table or figure; it reads and trains nothing before `check` and `run`."""
    found = reproduction(name)
    if found.transfers:
        from beliefmatch.reproduce.transfer import TransferRunner

        return TransferRunner(found, config)
    from beliefmatch.reproduce.runner import TrainingRunner

    return TrainingRunner(found, config)
