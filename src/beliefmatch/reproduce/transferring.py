"""Reproductions of transfer at work: one adaptation a set, kept and never made twice."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from beliefmatch._files import EnvironmentFailure, atomic_write_dir, one_line
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.data import load
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.experiments.adapt_config_file import AdaptRunConfig, ImageAdaptConfig
from beliefmatch.experiments.adapt_record import AdaptRecord, adapt_evaluation_paths
from beliefmatch.experiments.adapting import Adapting
from beliefmatch.experiments.config import plain
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.reproduce.asked import ReproduceConfig, is_of_transfers
from beliefmatch.reproduce.base import Reproduction
from beliefmatch.reproduce.differences import (
    Meant,
    differences,
    ood_sentences,
    precision_sentences,
)
from beliefmatch.reproduce.places import (
    CLASSES,
    anywhere,
    missing_data,
    other_images,
    require_named,
    with_data_dir,
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
from beliefmatch.reproduce.transfer_config import (
    TransferConfig,
    transfer_config,
    transfer_fingerprint,
)
from beliefmatch.reproduce.working import OnProgress, Work

__all__ = ["Transferring"]

_RECORD = "adaptation.json"
_FIXED = ("data.name", "data.directory")
_OTHER_WEIGHTS = "Weights are those that come with the network's name; the paper's are of Keras."


class Transferring(Work[dict[str, Transferred]]):
    """By adapting one network to each set."""

    def __init__(self, what: Reproduction, asked: ReproduceConfig) -> None:
        super().__init__(what, asked)
        for setting in asked.of_transfers:
            what.require_free(setting, _FIXED)
        self.configs = {data: self._config(data) for data in SETS[what.id]}

    @staticmethod
    def takes(setting: str) -> bool:
        """All that begins with `transfer.`."""
        return is_of_transfers(setting)

    def _config(self, data: str) -> TransferConfig:
        config = transfer_config(planned(data, self.asked.scale), self.asked.of_transfers)
        return config if self.asked.data_dir is None else with_data_dir(config, self.asked.data_dir)

    @property
    def _small_scale(self) -> str:
        first = _anywhere(next(iter(self.configs.values())))
        images = "all" if first.data.limit is None else f"at most {first.data.limit:,}"
        fitted = f"{first.epochs} epochs of the last layer of {first.model}, λ {first.kl_weight:g}"
        return f"{scale_name(self.asked.scale)}: {images} training images, {fitted}"

    @property
    def _notes(self) -> list[str]:
        usual = any(config.weights is None for config in self.configs.values())
        precisions = precision_sentences(config.precision for config in self.configs.values())
        return [*([_OTHER_WEIGHTS] if usual else []), *precisions]

    @property
    def _changed(self) -> list[str]:
        paper = [Meant(data, TITLES[data], TITLES[data], planned(data, "paper")) for data in self.configs]
        return differences(paper, {data: _anywhere(config) for data, config in self.configs.items()})

    def described(self) -> dict[str, dict[str, Any]]:
        """Every configuration by its set."""
        return {data: plain(config) for data, config in self.configs.items()}

    def costs(self) -> dict[str, float | None]:
        """Features are most of it, and how long they take depends on the network."""
        return {transfer_fingerprint(config, self.seeds): None for config in self.configs.values()}

    def finished(self) -> int:
        """How many adaptations are kept already."""
        homes = {self._home(config) for config in self.configs.values()}
        return sum((home / _RECORD).is_file() for home in homes)

    def check(self) -> None:
        """Build every network and find every image that is not behind us."""
        if self.asked.data_dir is not None:
            require_named(self.what.id, list(self.configs.values()), self.asked.data_dir)
        for config in self.configs.values():
            if self._kept(config) is None:
                with missing_data(self.what.id, list(self.configs.values()), self.asked.data_dir):
                    Adapting(self._adaptation(config))

    def _find(self, tell: OnProgress) -> dict[str, Transferred]:
        found: dict[str, Transferred] = {}
        for place, (data, config) in enumerate(self.configs.items()):
            found[data] = self._transferred(
                config, lambda share, doing, place=place: tell((place + share) / len(self.configs), doing)
            )
        return found

    def _runs(self, found: Mapping[str, Transferred]) -> list[ReproducedRun]:
        return [run for data, one in found.items() for run in self._runs_of(data, one)]

    def _plans_of(self, found: Mapping[str, Transferred]) -> dict[str, dict[str, Any]]:
        return {data: plain(_anywhere(config)) for data, config in self.configs.items()}

    def _differences_of(self, found: Mapping[str, Transferred]) -> list[str]:
        """Sets of which only some classes or images were there."""
        parts = [
            f"{TITLES[data]}: {one.record.classes} classes, not {CLASSES[data]}, {_counted(one.record)}."
            for data, one in found.items()
            if one.record.classes != CLASSES[data]
        ]
        heads = [one.record.judged[0] for one in found.values()]
        return parts + ood_sentences({one.name: one.examples for head in heads for one in head.ood})

    def _home(self, config: TransferConfig) -> Path:
        return self.asked.directory / "runs" / transfer_fingerprint(config, self.seeds)

    def _transferred(self, config: TransferConfig, tell: OnProgress) -> Transferred:
        kept = self._kept(config)
        if kept is not None:
            tell(1.0, "finished before")
            return kept
        try:
            outcome = Adapting(self._adaptation(config)).run(tell)
        except EnvironmentFailure:
            raise
        except ValueError as error:  # of numbers that left the finite ones, or files
            raise EnvironmentFailure(f"{error}") from error
        paths = adapt_evaluation_paths(outcome.record.row_labels)
        evaluations = list(outcome.evaluations)
        files = [(path, one.to_json().encode()) for path, one in zip(paths, evaluations, strict=True)]
        home = self._home(config)
        home.mkdir(parents=True, exist_ok=True)
        atomic_write_dir(home, [*files, (_RECORD, outcome.record.to_json().encode())])
        return Transferred(outcome.record, evaluations, self.seeds)

    def _kept(self, config: TransferConfig) -> Transferred | None:
        home = self._home(config)
        if not (home / _RECORD).is_file():
            return None
        try:
            record = AdaptRecord.from_json((home / _RECORD).read_text("utf-8"))
            texts = [(home / path).read_text("utf-8") for path in adapt_evaluation_paths(record.row_labels)]
            found = Transferred(record, [EvaluationRecord.from_json(text) for text in texts], self.seeds)
        except (ValueError, OSError) as error:
            raise EnvironmentFailure(
                f"reproduce: {home} is damaged ({one_line(error)}). "
                "Remove it, and the same command fits it again."
            ) from error
        if _digest(config, record) != record.data.get("digest"):
            raise EnvironmentFailure(other_images(home, config.data.name, config.data))
        return found

    def _adaptation(self, config: TransferConfig) -> AdaptRunConfig:
        given = ImageAdaptConfig(
            model=config.model,
            options=config.options,
            weights=config.weights,
            data=config.data,
            cache_dir=f"{self.asked.directory / 'features'}",
            device=config.device,
            precision=config.precision,
            compile=config.compile,
            batch_size=config.batch,
        )
        adapt_config = AdaptConfig(
            labels="new",
            kl_weights=(config.kl_weight,),
            seeds=tuple(self.seeds),
            controls=("softmax", "label_smoothing"),
            choose_by="error",
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            patience=None,
        )
        return AdaptRunConfig(given, adapt_config, config.ood)

    def _runs_of(self, data: str, found: Transferred) -> list[ReproducedRun]:
        name = transfer_fingerprint(self.configs[data], self.seeds)
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


def _digest(config: TransferConfig, record: AdaptRecord) -> str | None:
    """Of the images that are there now, seen as those of the record were; embedded ones are always there."""
    if config.data.name == "digits":
        return record.data.get("digest")
    how = Preprocessing.from_json(record.data["preprocessing"])
    seen = replace(config.data, size=record.data["shape"][1], margin=how.margin, mean=how.mean, std=how.std)
    return load(seen).facts.get("digest")


def _counted(record: AdaptRecord) -> str:
    counts = record.data["counts"]
    return f"{counts['train']:,} images to fit on and {counts['test']:,} to judge on"


def _anywhere(config: TransferConfig) -> TransferConfig:
    """Without the places of data, network and weights on this machine."""
    weights = None if config.weights is None else Path(config.weights).name
    model = Path(config.model).name if Path(config.model).is_absolute() else config.model
    return replace(anywhere(config), weights=weights, model=model)
