"""One run: networks trained, their predictor judged, everything kept in a directory."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import nn

from beliefmatch.environment import hardware, versions
from beliefmatch.experiments.judging import foreign_scores, scores, to_npz
from beliefmatch.experiments.parts import dataset, engine_for, method_of
from beliefmatch.experiments.plan import RunPlan, fingerprint, to_mapping
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.experiments.run_record import Costs, Rotation, RunRecord, Trial
from beliefmatch.experiments.running import OnProgress, Running, Said
from beliefmatch.experiments.teacher import with_known_teacher
from beliefmatch.experiments.turning import TurningDigit
from beliefmatch.files import write_whole
from beliefmatch.methods.base import Predictor, facts_of
from beliefmatch.train.history import History

__all__ = ["execute", "finished"]


def finished(directory: Path, plan: RunPlan) -> RunRecord | None:
    """The record of a run of this plan, if it is finished; a ValueError if another plan's is there."""
    home = RunDirectory(directory)
    home.check(plan)
    return home.record()


def execute(
    plan: RunPlan,
    directory: Path,
    *,
    search: Sequence[Trial] = (),
    tensorboard: bool = False,
    on_progress: OnProgress | None = None,
) -> RunRecord:
    """Train by a plan, judge what came out, and keep it; a run that was stopped goes on where it was.

    Args:
        plan: all settings; none of its method's options may be left to a search.
        directory: of this run alone.
        search: how an option of the plan was chosen, for the record.
        tensorboard: write its logs beside the CSV ones.
        on_progress: told about progress.
    """
    plan = with_known_teacher(plan, directory)
    done = finished(directory, plan)
    if done is not None:
        return done
    start, home = time.perf_counter(), RunDirectory(directory)
    method, data, engine = method_of(plan), dataset(plan.data), engine_for(plan.engine)
    with home.locked() if engine.is_first else nullcontext():
        engine.once(lambda: home.begin(plan))
        tell = on_progress or (lambda share, doing: None)
        run = Running(plan, home, method, data, engine, tell, tensorboard)
        networks, histories = run.train()
        predictor = run.predictor(networks)
        said = run.predict(predictor)
        record = RunRecord(
            **_asked(plan, run, said),
            **_trained(run, networks, histories, said),
            **_judged(said),
            search=list(search),
            learned=_plain(facts_of(predictor)),
            rotation=_rotation(plan, predictor),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )
        engine.once(lambda: _keep(run, said, record))
        tell(1.0, "done")
    return record


def _asked(plan: RunPlan, run: Running, said: Said) -> dict[str, Any]:
    return {
        "method": plan.method.name,
        "options": _plain(run.method.options),
        "seed": plan.seed,
        "plan": to_mapping(plan),
        "fingerprint": fingerprint(plan),
        "data": _plain({**run.data.facts, "foreign_digests": said.foreign_digests}),
        "class_names": list(run.data.class_names),
    }


def _trained(
    run: Running, networks: Sequence[nn.Module], histories: Sequence[History], said: Said
) -> dict[str, Any]:
    seconds, images = (
        sum(h.seconds for h in histories),
        run.data.epoch_images * sum(len(h.epochs) for h in histories),
    )
    return {
        "curves": [_curves(history) for history in histories],
        "skipped_steps": sum(history.skipped for history in histories),
        "costs": Costs(
            networks=len(networks),
            parameters=sum(parameter.numel() for parameter in networks[0].parameters()),
            train_seconds=seconds,
            train_images_per_second=images / seconds if seconds else 0.0,
            predict_seconds=said.seconds,
            predict_ms_per_image=1000 * said.seconds / len(said.test.targets),
        ),
        "engine": run.engine.describe(),
        "versions": versions("beliefmatch", "torch", "numpy", "lightning-fabric"),
        "hardware": hardware(),
    }


def _judged(said: Said) -> dict[str, Any]:
    return {
        "validation": scores(said.validation),
        "test": scores(said.test),
        "foreign": [foreign_scores(name, said.test, other) for name, other in said.foreign.items()],
    }


def _curves(history: History) -> dict[str, list[float | None]]:
    names = ["loss", "rate", "gradient_norm", "seconds", "images_per_second", "skipped"]
    names += list(history.epochs[0].extra) if history.epochs else []
    own = {name: history.curve(name) for name in names}
    watched = list(history.epochs[0].validation) if history.epochs else []
    return own | {f"validation_{name}": history.curve(name) for name in watched}


def _rotation(plan: RunPlan, predictor: Predictor) -> Rotation | None:
    return TurningDigit.load().seen_by(predictor) if plan.data.name == "digits" else None


def _keep(run: Running, said: Said, record: RunRecord) -> None:
    """Write everything down, the record last."""
    home = run.home
    places = home.foreign_predictions(list(said.foreign))
    for name, predicted in said.foreign.items():
        to_npz(places[name], predicted)
    to_npz(home.predictions("validation"), said.validation)
    to_npz(home.predictions("test"), said.test)
    home.write_model(
        {
            "class_names": list(run.data.class_names),
            "shape": list(run.data.test.shape),
            "preprocessing": run.data.facts["preprocessing"],
            "learned": record.learned,
        }
    )
    write_whole(home.classes_file, _lines(run.data.class_names))
    write_whole(home.record_file, record.to_json().encode())


def _plain(value: Any) -> Any:
    """JSON has no tuples; with lists a record equals what is read back from its file."""
    if isinstance(value, Mapping):
        return {f"{key}": _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _lines(names: Sequence[str]) -> bytes:
    return "".join(" ".join(name.split()) + "\n" for name in names).encode()
