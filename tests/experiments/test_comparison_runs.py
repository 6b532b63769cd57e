"""Methods compared on digits: fair, repeatable, resumable, in one process or several."""

import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from beliefmatch.experiments.config import config_from
from beliefmatch.experiments.executors import LocalWorkers
from beliefmatch.experiments.grid import Cell, attempt_cells, resources_of, run_cells
from beliefmatch.experiments.method_spec import MethodSpec, label, parse_methods, with_kl_weight
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.experiments.rotation import ANGLES, DIGIT, DigitRotation, confidence_when_wrong
from beliefmatch.experiments.run import RunResult
from beliefmatch.loss import LowTargetConfidence, belief_matching_loss
from beliefmatch.methods.base import Prediction
from small_runs import METHODS, comparison, digits_config, digits_settings, without_times


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    work = comparison(tmp_path_factory.mktemp("compare"))
    with pytest.MonkeyPatch.context() as patch:  # evaluations are made from memory, not from files
        patch.setattr("beliefmatch.experiments.compare.evaluate_finished", None)
        return work, *work.run(command=["beliefmatch", "compare"])


def runs_of(record: ComparisonRecord) -> list:
    return [without_times(run) for method in record.methods for run in method.runs]


def test_every_method_has_every_seed(compared):
    _, record, _ = compared
    assert [method.key for method in record.methods] == METHODS.split(",")
    assert [method.label for method in record.methods] == ["softmax", "belief matching (λ = 0.01)"]
    assert [(run.method, run.seed) for run in runs_of(record)] == [
        ("softmax", 5), ("softmax", 6), ("belief_matching", 5), ("belief_matching", 6)
    ]  # fmt: skip
    first, second = record.methods[0].runs
    assert first.curves[0]["loss"] != second.curves[0]["loss"]
    assert record.settings["training"]["epochs"] == 2
    assert "method" not in record.settings and record.settings["command"] == ["beliefmatch", "compare"]
    assert ComparisonRecord.from_json(record.to_json()) == record


def test_the_first_run_of_every_method_is_evaluated_in_full(compared):
    _, record, evaluations = compared
    assert [one.name for one in evaluations] == [method.label for method in record.methods]
    for one, method in zip(evaluations, record.methods, strict=True):
        assert one.scores["nll"].value == method.runs[0].test.nll and one.scores["nll"].low is not None
        assert [ood.name for ood in one.ood] == ["noise"]
        assert one.mistakes[0].image is not None
        assert not Path(one.source).is_absolute()


def test_finished_runs_are_not_run_again_and_have_the_same_evaluations(compared, monkeypatch):
    work, record, evaluations = compared
    monkeypatch.setattr("beliefmatch.experiments.grid.execute_run", None)
    again = comparison(work.directory).run()
    assert again.record.methods == record.methods
    for one, other in zip(again.evaluations, evaluations, strict=True):
        assert (one.scores, one.ood, one.mistakes, one.source, one.name) == (
            other.scores, other.ood, other.mistakes, other.source, other.name
        )  # fmt: skip


def test_a_method_scores_the_same_in_processes_of_its_own(compared, tmp_path):
    alone = comparison(tmp_path, seeds=(5,), jobs=2).run()
    assert runs_of(alone.record) == runs_of(compared[1])[::2]
    assert [one.scores for one in alone.evaluations] == [one.scores for one in compared[2]]


def test_progress_runs_from_nothing_to_all_while_an_option_is_chosen(tmp_path):
    heard = []
    methods = "softmax,belief_matching:kl_weight=auto"
    work = comparison(tmp_path, methods, seeds=(0, 1), settings=["training.epochs=1"])
    assert work.cells == 2 + 3 + 1
    record = work.run(lambda fraction, description: heard.append((fraction, description))).record
    fractions = [fraction for fraction, _ in heard]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 0.17
    assert fractions[-1] == pytest.approx(1.0)
    assert any(text.startswith("belief matching, seed 1: epoch 1 of 1") for _, text in heard)
    chosen = record.methods[1]
    (best,) = (trial for trial in chosen.runs[0].search if trial.chosen)
    assert [run.options["kl_weight"] for run in chosen.runs] == [best.value] * 2
    assert chosen.label == f"belief matching (λ = {best.value:g})"


