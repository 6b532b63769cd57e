"""Transfers: the last layer of a pretrained network fitted to smaller datasets, one adaptation a dataset."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, atomic_write_dir
from beliefmatch._utils import OnProgress, reason_of
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.data import load
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.experiments.adapt_job import AdaptJob
from beliefmatch.experiments.adapt_record import AdaptRecord, ScoredHead, adapt_evaluation_paths
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, ImageAdaptConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.reproduce import dataset_paths as paths
from beliefmatch.reproduce.arms import Arm
from beliefmatch.reproduce.config import (
    ReproduceConfig,
    TransferConfig,
    transfer_config,
    transfer_fingerprint,
)
from beliefmatch.reproduce.dataset_facts import DATASET_FACTS
from beliefmatch.reproduce.protocol_diff import ood_sentences, precision_sentences, protocol_differences
from beliefmatch.reproduce.record import ReproducedRun
from beliefmatch.reproduce.registry import Reproduction
from beliefmatch.reproduce.runner import Runner
from beliefmatch.reproduce.scales import scale_name
from beliefmatch.reproduce.tables import ArmResult, Outcome, Transferred

__all__ = ["TransferRunner", "scaled_transfer", "transfer_arms"]

_RECORD = "adaptation.json"
_HEADS = {
    "softmax": ("softmax", "softmax"),
    "label smoothing": ("label_smoothing", "label smoothing, matched"),
    "belief matching": ("belief_matching", "belief matching"),
}
"""Method and label of a head, by its label in the record of an adaptation."""


def scaled_transfer(data: str, scale: str) -> TransferConfig:
    """The configuration of a transfer to a dataset at a scale."""
    if scale == "tiny":
        digits = DataConfig(name="digits", limit=100, validation=0.1, mean=(0.0,), std=(1.0,))
        untrained = "beliefmatch.models.digits:DigitsNet"
        return TransferConfig(data=digits, model=untrained, ood=("noise",), epochs=2, precision="32")
    is_cifar, is_cpu = data == "cifar10", scale == "cpu"
    return TransferConfig(
        data=DataConfig(
            name=data,
            size=256 if is_cifar else 224,  # the 32 pixels of CIFAR enlarged eight times, without a crop
            margin=1.0 if is_cifar else None,
            validation=0.1,
            limit=2500 if is_cpu else None,
            augment="none",
        ),
        ood=("svhn", "food101", "stanford_cars") if is_cifar else (),
        precision="32" if is_cpu else "auto",
    )


class TransferRunner(Runner):
    """Transfers of one network to each dataset of a reproduction; every head of a dataset has all seeds."""

    fixed = ("data.name", "data.directory")
    packages = ("beliefmatch", "torch", "numpy")
    configs: Mapping[str, TransferConfig]

    def __init__(self, reproduction: Reproduction, config: ReproduceConfig) -> None:
        super().__init__(reproduction, config)
        own = {
            data: transfer_config(scaled_transfer(data, config.scale), self.settings)
            for data in reproduction.transfers
        }
        self.configs = {data: paths.with_data_dir(one, config.data_dir) for data, one in own.items()}

    def _changed_settings(self) -> list[str]:
        titles = {data: DATASET_FACTS[data].title for data in self.configs}
        paper = [(Arm(data, one, one), scaled_transfer(data, "paper")) for data, one in titles.items()]
        return protocol_differences(paper, {data: _portable(one) for data, one in self.configs.items()})

    def _run_notes(self, outcome: Outcome | None) -> list[str]:
        """Origin of the weights, and precision of the features."""
        configs = self.configs.values()
        weights = "Weights are those that come with the network's name; the paper's are of Keras."
        return [
            *([weights] if any(config.weights is None for config in configs) else []),
            *precision_sentences(config.precision for config in configs),
        ]

    def _data_differences(self, outcome: Outcome) -> list[str]:
        found = []
        for data, transfer in outcome.transfers.items():
            facts, classes = DATASET_FACTS[data], transfer.record.classes
            counts = transfer.record.data["counts"]
            if classes != facts.classes:
                images = f"{counts['train']:,} training and {counts['test']:,} test images"
                found.append(f"{facts.title}: {classes} classes instead of {facts.classes}, {images}.")
        heads = [transfer.record.scored[0] for transfer in outcome.transfers.values()]
        return found + ood_sentences({one.name: one.examples for head in heads for one in head.ood})

    def _small_scale_words(self, outcome: Outcome | None) -> str:
        """Images, epochs, network and λ."""
        first = _portable(next(iter(self.configs.values())))
        images = "all" if first.data.limit is None else f"at most {first.data.limit:,}"
        fitted = f"{first.epochs} epochs of the last layer of {first.model}, λ {first.kl_weight:g}"
        return f"{scale_name(self.config.scale)}: {images} training images, {fitted}"

    def _portable_configs(self, outcome: Outcome) -> dict[str, TransferConfig]:
        return {data: _portable(config) for data, config in self.configs.items()}

    def costs(self) -> dict[str, float | None]:
        """No estimates: most of the time goes into features, and depends on the network."""
        return {transfer_fingerprint(config, self.seeds): None for config in self.configs.values()}

    def finished(self) -> int:
        """Number of adaptations that have ended."""
        return sum((self.runs_directory / name / _RECORD).is_file() for name in self.costs())

    def check(self) -> None:
        """Build the network and find the images of every adaptation that has not ended."""
        super().check()
        configs = list(self.configs.values())
        for config in configs:
            if self._kept(config) is None:
                with paths.explain_missing_data(self.id, configs, self.config.data_dir):
                    AdaptJob(self.adapt_run_config(config), self.workers)

    def _execute(self, on_progress: OnProgress) -> Outcome:
        """Make the adaptations that have not been made, and read all of them."""
        transfers: dict[str, Transferred] = {}
        arms: dict[str, ArmResult[ScoredHead]] = {}
        for index, (data, config) in enumerate(self.configs.items()):

            def on_transfer(fraction: float, description: str, index: int = index) -> None:
                on_progress((index + fraction) / len(self.configs), description)

            transfers[data] = self._transferred(config, on_transfer)
            results = transfer_arms(data, transfers[data], config, transfer_fingerprint(config, self.seeds))
            arms |= {result.arm.key: result for result in results}
        return Outcome(self.config.scale, arms, transfers)

    def _directory(self, config: TransferConfig) -> Path:
        return self.runs_directory / transfer_fingerprint(config, self.seeds)

    def _transferred(self, config: TransferConfig, on_progress: OnProgress) -> Transferred:
        kept = self._kept(config)
        if kept is not None:
            on_progress(1.0, "finished before")
            return kept
        try:
            with warnings.catch_warnings():  # the protocol fixes the number of epochs
                warnings.filterwarnings("ignore", "adapt: these heads have not converged")
                outcome = AdaptJob(self.adapt_run_config(config), self.workers).run(on_progress)
        except EnvironmentFailure:
            raise
        except ValueError as error:  # of numbers that are not finite, or files
            raise fail("reproduce", f"{reason_of(error)}.", EnvironmentFailure) from error
        record, evaluations = outcome.record, list(outcome.evaluations)
        names = adapt_evaluation_paths(record.row_labels)
        files = [(name, one.to_json().encode()) for name, one in zip(names, evaluations, strict=True)]
        directory = self._directory(config)
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write_dir(directory, [*files, (_RECORD, record.to_json().encode())])
        return Transferred(record, evaluations, self.seeds)

    def _kept(self, config: TransferConfig) -> Transferred | None:
        """The adaptation that an earlier call has made; an EnvironmentFailure if it was of other images."""
        directory = self._directory(config)
        if not (directory / _RECORD).is_file():
            return None
        try:
            record = AdaptRecord.from_json((directory / _RECORD).read_text("utf-8"))
            files = [directory / name for name in adapt_evaluation_paths(record.row_labels)]
            evaluations = [EvaluationRecord.from_json(file.read_text("utf-8")) for file in files]
        except (ValueError, OSError) as error:
            raise fail(
                "reproduce",
                f"{directory} is damaged ({reason_of(error)}). "
                "Remove it, and the same command fits it again.",
                EnvironmentFailure,
            ) from error
        if config.data.name != "digits" and _current_digest(config, record) != record.data.get("digest"):
            raise paths.changed_images(directory, config.data.name, config.data.directory)
        return Transferred(record, evaluations, self.seeds)

    def adapt_run_config(self, config: TransferConfig) -> AdaptRunConfig:
        """Configuration of an adaptation, as `beliefmatch adapt` has it."""
        image_config = ImageAdaptConfig(
            model=config.model,
            options=config.options,
            weights=config.weights,
            data=config.data,
            cache_dir=f"{Path(self.config.out) / 'features'}",
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
            protocol="paper",
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
        )
        return AdaptRunConfig(image_config, adapt_config, config.ood)


def transfer_arms(
    data: str, transfer: Transferred, config: TransferConfig, fingerprint: str
) -> list[ArmResult[ScoredHead]]:
    """The heads of a transfer, an arm for each method."""
    facts, classes = DATASET_FACTS[data], transfer.record.classes
    class_note = "" if classes == facts.classes else f", {classes} of {facts.classes} classes"
    results = []
    for name, (method, label) in _HEADS.items():
        heads = transfer.heads(name)
        diverged = heads.count(None)
        recorded = [
            ReproducedRun(
                arm=f"{data}/{method}",
                seed=seed,
                fingerprint=fingerprint,
                method=method,
                options={} if head is None else dict(head.options),
                diverged="its numbers are not finite" if head is None else None,
            )
            for seed, head in zip(transfer.seeds, heads, strict=True)
        ]
        results.append(
            ArmResult(
                arm=Arm(f"{data}/{method}", f"{facts.title}{class_note}", label),
                config=config,
                seeds=transfer.seeds,
                runs=heads,
                train_seconds=transfer.record.wall_seconds,
                note=f"{diverged} of {len(heads)} diverged" if diverged else "",
                recorded=recorded,
            )
        )
    return results


def _current_digest(config: TransferConfig, record: AdaptRecord) -> str | None:
    """Digest of the current images, preprocessed as those of the record were."""
    how = Preprocessing.from_json(record.data["preprocessing"])
    seen = replace(config.data, size=record.data["shape"][1], margin=how.margin, mean=how.mean, std=how.std)
    return load(seen).facts.get("digest")


def _portable(config: TransferConfig) -> TransferConfig:
    """The configuration without the paths of data, network and weights on this machine."""
    weights = None if config.weights is None else Path(config.weights).name
    model = Path(config.model).name if Path(config.model).is_absolute() else config.model
    return replace(paths.without_paths(config), weights=weights, model=model)
