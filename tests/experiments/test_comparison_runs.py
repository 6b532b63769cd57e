"""Methods compared on digits: fair, repeatable, taken up again, in one process or several."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from beliefmatch.experiments.compare import Comparison
from beliefmatch.experiments.config import config_from, overridden, recipe
from beliefmatch.experiments.grid import Cell, default_jobs, run_cells
from beliefmatch.experiments.method_spec import MethodSpec, label, parse_methods, with_kl_weight
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.experiments.rotation import ANGLES, DIGIT, DigitRotation, confidence_when_wrong

SHORT = ["training.epochs=2", "data.limit=200", "training.warmup=[]", "ood=[noise]"]
METHODS = "softmax,belief_matching:kl_weight=0.01"


def mapping(*settings: str):
    return overridden(recipe("digits"), [*SHORT, *settings])


def comparison(
    directory: Path, methods: str = METHODS, seeds=(5, 6), jobs: int = 1, settings=()
) -> Comparison:
    specs = parse_methods(methods)
    return Comparison(mapping(*settings), specs, seeds=seeds, directory=directory, jobs=jobs)


def without_times(record: ComparisonRecord) -> list:
    found = []
    for method in record.methods:
        for run in method.runs:
            curves = [{k: v for k, v in c.items() if "second" not in k} for c in run.curves]
            found.append(replace(run, curves=curves, costs=None, created="", wall_seconds=0.0))
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    work = comparison(tmp_path_factory.mktemp("compare"))
    return work, *work.run()


def test_every_method_has_every_seed(compared):
    _, record, _ = compared
    assert [method.key for method in record.methods] == ["softmax", "belief_matching:kl_weight=0.01"]
    assert [method.label for method in record.methods] == ["softmax", "belief matching (λ = 0.01)"]
    assert [[run.seed for run in method.runs] for method in record.methods] == [[5, 6], [5, 6]]
    assert [[run.method for run in method.runs] for method in record.methods] == [
        ["softmax"] * 2,
        ["belief_matching"] * 2,
    ]
    first, second = record.methods[0].runs
    assert first.curves[0]["loss"] != second.curves[0]["loss"]
    assert record.settings["training"]["epochs"] == 2
    assert "method" not in record.settings


def test_the_record_survives_its_json(compared):
    assert ComparisonRecord.from_json(compared[1].to_json()) == compared[1]


def test_finished_runs_are_not_run_again(compared, monkeypatch):
    work, record, _ = compared
    monkeypatch.setattr("beliefmatch.experiments.grid.execute_run", None)
    assert comparison(work.directory).run().record.methods == record.methods


def test_a_method_scores_the_same_alone_as_in_company_and_in_processes_of_its_own(compared, tmp_path):
    alone = comparison(tmp_path, METHODS, jobs=2).run().record
    assert without_times(alone) == without_times(compared[1])


def test_progress_runs_from_nothing_to_all(tmp_path):
    heard = []
    work = comparison(tmp_path, "softmax,belief_matching:kl_weight=auto", seeds=(0, 1))
    assert work.cells == 2 + 3 + 1
    record = work.run(lambda share, doing: heard.append((share, doing))).record
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == pytest.approx(1.0)
    assert any(doing.startswith("belief matching, seed 1: epoch 2 of 2") for _, doing in heard)
    chosen = record.methods[1]
    (best,) = (trial for trial in chosen.runs[0].search if trial.chosen)
    assert [run.options["kl_weight"] for run in chosen.runs] == [best.value] * 2
    assert chosen.label == f"belief matching (λ = {best.value:g})"


def test_every_method_is_judged_in_full(compared):
    _, record, found = compared
    assert [one.name for one in found] == [method.label for method in record.methods]
    for one, method in zip(found, record.methods, strict=True):
        assert one.scores["error"].value == pytest.approx(method.runs[0].test.error)
        assert [ood.name for ood in one.ood] == ["noise"]
        assert one.mistakes[0].image is not None
        assert not Path(one.source).is_absolute()


def test_numbers_of_the_rotated_digit_hang_together(compared):
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


def test_confidence_when_wrong_counts_every_image_of_the_digit_at_every_angle():
    confidence = torch.tensor([[0.9, 0.5], [0.4, 0.3], [0.8, 0.2]], dtype=torch.float64)
    predicted = torch.tensor([[3, 1], [2, 3], [3, 9]])
    assert confidence_when_wrong(confidence, predicted) == pytest.approx((0.5 + 0.4 + 0.2) / 3)
    assert confidence_when_wrong(confidence, torch.full((3, 2), 3)) is None


def test_the_pictured_digit_stands_upright_first_and_upside_down_last():
    images = torch.tensor(DigitRotation.load().described().images)
    assert images.shape == (13, 8, 8)
    torch.testing.assert_close(images[-1], images[0].rot90(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("softmax,magic", "`methods` must be among softmax, .*, got 'magic'"),
        ("softmax,belief_matchin", "Did you mean belief_matching?"),
        ("", "got ''"),
        ("softmax,softmax", "none twice, got 'softmax'"),
        ("belief_matching:kl_weight", "NAME:OPTION=VALUE, got 'belief_matching:kl_weight'"),
        ("belief_matching:=3", "NAME:OPTION=VALUE"),
    ],
)
def test_methods_that_are_not_are_refused(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_methods(text)
    assert str(caught.value).startswith("compare: ")


def test_options_are_read_as_yaml():
    assert parse_methods("mc_dropout:rate=0.5:where=all")[0].options == {"rate": 0.5, "where": "all"}
    assert parse_methods("belief_matching:kl_weight=1e-3")[0].options == {"kl_weight": 0.001}


def test_one_weight_is_for_all_that_have_one_and_were_not_told():
    specs = parse_methods("softmax,belief_matching,belief_ensemble:kl_weight=0.5")
    assert [spec.options for spec in with_kl_weight(specs, "auto")] == [
        {},
        {"kl_weight": "auto"},
        {"kl_weight": 0.5},
    ]
    with pytest.raises(ValueError, match="`kl_weight` must come with belief_matching"):
        with_kl_weight([MethodSpec("softmax", "softmax")], 0.1)


def test_labels_name_options_in_their_symbols():
    assert label("mc_dropout", {"rate": 0.1, "where": "all"}) == "mc dropout (p = 0.1, where = all)"
    assert label("softmax", {}) == "softmax"


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("belief_matching:kl_weight=.nan", "`method.options`"),
        ("belief_matching:kl_weigth=0.1", "kl_weight"),
        ("softmax:rate=auto", "auto"),
        ("prior_network", "`ood_training`"),
    ],
)
def test_what_cannot_run_is_refused_before_training(tmp_path, methods, words):
    with pytest.raises((ValueError, TypeError), match=words):
        comparison(tmp_path, methods)


def test_jobs_fit_the_cores():
    config = config_from(mapping("engine.accelerator=cpu"))
    cores = len(os.sched_getaffinity(0))
    assert default_jobs(config) == cores
    assert default_jobs(config_from(mapping("engine.accelerator=cpu", f"engine.threads={cores}"))) == 1
    assert default_jobs(config_from(mapping("engine.threads=null"))) == 1


def test_an_error_in_a_process_comes_back_as_it_was(tmp_path):
    configs = [config_from(mapping("ood=[no_such_set]", f"seed={seed}")) for seed in (0, 1)]
    cells = [Cell(config, tmp_path / f"{config.seed}") for config in configs]
    with pytest.raises(ValueError, match="no_such_set"):
        run_cells(cells, jobs=2)


CHATTER = """
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from beliefmatch.experiments import grid

