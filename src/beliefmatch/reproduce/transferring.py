"""Reproductions of transfer at work: one adaptation a set, kept and never made twice."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from beliefmatch._files import OutsideError, in_a_line, write_together
from beliefmatch.adaptation.wishes import Wishes
from beliefmatch.data import load_parts
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.experiments.adapt_plan import AdaptPlan, ImagePlan
from beliefmatch.experiments.adapt_record import AdaptRecord, adapt_evaluation_paths
from beliefmatch.experiments.adapting import Adapting
from beliefmatch.experiments.config import plain
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.reproduce.asked import Asked, is_of_transfers
from beliefmatch.reproduce.base import Reproduction
from beliefmatch.reproduce.differences import (
    Meant,
    differences,
    foreign_sentences,
    precision_sentences,
)
from beliefmatch.reproduce.places import (
    CLASSES,
    anywhere,
    at_home,
    missing_data,
    other_images,
    require_named,
)
from beliefmatch.reproduce.record import ReproducedRun
from beliefmatch.reproduce.scales import scale_name
from beliefmatch.reproduce.transfer import (
    LABELS,
    SETS,
    TITLES,
    Transferred,
    planned,
)
from beliefmatch.reproduce.transfer_plan import (
    TransferPlan,
    transfer_fingerprint,
    transfer_plan,
)
from beliefmatch.reproduce.working import OnProgress, Work

__all__ = ["Transferring"]

_RECORD = "adaptation.json"
_FIXED = ("data.name", "data.directory")
_OTHER_WEIGHTS = "Weights are those that come with the network's name; the paper's are of Keras."


class Transferring(Work[dict[str, Transferred]]):
    """By adapting one network to each set."""

    def __init__(self, what: Reproduction, asked: Asked) -> None:
        super().__init__(what, asked)
        for setting in asked.of_transfers:
            what.require_free(setting, _FIXED)
        self.plans = {data: self._plan(data) for data in SETS[what.id]}

    @staticmethod
    def takes(setting: str) -> bool:
        """All that begins with `transfer.`."""
        return is_of_transfers(setting)

    def _plan(self, data: str) -> TransferPlan:
        plan = transfer_plan(planned(data, self.asked.scale), self.asked.of_transfers)
        return plan if self.asked.data_dir is None else at_home(plan, self.asked.data_dir)

    @property
    def _small_scale(self) -> str:
        first = _anywhere(next(iter(self.plans.values())))
        images = "all" if first.data.limit is None else f"at most {first.data.limit:,}"
        fitted = f"{first.epochs} epochs of the last layer of {first.model}, λ {first.kl_weight:g}"
        return f"{scale_name(self.asked.scale)}: {images} training images, {fitted}"

    @property
    def _notes(self) -> list[str]:
        usual = any(plan.weights is None for plan in self.plans.values())
        precisions = precision_sentences(plan.precision for plan in self.plans.values())
        return [*([_OTHER_WEIGHTS] if usual else []), *precisions]

    @property
    def _changed(self) -> list[str]:
        paper = [Meant(data, TITLES[data], TITLES[data], planned(data, "paper")) for data in self.plans]
        return differences(paper, {data: _anywhere(plan) for data, plan in self.plans.items()})

    def described(self) -> dict[str, dict[str, Any]]:
        """Every plan by its set."""
        return {data: plain(plan) for data, plan in self.plans.items()}

    def costs(self) -> dict[str, float | None]:
        """Features are most of it, and how long they take depends on the network."""
        return {transfer_fingerprint(plan, self.seeds): None for plan in self.plans.values()}

    def finished(self) -> int:
        """How many adaptations are kept already."""
        homes = {self._home(plan) for plan in self.plans.values()}
        return sum((home / _RECORD).is_file() for home in homes)

    def check(self) -> None:
        """Build every network and find every image that is not behind us."""
        if self.asked.data_dir is not None:
            require_named(self.what.id, list(self.plans.values()), self.asked.data_dir)
        for plan in self.plans.values():
            if self._kept(plan) is None:
                with missing_data(self.what.id, list(self.plans.values()), self.asked.data_dir):
                    Adapting(self._adaptation(plan))

    def _find(self, tell: OnProgress) -> dict[str, Transferred]:
        found: dict[str, Transferred] = {}
        for place, (data, plan) in enumerate(self.plans.items()):
            found[data] = self._transferred(
                plan, lambda share, doing, place=place: tell((place + share) / len(self.plans), doing)
            )
        return found

    def _runs(self, found: Mapping[str, Transferred]) -> list[ReproducedRun]:
        return [run for data, one in found.items() for run in self._runs_of(data, one)]

    def _plans_of(self, found: Mapping[str, Transferred]) -> dict[str, dict[str, Any]]:
        return {data: plain(_anywhere(plan)) for data, plan in self.plans.items()}

    def _differences_of(self, found: Mapping[str, Transferred]) -> list[str]:
        """Sets of which only some classes or images were there."""
        parts = [
            f"{TITLES[data]}: {one.record.classes} classes, not {CLASSES[data]}, {_counted(one.record)}."
            for data, one in found.items()
            if one.record.classes != CLASSES[data]
        ]
        heads = [one.record.judged[0] for one in found.values()]
        return parts + foreign_sentences({one.name: one.examples for head in heads for one in head.foreign})

    def _home(self, plan: TransferPlan) -> Path:
        return self.asked.directory / "runs" / transfer_fingerprint(plan, self.seeds)

    def _transferred(self, plan: TransferPlan, tell: OnProgress) -> Transferred:
        kept = self._kept(plan)
        if kept is not None:
            tell(1.0, "finished before")
            return kept
        try:
            outcome = Adapting(self._adaptation(plan)).run(tell)
        except OutsideError:
            raise
        except ValueError as error:  # of numbers that left the finite ones, or files
            raise OutsideError(f"{error}") from error
        paths = adapt_evaluation_paths(outcome.record.row_labels)
        evaluations = list(outcome.evaluations)
        files = [(path, one.to_json().encode()) for path, one in zip(paths, evaluations, strict=True)]
        home = self._home(plan)
        home.mkdir(parents=True, exist_ok=True)
        write_together(home, [*files, (_RECORD, outcome.record.to_json().encode())])
        return Transferred(outcome.record, evaluations, self.seeds)

    def _kept(self, plan: TransferPlan) -> Transferred | None:
        home = self._home(plan)
        if not (home / _RECORD).is_file():
            return None
        try:
            record = AdaptRecord.from_json((home / _RECORD).read_text("utf-8"))
            texts = [(home / path).read_text("utf-8") for path in adapt_evaluation_paths(record.row_labels)]
            found = Transferred(record, [EvaluationRecord.from_json(text) for text in texts], self.seeds)
        except (ValueError, OSError) as error:
            raise OutsideError(
                f"reproduce: {home} is damaged ({in_a_line(error)}). "
                "Remove it, and the same command fits it again."
            ) from error
        if _digest(plan, record) != record.data.get("digest"):
            raise OutsideError(other_images(home, plan.data.name, plan.data))
        return found

    def _adaptation(self, plan: TransferPlan) -> AdaptPlan:
        given = ImagePlan(
            model=plan.model,
            options=plan.options,
            weights=plan.weights,
            data=plan.data,
            cache_dir=f"{self.asked.directory / 'features'}",
            device=plan.device,
            precision=plan.precision,
            compile=plan.compile,
            batch_size=plan.batch,
        )
        wishes = Wishes(
            labels="new",
            kl_weights=(plan.kl_weight,),
            seeds=tuple(self.seeds),
            controls=("softmax", "label_smoothing"),
            choose_by="error",
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            learning_rate=plan.learning_rate,
            patience=None,
        )
        return AdaptPlan(given, wishes, plan.foreign)

    def _runs_of(self, data: str, found: Transferred) -> list[ReproducedRun]:
        name = transfer_fingerprint(self.plans[data], self.seeds)
        return [
            ReproducedRun(
                arm=f"{data}/{key}",
                seed=seed,
                fingerprint=name,
                method=key,
                options={} if head is None else dict(head.options),
                train_seconds=None,
                skipped_steps=None,
                diverged="its numbers left the finite ones" if head is None else None,
                search=[],
            )
            for label, key in LABELS.items()
            for seed, head in zip(found.seeds, found.heads(label), strict=True)
        ]


def _digest(plan: TransferPlan, record: AdaptRecord) -> str | None:
    """Of the images that are there now, seen as those of the record were; embedded ones are always there."""
    if plan.data.name == "digits":
        return record.data.get("digest")
    how = Preprocessing.from_json(record.data["preprocessing"])
    seen = replace(plan.data, size=record.data["shape"][1], margin=how.margin, mean=how.mean, std=how.std)
    return load_parts(seen).facts.get("digest")


def _counted(record: AdaptRecord) -> str:
    counts = record.data["counts"]
    return f"{counts['train']:,} images to fit on and {counts['test']:,} to judge on"


def _anywhere(plan: TransferPlan) -> TransferPlan:
    """Without the places of data, network and weights on this machine."""
    weights = None if plan.weights is None else Path(plan.weights).name
    model = Path(plan.model).name if Path(plan.model).is_absolute() else plan.model
    return replace(anywhere(plan), weights=weights, model=model)