def test_numbers_of_the_rotated_digit_are_consistent(compared):
    _, record, _ = compared
    assert (record.rotated_digit.digit, record.rotated_digit.angles) == (DIGIT, ANGLES)
    for run in (run for method in record.methods for run in method.runs):
        seen = run.rotation
        for confidence, entropy in zip(seen.confidence, seen.entropy, strict=True):
            assert 0.1 <= confidence <= 1
            assert 0 <= entropy <= torch.tensor(10.0).log()
        assert len(seen.predicted) == len(seen.recognised) == len(ANGLES)
        wrong = [c for c, k in zip(seen.confidence, seen.predicted, strict=True) if k != DIGIT]
        assert seen.wrong_confidence == pytest.approx(statistics.fmean(wrong), rel=1e-12)
    assert [method.runs[0].rotation.mutual_information is None for method in record.methods] == [True, False]


def test_confidence_when_wrong_is_over_every_image_of_the_digit_at_every_angle():
    confidence = torch.tensor([[0.9, 0.5], [0.4, 0.3], [0.8, 0.2]], dtype=torch.float64)
    predicted = torch.tensor([[3, 1], [2, 3], [3, 9]])
    assert confidence_when_wrong(confidence, predicted) == pytest.approx((0.5 + 0.4 + 0.2) / 3)
    assert confidence_when_wrong(confidence, torch.full((3, 2), 3)) is None


def test_a_rotation_has_the_means_of_all_images_at_each_angle():
    class Predictor:
        """The only pixel of an image is the probability of the digit; class 0 has the rest."""

        def predict(self, x):
            share = x.flatten(1)
            return Prediction(torch.cat([1 - share, share * 0, share * 0, share], 1))

    shares = torch.tensor([[0.9, 0.6, 0.7], [0.2, 0.8, 0.4]], dtype=torch.float64)
    seen = DigitRotation(shares[:, :, None, None, None]).seen_by(Predictor())
    assert (seen.predicted, seen.confidence) == ([3, 0], pytest.approx([0.9, 0.8]))
    assert seen.mean_confidence == pytest.approx([2.2 / 3, 2.2 / 3])
    assert seen.recognised == pytest.approx([1, 1 / 3])
    assert (seen.wrong_confidence, seen.mean_wrong_confidence) == pytest.approx((0.8, 0.7))


def test_the_pictured_digit_stands_upright_first_and_upside_down_last():
    images = torch.tensor(DigitRotation.load().described().images)
    assert images.shape == (13, 8, 8)
    torch.testing.assert_close(images[-1], images[0].rot90(2), atol=1e-5, rtol=0)


# Methods as they are written.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("softmax,magic", "'magic'"),
        ("softmax,belief_matchin", "did you mean belief_matching"),
        ("", "''"),
        ("softmax,softmax", "'softmax'"),
        ("belief_matching:kl_weight", "NAME:OPTION=VALUE"),
        ("belief_matching:=3", "NAME:OPTION=VALUE"),
        ("softmax:semi_wait=1", "did you mean semi_weight"),
        ("softmax:prior_form=a", "did you mean prior_from"),
    ],
)
def test_methods_that_do_not_exist_are_refused(text, words):
    with pytest.raises(ValueError, match=f"^compare: `methods.*{words}"):
        parse_methods(text)


def test_options_are_read_as_yaml_and_labelled_by_their_symbols():
    assert parse_methods("mc_dropout:rate=0.5:where=all")[0].options == {"rate": 0.5, "where": "all"}
    assert parse_methods("belief_matching:kl_weight=1e-3")[0].options == {"kl_weight": 0.001}
    assert label("mc_dropout", {"rate": 0.1, "where": "all"}) == "mc dropout (p = 0.1, where = all)"
    assert label("softmax", {}) == "softmax"


def test_one_kl_weight_is_for_all_methods_that_have_one_and_do_not_set_it():
    specs = parse_methods("softmax,belief_matching,belief_ensemble:kl_weight=0.5")
    options = [spec.options for spec in with_kl_weight(specs, "auto")]
    assert options == [{}, {"kl_weight": "auto"}, {"kl_weight": 0.5}]
    with pytest.raises(ValueError, match="`kl_weight`"):
        with_kl_weight([MethodSpec("softmax", "softmax")], 0.1)


@pytest.mark.parametrize(
    ("methods", "argument"),
    [
        ("belief_matching:kl_weight=.nan", "`method.options`"),
        ("belief_matching:kl_weigth=0.1", "`kl_weight`"),
        ("softmax:rate=auto", "auto"),
        ("prior_network", "`ood_training`"),
    ],
)
def test_what_cannot_run_is_refused_before_training(tmp_path, methods, argument):
    with pytest.raises((ValueError, TypeError), match=argument):
        comparison(tmp_path, methods)


# Several processes.


