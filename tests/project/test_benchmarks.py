"""The benchmark: memory and time it measures, cells it runs, records and tables it writes."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import counts
import gpu
import grid
import memory
import results
import run
import tables
import timing
from kernel_contract import using

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# Memory


def test_peak_memory_counts_temporary_tensors():
    x = torch.zeros(100_000)

    def two_at_once():
        return ((x + 1) * 2).sum()

    def three_at_once():
        _ = [x.clone() for _ in range(3)]
        return x.sum()

    two_at_once()
    assert memory.peak_bytes(two_at_once) == pytest.approx(2 * x.nbytes, rel=1e-3)
    assert memory.peak_bytes(three_at_once) == pytest.approx(3 * x.nbytes, rel=1e-3)


def test_cross_entropy_needs_three_buffers_of_which_one_is_the_gradient():
    logits, ids = torch.randn(64, 1000, requires_grad=True), torch.randint(1000, (64,))

    def forward_and_backward():
        F.cross_entropy(logits, ids).backward()
        logits.grad = None

    forward_and_backward()
    assert memory.peak_bytes(forward_and_backward) == pytest.approx(3 * logits.nbytes, rel=1e-3)
    with torch.no_grad():
        forward = memory.peak_bytes(lambda: F.cross_entropy(logits, ids))
    assert forward == pytest.approx(logits.nbytes, rel=1e-3)


RESIDENT = """
import torch, torch.nn.functional as F
from memory import peak_bytes

logits, ids = torch.randn(256, 32000, requires_grad=True), torch.randint(32000, (256,))

