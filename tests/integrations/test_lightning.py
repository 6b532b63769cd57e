"""Calibration in Lightning's own Trainer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from beliefmatch import Belief, BeliefMatchingLoss, metrics
from outside_packages import imported

pl = imported("pytorch_lightning")
from beliefmatch.integrations.lightning import CalibrationCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
CLASSES = 3
NAMES = {"error", "nll", "brier", "ece", "mce"}


class Classifier(pl.LightningModule):
    def __init__(self, width=4, weight=None):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Linear(width, CLASSES)
        self.criterion = BeliefMatchingLoss(target_confidence=0.9, weight=weight)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return self.criterion(self.network(inputs), targets)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        inputs, targets = batch
        logits = self.network(inputs)
        return {"loss": self.criterion(logits, targets), "logits": logits, "targets": targets}

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return Belief(self.network(batch[0])).probs

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)


def examples(rows, seed=0):
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=chance)
    noise = torch.randn(rows, CLASSES, generator=chance)
    return inputs, (inputs[:, :CLASSES] + noise).argmax(1)


def loader(rows=50, seed=0, batch=16):
    return DataLoader(TensorDataset(*examples(rows, seed)), batch_size=batch)


def trainer(place, *callbacks, logger=False, **options):
    usual = {
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    checkpoints = {
        "enable_checkpointing": any(isinstance(one, pl.callbacks.ModelCheckpoint) for one in callbacks)
    }
    return pl.Trainer(
        default_root_dir=place, callbacks=list(callbacks), logger=logger, **usual | checkpoints | options
    )


def expected(module, rows, seed, n_bins=15):
    inputs, targets = examples(rows, seed)
    with torch.no_grad():
        logits = module.network(inputs)
    probs = logits.double().softmax(1)
    return {
        "error": metrics.error(probs, targets),
        "nll": nn.functional.cross_entropy(logits.double(), targets).item(),
        "brier": metrics.brier(probs, targets),
        "ece": metrics.expected_calibration_error(probs, targets, n_bins=n_bins),
        "mce": metrics.maximum_calibration_error(probs, targets, n_bins=n_bins),
    }


def model(**options):
    torch.manual_seed(0)
    return Classifier(**options)


def test_metrics_are_those_of_all_examples_of_the_last_epoch(tmp_path):
    module, run = model(), trainer(tmp_path, CalibrationCallback(n_bins=10))
    run.fit(module, loader(), loader(41, seed=1))
    found = {name: value.item() for name, value in run.callback_metrics.items() if name.startswith("val_")}
    assert set(found) == {f"val_{name}" for name in NAMES}
    for name, value in expected(module, 41, 1, n_bins=10).items():
        assert found[f"val_{name}"] == pytest.approx(value, rel=1e-5), name


def test_every_epoch_starts_anew_and_the_sanity_check_leaves_nothing(tmp_path):
    class Remember(pl.Callback):
        def __init__(self):
            self.seen = []

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                found = trainer.callback_metrics["val_nll"].item()
                self.seen.append((found, expected(pl_module, 41, 1)["nll"]))

    remember = Remember()
    run = trainer(tmp_path, CalibrationCallback(), remember, num_sanity_val_steps=2, max_epochs=3)
    run.fit(model(), loader(), loader(41, seed=1))
    assert len(remember.seen) == 3
    np.testing.assert_allclose(*zip(*remember.seen, strict=True), rtol=1e-5)


def test_several_dataloaders_have_names_of_their_own(tmp_path):
    module, run = model(), trainer(tmp_path, CalibrationCallback())
    (first, second) = run.test(module, [loader(40, seed=1), loader(23, seed=2)], verbose=False)
    found = {**first, **second}
    for place, (rows, seed) in enumerate(((40, 1), (23, 2))):
        for name, value in expected(module, rows, seed).items():
            assert found[f"test_{name}/{place}"] == pytest.approx(value, rel=1e-5), name


def test_a_checkpoint_of_the_best_nll_is_kept_and_predicts_the_same(tmp_path):
    best = pl.callbacks.ModelCheckpoint(tmp_path / "best", monitor="val_nll")
    stop = pl.callbacks.EarlyStopping("val_nll", patience=5)
    run = trainer(tmp_path, CalibrationCallback(), best, stop, max_epochs=4)
    module = model(weight=torch.tensor([1.0, 2.0, 1.0]))
    run.fit(module, loader(), loader(41, seed=1))
    again = Classifier.load_from_checkpoint(best.best_model_path, weights_only=False)
    assert again.criterion.weight.tolist() == [1.0, 2.0, 1.0]
    assert expected(again, 41, 1)["nll"] == pytest.approx(best.best_model_score.item(), rel=1e-5)
    probs = torch.cat(trainer(tmp_path).predict(again, loader(41, seed=1)))
    torch.testing.assert_close(probs, again.network(examples(41, 1)[0]).detach().softmax(1))


def test_a_resumed_training_logs_like_one_that_went_on(tmp_path):
    last = pl.callbacks.ModelCheckpoint(tmp_path / "last", save_last=True, every_n_epochs=1)
    trainer(tmp_path, CalibrationCallback(), last, max_epochs=2).fit(model(), loader(), loader(41, seed=1))
    whole = trainer(tmp_path, CalibrationCallback(), max_epochs=4)
    whole.fit(model(), loader(), loader(41, seed=1))
    resumed = trainer(tmp_path, CalibrationCallback(), last, max_epochs=4)
    resumed.fit(
        model(), loader(), loader(41, seed=1), ckpt_path=tmp_path / "last" / "last.ckpt", weights_only=False
    )
    for name in NAMES:
        torch.testing.assert_close(
            resumed.callback_metrics[f"val_{name}"], whole.callback_metrics[f"val_{name}"]
        )


def test_the_reliability_diagram_of_each_epoch_is_in_tensorboard(tmp_path):
    imported("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = pl.loggers.TensorBoardLogger(tmp_path, name="run", version=0)
    run = trainer(tmp_path, CalibrationCallback(), logger=logger, num_sanity_val_steps=1)
    run.fit(model(), loader(64), loader(200, seed=1))
    run.test(run.lightning_module, loader(200, seed=2), verbose=False)
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir).Reload()
    assert set(events.Tags()["images"]) == {"val_reliability", "test_reliability"}
    shown = events.Images("val_reliability")
    assert [event.step for event in shown] == [4, 8]
    assert shown[0].encoded_image_string != shown[1].encoded_image_string
    assert min(shown[0].width, shown[0].height) > 300
    assert [event.step for event in events.Scalars("val_nll")] == [3, 7]


def test_no_diagram_is_drawn_where_it_is_switched_off_or_no_logger_takes_it(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("drawn")

    monkeypatch.setattr("beliefmatch.report.figure.paper_files", refuse)
    logger = pl.loggers.TensorBoardLogger(tmp_path)
    trainer(tmp_path, CalibrationCallback(figure=False), logger=logger).fit(model(), loader(), loader(20))
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer(tmp_path, CalibrationCallback(), logger=logger).fit(model(), loader(), loader(20))
    logger.save()
    trainer(tmp_path, CalibrationCallback(), fast_dev_run=True).fit(model(), loader(), loader(20))
    assert "val_ece" in (Path(logger.log_dir) / "metrics.csv").read_text()


class Diverging(Classifier):
    """Of one row of the second epoch, the logits are NaN."""

    def validation_step(self, batch, batch_idx):
        found = super().validation_step(batch, batch_idx)
        if self.current_epoch == 1 and batch_idx == 1 and self.global_rank == self.trainer.world_size - 1:
            found["logits"][0, 1] = torch.nan
        return found


def logged(directory, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{directory}").Reload()
    return [event.value for event in events.Scalars(name)], [
        event.step for event in events.Images("val_reliability")
    ]


def test_an_epoch_with_a_logit_of_nan_logs_nan_without_a_diagram_and_training_goes_on(tmp_path):
    imported("tensorboard")
    logger = pl.loggers.TensorBoardLogger(tmp_path, name="run", version=0)
    best = pl.callbacks.ModelCheckpoint(tmp_path / "best", monitor="val_nll")
    run = trainer(tmp_path, CalibrationCallback(), best, logger=logger, max_epochs=3)
    torch.manual_seed(0)
    module = Diverging()
    run.fit(module, loader(64), loader(41, seed=1))
    for name, value in expected(module, 41, 1).items():
        first, second, third = logged(logger.log_dir, f"val_{name}")[0]
        assert np.isfinite(first) and np.isnan(second) and third == pytest.approx(value, rel=1e-5), name
    assert logged(logger.log_dir, "val_nll")[1] == [4, 12]
    assert np.isfinite(best.best_model_score.item())


@pytest.mark.slow
def test_a_logit_of_nan_in_one_of_two_processes_makes_the_metrics_of_both_nan(tmp_path):
    torch.manual_seed(0)
    run = trainer(tmp_path, CalibrationCallback(), strategy="ddp_fork", devices=2)
    run.fit(Diverging(), loader(64), loader(64, seed=1))
    assert all(run.callback_metrics[f"val_{name}"].isnan() for name in NAMES)


@pytest.mark.slow
def test_two_processes_log_the_metrics_of_all_examples_and_draw_them_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = pl.loggers.TensorBoardLogger(tmp_path, name="run", version=0)
    run = trainer(tmp_path, CalibrationCallback(), logger=logger, strategy="ddp_fork", devices=2)
    module = model()
    run.fit(module, loader(64), loader(40, seed=1))
    for name, value in expected(module, 40, 1).items():
        assert run.callback_metrics[f"val_{name}"].item() == pytest.approx(value, rel=1e-5), name
    events = EventAccumulator(f"{tmp_path / 'run' / 'version_0'}").Reload()
    assert len(events.Images("val_reliability")) == 2


class OfFirstProcess(torch.utils.data.IterableDataset):
    """Examples that the other processes have none of."""

    def __iter__(self):
        if torch.distributed.get_rank() == 0:
            yield from zip(*examples(40, 1), strict=True)


@pytest.mark.slow
def test_a_process_without_a_batch_of_a_dataloader_takes_part_in_its_metrics(tmp_path):
    run = trainer(tmp_path, CalibrationCallback(), strategy="ddp_fork", devices=2, num_sanity_val_steps=0)
    module = model()
    run.fit(module, loader(64), [loader(40, seed=2), DataLoader(OfFirstProcess(), batch_size=16)])
    for number, seed in ((0, 2), (1, 1)):
        for name, value in expected(module, 40, seed).items():
            assert run.callback_metrics[f"val_{name}/{number}"].item() == pytest.approx(value, rel=1e-5), name


class OnlyLoss(Classifier):
    def validation_step(self, batch, batch_idx):
        return super().validation_step(batch, batch_idx)["loss"]


class OnlyLogits(Classifier):
    def validation_step(self, batch, batch_idx):
        return {"logits": super().validation_step(batch, batch_idx)["logits"]}


@pytest.mark.parametrize("kind", [OnlyLoss, OnlyLogits])
def test_a_step_that_returns_no_logits_or_targets_is_named(kind, tmp_path):
    with pytest.raises(TypeError, match=r"^CalibrationCallback: `validation_step` .*`logits` and `targets`"):
        trainer(tmp_path, CalibrationCallback()).fit(kind(), loader(), loader(20))


class OfImages(Classifier):
    def validation_step(self, batch, batch_idx):
        found = super().validation_step(batch, batch_idx)
        return {**found, "logits": found["logits"][..., None, None]}


class OfOtherClasses(Classifier):
    def validation_step(self, batch, batch_idx):
        found = super().validation_step(batch, batch_idx)
        return {**found, "targets": found["targets"] + 1000}


@pytest.mark.parametrize(("kind", "argument"), [(OfImages, "logits"), (OfOtherClasses, "targets")])
def test_what_a_step_returns_in_another_form_is_named(kind, argument, tmp_path):
    with pytest.raises(ValueError, match=rf"^CalibrationCallback: `{argument}` "):
        trainer(tmp_path, CalibrationCallback()).fit(kind(), loader(), loader(20))


def test_an_invalid_number_of_bins_is_named():
    with pytest.raises(ValueError, match=r"^CalibrationCallback: `n_bins`"):
        CalibrationCallback(n_bins=0)