@pytest.mark.parametrize(
    ("settings", "jobs"),
    [
        (["engine.accelerator=cpu", "engine.threads=1"], 8),
        (["engine.accelerator=cpu", "engine.threads=3"], 2),
        (["engine.accelerator=cpu", "engine.threads=9"], 1),
        (["engine.accelerator=cpu", "engine.threads=1", "engine.devices=2"], 1),
        (["engine.accelerator=cpu", "engine.threads=null"], 1),
        (["engine.accelerator=cuda", "engine.threads=1"], 1),
    ],
)
def test_default_jobs_fill_the_cores(settings, jobs, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    needed = resources_of(config_from(digits_settings(*settings)))
    assert LocalWorkers().describe(needed) == f"{jobs} at a time"


@pytest.mark.parametrize("may_diverge", [False, True])
def test_cells_that_may_diverge_do_not_warn_of_a_low_target_confidence(may_diverge, tmp_path, monkeypatch):
    def execute_run(config, directory, **options):
        belief_matching_loss(torch.zeros(1, 1000), torch.tensor([0]))
        warnings.warn("another warning", stacklevel=1)
        return RunResult(None)  # type: ignore[arg-type]

    monkeypatch.setattr("beliefmatch.experiments.grid.execute_run", execute_run)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attempt_cells([Cell(digits_config(), tmp_path, may_diverge=may_diverge)])
    expected = [UserWarning] if may_diverge else [LowTargetConfidence, UserWarning]
    assert [warning.category for warning in caught] == expected


def test_an_error_in_a_process_is_raised_as_it_was(tmp_path):
    configs = [digits_config("softmax", "ood=[no_such_set]", f"seed={seed}") for seed in (0, 1)]
    with pytest.raises(ValueError, match="no_such_set"):
        run_cells([Cell(config, tmp_path / f"{config.seed}") for config in configs], workers=LocalWorkers(2))


CHATTER = """
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from beliefmatch.experiments import executors as e

def talk(many):
    for _ in range(many):
        e._reports.put((0, 0.5, "epoch 1 of 2, 1000 examples/s, loss 0.123"))
    return many

if __name__ == "__main__":
    context = get_context("spawn")
    given = (os.getpid(), context.Queue(), context.Event())
    with ProcessPoolExecutor(1, mp_context=context, initializer=e._begin_worker, initargs=given) as pool:
        print(pool.submit(talk, 3000).result())
"""


@pytest.mark.slow
def test_a_worker_whose_reports_nobody_reads_can_end(tmp_path):
    (tmp_path / "script.py").write_text(CHATTER)  # more than a pipe holds
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3000\n", "")


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
if __name__ == "__main__":
    from small_runs import comparison
    comparison(Path({out!r}), jobs=2, settings=["training.epochs=2000"]).run()
"""


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison in two workers that would take hours, after their first epochs. None is left behind."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path / "out")))
    process = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        limit = time.monotonic() + 120
        while process.poll() is None and len(list((tmp_path / "out").glob("runs/*/network-0/log.csv"))) < 2:
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        for pid in _members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.slow
def test_workers_do_not_outlive_a_parent_that_was_killed(begun):
    os.kill(begun.pid, signal.SIGKILL)
    begun.communicate(timeout=30)  # ends when nobody has its pipe any more
    assert _left_after_a_while(begun.pid) == []


@pytest.mark.parametrize("to", ["the group", pytest.param("the first process", marks=pytest.mark.slow)])
def test_workers_save_their_training_when_interrupted(begun, tmp_path, to):
    (os.killpg if to == "the group" else os.kill)(begun.pid, signal.SIGINT)
    _, errors = begun.communicate(timeout=300)
    assert begun.returncode != 0 and errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # of the script itself, which does not catch it
    runs = list((tmp_path / "out" / "runs").iterdir())
    assert len(runs) == 2  # those that were at work: nothing else was begun
    for run in runs:
        rows = len((run / "network-0" / "log.csv").read_text().splitlines()) - 1
        assert list((run / "network-0").glob("step-*.safetensors")) and rows < 2000
        assert not (run / "record.json").exists()
    assert _left_after_a_while(begun.pid) == []


@pytest.mark.slow
def test_a_worker_that_was_killed_is_reported_with_a_remedy(begun):
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _members(begun.pid)}
    os.kill(next(pid for pid, command in commands.items() if b"spawn_main" in command), signal.SIGKILL)
    _, errors = begun.communicate(timeout=300)
    assert begun.returncode == 1
    assert "EnvironmentFailure: run: " in errors and "`jobs`" in errors
    assert _left_after_a_while(begun.pid) == []


def _left_after_a_while(session: int) -> list[int]:
    deadline = time.monotonic() + 30
    while _members(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    return _members(session)


def _members(session: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.name))
    return found