def talk(many):
    for _ in range(many):
        grid._reports.put((0, 0.5, "epoch 1 of 2, 1000 images/s, loss 0.123"))
    return many

if __name__ == "__main__":
    context = get_context("spawn")
    given = (os.getpid(), context.Queue(), context.Event())
    with ProcessPoolExecutor(1, mp_context=context, initializer=grid._begin_worker, initargs=given) as pool:
        print(pool.submit(talk, 3000).result())
"""


def test_a_worker_that_nobody_listens_to_can_end(tmp_path):
    (tmp_path / "script.py").write_text(CHATTER)  # more than a pipe holds
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3000\n", "")


ORPHANS = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/experiments"]
if __name__ == "__main__":
    from test_comparison_runs import comparison
    comparison(Path({out!r}), jobs=2, settings=["training.epochs=2000"]).run()
"""


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison in two workers that would take hours, after their first epochs. None is left behind."""
    script = tmp_path / "script.py"
    script.write_text(ORPHANS.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path / "out")))
    process = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        limit = time.monotonic() + 120
        while process.poll() is None and len(list((tmp_path / "out").glob("runs/*/network-0/log.csv"))) < 2:
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield process
    finally:
        for pid in _members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_workers_do_not_outlive_a_parent_that_was_killed(begun):
    os.kill(begun.pid, signal.SIGKILL)
    begun.communicate(timeout=30)  # ends when nobody has its pipe any more
    assert _left_after_a_while(begun.pid) == []


@pytest.mark.parametrize("whole_group", [True, False], ids=["by the terminal", "to the first process alone"])
def test_workers_save_what_they_have_when_interrupted(begun, tmp_path, whole_group):
    (os.killpg if whole_group else os.kill)(begun.pid, signal.SIGINT)
    _, told = begun.communicate(timeout=300)
    assert begun.returncode != 0 and told.rstrip().endswith("KeyboardInterrupt")
    assert told.count("Traceback") == 1  # of the script itself, as it does not catch it
    runs = list((tmp_path / "out" / "runs").iterdir())
    assert len(runs) == 2  # those that were at work: nothing else was begun
    for run in runs:
        rows = len((run / "network-0" / "log.csv").read_text().splitlines()) - 1
        assert list((run / "network-0").glob("step-*.safetensors")) and rows < 2000
        assert not (run / "record.json").exists()
    assert _left_after_a_while(begun.pid) == []


def test_a_worker_that_was_killed_is_told_with_what_to_do(begun):
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _members(begun.pid)}
    os.kill(next(pid for pid, command in commands.items() if b"spawn_main" in command), signal.SIGKILL)
    _, told = begun.communicate(timeout=300)
    assert begun.returncode == 1
    assert "one of the processes at work was ended from outside, perhaps for lack of memory" in told
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
