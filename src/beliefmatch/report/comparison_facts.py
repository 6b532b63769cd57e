"""How a comparison came about: what was the same for all methods, and what was not."""

import shlex
from typing import Any

from beliefmatch.experiments.records import Compared, ComparisonRecord
from beliefmatch.report.evaluation_text import MISSING, number_text
from beliefmatch.report.page_facts import flattened, side_by_side

__all__ = ["command_of", "common_facts", "method_facts"]

_COMMAND = "command"  # of the settings: what to type to get the same again

Facts = list[tuple[str, list[tuple[str, str]]]]


def command_of(record: ComparisonRecord) -> str:
    """What to type to repeat the comparison, if its settings tell."""
    command = record.settings.get(_COMMAND, "")
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def common_facts(record: ComparisonRecord) -> Facts:
    """Groups of names and texts that hold for every method."""
    settings = {key: value for key, value in record.settings.items() if key != _COMMAND}
    runs = [run for method in record.methods for run in method.runs]
    own = {
        "seeds": ", ".join(map(str, record.seeds)),
        "made": record.created,
        "took": f"{number_text(record.wall_seconds, 1)} s, without runs that were finished before",
    }
    groups: list[tuple[str, dict[str, Any]]] = [("This comparison", own), ("Settings", settings)]
    for title, name in (("Data", "data"), ("Engine", "engine")):
        if _alike([getattr(run, name) for run in runs]):
            groups.append((title, getattr(runs[0], name)))
    groups += [("Versions", record.versions), ("Hardware", record.hardware)]
    return [(title, list(flattened(content).items())) for title, content in groups if content]


def method_facts(record: ComparisonRecord) -> list[tuple[str, list[str]]]:
    """Names, and a text for every method."""
    runs = [run for method in record.methods for run in method.runs]
    apart = [name for name in ("data", "engine") if not _alike([getattr(run, name) for run in runs])]
    return side_by_side([_of_method(method, apart) for method in record.methods])


def _of_method(method: Compared, apart: list[str]) -> dict[str, str]:
    first = method.runs[0]
    nested = flattened({name: getattr(first, name) for name in apart})
    return {
        "method": first.method,
        "options": _assignments(first.options),
        "seeds": ", ".join(str(run.seed) for run in method.runs),
        "networks of a run": str(first.costs.networks),
        "steps skipped": ", ".join(str(run.skipped_steps) for run in method.runs),
        f"learned, seed {first.seed}": _assignments(first.learned),
        **{f"{name}, seed {first.seed}": text for name, text in nested.items()},
        "seconds of each run": ", ".join(number_text(run.wall_seconds, 1) for run in method.runs),
        f"fingerprint, seed {first.seed}": first.fingerprint,
    }


def _assignments(content: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {text}" for name, text in flattened(content).items()) or MISSING


def _alike(values: list[Any]) -> bool:
    return all(value == values[0] for value in values)