def field(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def step():
    F.cross_entropy(logits, ids).backward()
    logits.grad = None

step()
allocated = peak_bytes(step)
open("/proc/self/clear_refs", "w").write("5")
before = field("VmRSS")
step()
print(allocated / logits.nbytes, (field("VmHWM") - before) / logits.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the resident memory of Linux")
def test_peak_memory_agrees_with_resident_memory():
    answer = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        capture_output=True,
        text=True,
        check=True,
    )
    allocated, resident = map(float, answer.stdout.split())
    assert resident == pytest.approx(allocated, rel=0.05)


# Time


def turns(costs, seconds=0.07):
    log = []
    passes = {name: lambda name=name: log.append(name) or costs[name] for name in costs}
    return timing.interleaved(passes, costs, seconds), log


def test_contenders_take_turns_in_changing_order():
    rounds, log = turns({"base": 1e-5, "other": 1e-5, "third": 1e-5})
    assert all(set(times) == {"base", "other", "third"} for times in rounds)
    orders = {tuple(log[i : i + 3]) for i in range(0, len(log), 3)}
    assert len(orders) == 6


def test_slow_contender_joins_the_first_and_the_last_of_the_fewest_rounds():
    rounds, _ = turns({"base": 0.02, "near": 0.1, "slow": 2.0, "slower": 40.0}, 1e-9)
    assert [("slow" in times) for times in rounds] == [True, *[False] * 5, True]
    assert [("slower" in times) for times in rounds] == [True, *[False] * 6]
    assert all("base" in times and "near" in times for times in rounds)


def test_ratio_is_taken_within_rounds():
    rounds = [{"base": 1.0, "other": 2.0}, {"base": 10.0, "other": 30.0}, {"base": 2.0}]
    found = timing.summary(rounds, "other", "base")
    assert found == timing.Timing(16.0, 2.0, 2.5, (2.25, 2.75), 2)
    assert timing.summary(rounds, "base", "base").ratio == 1
    assert timing.summary(rounds[1:], "other", "base") == timing.Timing(30.0, 30.0, 3.0, (3.0, 3.0), 1)


# Which cells


def test_default_run_covers_shapes_types_and_threads_of_the_plain_loss():
    chosen = grid.cells(grid.Selection(), 4)
    plain = [cell for cell in chosen if cell.task == "ids"]
    for part in ((128, 10), (128, 100), (256, 1000), (4096, 1000)):
        cells = {(cell.dtype, cell.threads) for cell in plain if cell.shape == part}
        assert cells == {(dtype, threads) for dtype in grid.DTYPES for threads in (1, 4)}
    assert {cell.shape for cell in plain} >= {(1024, 32000), (256, 128000)}
    assert {cell.task for cell in chosen} == set(grid.TASKS)


def test_selected_cells_are_all_and_only_those_selected():
    selection = grid.Selection(["ids", "dense"], [(3, 5), (2, 3, 4, 4)], ["float64"], [2, 3])
    names = [str(cell) for cell in grid.cells(selection, 8)]
    assert names == [
        "ids 3x5 float64 threads=2",
        "ids 3x5 float64 threads=3",
        "dense 2x3x4x4 float64 threads=2",
        "dense 2x3x4x4 float64 threads=3",
    ]


# The command

TINY = ["--seconds", "0.01", "--threads", "1", "--dtype", "float32", "--shape", "3x5"]
EAGER = ["soft", "prior", "none", "dense", "forward", "measures"]


def test_tiny_run_prints_the_table_and_records_every_contender(tmp_path, capsys):
    path = tmp_path / "results.csv"
    assert run.main([*TINY, "2x3x2x2", "--task", *EAGER, "--csv", str(path)]) == 0
    out, err = capsys.readouterr()
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == results.COLUMNS
        lines = list(reader)
    expected = [(task, name) for task in EAGER for name in grid.TASKS[task].contenders]
    assert [(line["task"], line["contender"]) for line in lines] == expected
    for line in lines:
        assert all(line.values())
        assert 0 < float(line["ratio_q1"]) <= float(line["ratio"]) <= float(line["ratio_q3"])
        assert float(line["peak_memory"]) > 0 and int(line["rounds"]) >= 2
    assert out.count("3x5") == 5 and out.count("2x3x2x2") == 1
    assert "[6/6] measures 3x5 float32 threads=1" in err


def test_runs_append_and_quick_runs_record_nothing(tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.csv"
    for _ in range(2):
        run.main([*TINY, "--task", "soft", "--csv", str(path)])
    assert len(results.read(path)) == 4
    monkeypatch.setattr(results, "DEFAULT_PATH", tmp_path / "default.csv")
    run.main([*TINY, "--task", "soft", "--quick"])
    assert not results.DEFAULT_PATH.exists()


def test_a_missing_package_is_left_out_and_the_remedy_is_named(monkeypatch, capsys):
    contenders = grid.TASKS["ids"].contenders
    eager = {name: one for name, one in contenders.items() if not one.compiled}
    task = grid.Task("class ids", ((3, 5),), grid.TASKS["ids"].inputs, eager)
    monkeypatch.setitem(grid.TASKS, "ids", task)
    monkeypatch.setitem(sys.modules, "edl_pytorch", None)
    assert run.main([*TINY, "--task", "ids", "--quick"]) == 0
    out, err = capsys.readouterr()
    assert "edl-pytorch" not in out
    assert "edl-pytorch left out" in err and "pip install -r benchmarks/requirements.txt" in err


@pytest.mark.parametrize(
    ("arguments", "argument", "received"),
    [
        ("--shape abc", "--shape", "got 'abc'"),
        ("--shape 0x3", "--shape", "got '0x3'"),
        ("--dtype int8", "--dtype", "got 'int8'"),
        ("--threads 0", "--threads", "got '0'"),
        ("--seconds nan", "--seconds", "got 'nan'"),
        ("--task ids --shape 2x3x4x4", "--shape", "fit ids, got 2x3x4x4"),
        ("--task ids soft --shape 9x9 3x4x5", "--shape", "fit ids, soft, got 3x4x5"),
        ("--csv no/such/folder.csv", "--csv", "no/such/folder.csv: "),
        (f"--csv {__file__}", "--csv", f"{__file__}: expected a file with the header date,"),
    ],
)
def test_a_bad_argument_is_one_line(arguments, argument, received, capsys):
    with pytest.raises(SystemExit) as ending:
        run.main(arguments.split())
    out, err = capsys.readouterr()
    assert ending.value.code == 2
    assert out == "" and err.startswith(f"benchmarks/run.py: argument {argument}: ")
    assert received in err and err.count("\n") == 1


def test_a_file_that_ends_within_a_line_is_refused(tmp_path):
    path = tmp_path / "results.csv"
    results.prepare(path)
    path.write_text(path.read_text() + "2026-01-01,half a li")
    with pytest.raises(ValueError, match="whole lines"):
        results.prepare(path)


# The pages


def line(**changes):
    same = dict.fromkeys(results.COLUMNS, "same")
    numbers = {"seconds": "0.002", "ratio": "1.5", "ratio_q1": "1.25", "ratio_q3": "20", "peak_memory": "3"}
    cell = {"task": "ids", "shape": "3x5", "dtype": "float32", "threads": "2", "contender": "beliefmatch"}
    return {**same, "date": "2026-01-01T00:00:00Z", **numbers, **cell, **changes}


def test_tables_show_the_latest_of_the_machine_measured_last():
    old, new = line(ratio="9"), line(date="2026-01-02T00:00:00Z")
    elsewhere = line(processor="other", shape="7x7")
    assert tables.latest([new, elsewhere, old]) == [new]


def test_tables_show_time_spread_and_memory():
    base = line(contender="cross_entropy", ratio="1")
    text = tables.page_tables([base, line()])
    assert "| 3×5 | float32 | 2 | 2.00 · 3.0 | 1.50 (1.25–20.0) · 3.0 |" in text
    assert "| 3×5 | 2.00 | 1.50 |" in tables.readme_table([base, line()])


def test_pages_hold_the_tables_of_the_recorded_results():
    lines = tables.latest(results.read(results.DEFAULT_PATH))
    for name, render in tables.PAGES.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        assert tables.updated(page, render(lines)) == page


# Counts, and the GPU


def test_the_table_of_counts_names_what_is_counted(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["counts.py", "--rows", "8", "--classes", "50"])
    with using("auto"):
        counts.main()
    head, _, cross_entropy, lean, reference = capsys.readouterr().out.splitlines()
    assert "8x50" in head and "operations" in head
    operations = [int(line.split("|")[2].replace(",", "")) for line in (cross_entropy, lean, reference)]
    assert operations[0] == 5 and 5 < operations[1] <= 100 < operations[2]


def test_the_benchmark_of_a_gpu_compares_every_kernel_with_cross_entropy(monkeypatch, tmp_path):
    """On the CPU, which keeps no account of its memory."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with using("auto"):
        lines = gpu.measure(gpu.Device("cpu"), (16, 5), "float32", seconds=0.01)
    assert [line["contender"] for line in lines][:2] == ["cross_entropy", "cross_entropy, compiled"]
    assert {line["kernel"] for line in lines} == {"auto", "lean", "reference"}
    assert lines[0]["ratio"] == "1" and all(float(line["milliseconds"]) > 0 for line in lines)
    for _ in range(2):
        gpu.append(tmp_path / "gpu.csv", lines, {"device": "none"})
    with (tmp_path / "gpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(lines) and {row["device"] for row in rows} == {"none"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_a_gpu_its_benchmark_ends_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1 and "accelerator" in error
