"""Calibration in Lightning: a callback that logs it, with the reliability diagram."""

import math
import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import describe, fail, naming_arguments
from beliefmatch.experiments.evaluation_parts import reliability
from beliefmatch.metrics import ReliabilityBins
from beliefmatch.metrics._readings import require_at_least_one
from beliefmatch.metrics.modules import Summary

with needs("pytorch-lightning", extra="lightning", caller="beliefmatch.integrations.lightning"):
    from pytorch_lightning import Callback, LightningModule, Trainer

__all__ = ["CalibrationCallback"]

LOGGED = ("error", "nll", "brier", "ece", "mce")


class CalibrationCallback(Callback):
    """Log error, NLL, Brier score and calibration errors of each validation and test epoch.

    `validation_step` and `test_step` return a dictionary with `logits` (N, K) and `targets` (N,), class ids;
    it may have other keys, such as `loss`. The metrics are those of all examples of the epoch and of all
    processes, not means over batches, and are logged as `val_nll`, `test_ece` and so on. Other callbacks can
    monitor them. With several dataloaders there is one of each, `val_nll/0`, `val_nll/1` and so on. All are
    NaN where a logit of the epoch is, and training goes on; such an epoch has no diagram.

    TensorBoard gets the reliability diagram of each epoch too, as `val_reliability`. The batches of
    Lightning's sanity check are left out.

    Args:
        n_bins: Number of confidence bins of the calibration errors and of the diagram.
        figure: Whether the diagram is drawn; it needs matplotlib, in the extra `report`.

    Example:
        >>> from pytorch_lightning import Trainer
        >>> from pytorch_lightning.callbacks import ModelCheckpoint
        >>> from beliefmatch.integrations.lightning import CalibrationCallback
        >>> callbacks = [CalibrationCallback(), ModelCheckpoint(monitor="val_nll")]
        >>> trainer = Trainer(accelerator="cpu", callbacks=callbacks, logger=False)
    """

    def __init__(self, *, n_bins: int = 15, figure: bool = True) -> None:
        super().__init__()
        self.n_bins = require_at_least_one("CalibrationCallback", "n_bins", n_bins)
        self.figure = figure
        self._summaries: dict[int, _Epoch] = {}
        """Of this epoch, by dataloader."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the epoch before."""
        self._start(len(trainer.num_val_batches), trainer, pl_module)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the epoch before."""
        self._start(len(trainer.num_test_batches), trainer, pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch."""
        self._add("validation_step", outputs, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch."""
        self._add("test_step", outputs, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch."""
        self._log("val", trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch."""
        self._log("test", trainer, pl_module)

    def _start(self, dataloaders: int, trainer: Trainer, pl_module: LightningModule) -> None:
        """One summary for each dataloader: also a process without a batch of it must exchange states."""
        self._summaries = {number: _Epoch(n_bins=self.n_bins) for number in range(dataloaders)}
        if trainer.world_size > 1:
            # Processes exchange states from the device that they train on; MPS has no double precision.
            for summary in self._summaries.values():
                summary.to(pl_module.device)

    def _add(self, step: str, outputs: Any, dataloader: int) -> None:
        logits, targets = _logits_and_targets(step, outputs)
        with naming_arguments("CalibrationCallback", target="targets"):
            self._summaries[dataloader].add(logits.detach(), targets)

    def _log(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        all_bins, undefined = {}, set()
        for dataloader, summary in self._summaries.items():
            with summary.sync_context():  # entered by all processes
                all_bins[dataloader] = summary.reliability_bins()
                if summary.undefined_rows > 0:
                    undefined.add(dataloader)
        seen = {dataloader: bins for dataloader, bins in all_bins.items() if bins.count.sum() > 0}
        for dataloader, bins in seen.items():
            suffix = f"/{dataloader}" if len(seen) > 1 else ""
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*was called before the ``update`` method")
                found = self._summaries[dataloader].compute()
            is_defined = dataloader not in undefined
            values = {
                f"{stage}_{name}{suffix}": found[name].item() if is_defined else math.nan for name in LOGGED
            }
            pl_module.log_dict(values, sync_dist=trainer.world_size > 1)
            if self.figure and is_defined and not trainer.sanity_checking and trainer.is_global_zero:
                _draw(f"{stage}_reliability{suffix}", bins, trainer)


class _Epoch(Summary):
    """The summary of an epoch, which counts rows whose logits are no numbers."""

    undefined_rows: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._add_sum("undefined_rows")

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch; rows without probabilities, as of NaN, are taken for equal logits and counted."""
        if logits.ndim == 2 and logits.is_floating_point():
            undefined = logits.log_softmax(1).isnan().any(1)
            self.update(logits=logits.masked_fill(undefined[:, None], 0.0), target=targets)
            self._add("undefined_rows", undefined.sum())
        else:
            self.update(logits=logits, target=targets)


def _logits_and_targets(step: str, outputs: Any) -> tuple[Tensor, Tensor]:
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        targets = outputs.get("targets")
        if isinstance(targets, Tensor):
            return outputs["logits"], targets
    received = (
        f"the keys {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else describe(outputs)
    )
    expected = "return a dictionary with the tensors `logits` and `targets`"
    raise fail("CalibrationCallback", f"`{step}` must {expected}, got {received}.", TypeError)


def _draw(tag: str, bins: ReliabilityBins, trainer: Trainer) -> None:
    """Add the diagram to every logger that takes images as TensorBoard does."""
    written = [getattr(logger, "experiment", None) for logger in trainer.loggers]
    writers: list[Any] = [writer for writer in written if hasattr(type(writer), "add_image")]
    if not writers:
        return
    with needs("matplotlib", extra="report", caller="CalibrationCallback(figure=True)"):
        from matplotlib.image import imread

        from beliefmatch.report.evaluation_figures import reliability_panel
        from beliefmatch.report.figure import Figure, paper_files
        from beliefmatch.report.style import looks
    (look,) = looks([tag])
    panel = reliability_panel([(0, tag, reliability(bins), look)])
    ((_, png),) = paper_files([Figure("reliability", [panel], "")], kinds=("png",))
    pixels = imread(BytesIO(png), format="png")[:, :, :3]
    for writer in writers:
        writer.add_image(tag, pixels, global_step=trainer.global_step, dataformats="HWC")
