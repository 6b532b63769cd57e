"""Configurations of runs of a second on embedded digits, and runs that tests of experiments share."""

from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from beliefmatch.experiments.compare import Comparison
from beliefmatch.experiments.config import RunConfig, config_from, overridden, recipe, with_method
from beliefmatch.experiments.executors import LocalWorkers
from beliefmatch.experiments.method_spec import parse_methods
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.train.checkpoint import final_weights

SHORT = ("training.epochs=2", "training.warmup=[]", "data.limit=200", "ood=[noise]")
SEMI = (
    *("training.epochs=2", "training.warmup=[]", "data.limit=150", "ood=[]", "data.labels=30"),
    *("model.options.width=8", "training.batch_size=20"),
)
METHODS = "softmax,belief_matching:kl_weight=0.01"


def digits_settings(*settings: str) -> dict[str, Any]:
    return overridden(recipe("digits"), [*SHORT, *settings])


def digits_config(method: str = "belief_matching", *settings: str, **options: Any) -> RunConfig:
    return config_from(with_method(digits_settings(*settings), method, **options))


def semi_settings(*settings: str) -> dict[str, Any]:
    return overridden(recipe("semi-digits"), [*SEMI, *settings])


def semi_config(*settings: str, method: str = "belief_matching", **options: Any) -> RunConfig:
    return config_from(with_method(semi_settings(*settings), method, **options))


def comparison(
    directory: Path, methods: str = METHODS, *, seeds=(5, 6), jobs=1, workers=None, url=None, settings=()
) -> Comparison:
    specs, workers = parse_methods(methods), workers or LocalWorkers(jobs)
    places = {"directory": directory, "url": url, "workers": workers}
    return Comparison(digits_settings(*settings), specs, seeds=seeds, **places)


def without_times(record: RunRecord) -> RunRecord:
    timed = ("seconds", "images_per_second")
    curves = [{name: values for name, values in one.items() if name not in timed} for one in record.curves]
    return replace(record, curves=curves, costs=None, created="", wall_seconds=0.0)  # type: ignore[arg-type]


def weights_of(directory: Path, member: int = 0) -> dict[str, torch.Tensor]:
    found = final_weights(RunDirectory(directory).network(member))
    assert found is not None
    return found


def have_equal_weights(one: Path, other: Path) -> bool:
    first, second = weights_of(one), weights_of(other)
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())
