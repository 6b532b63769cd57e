"""The latest results as the tables of docs/results/performance.md and README.md.

python benchmarks/tables.py            prints them
python benchmarks/tables.py --write    puts them into the pages
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import results
from grid import DTYPES, TASKS
from terminal import three_digits

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
NO_RESULTS = "No results are recorded yet."

Line = dict[str, str]
Row = dict[str, Line]  # by contender


def latest(lines: Sequence[Line]) -> list[Line]:
    """The last line of every cell and contender, of the machine and versions measured last."""
    if not lines:
        return []
    last = max(lines, key=lambda line: line["date"])
    same = [column for column in results.ORIGIN if column != "commit"]
    ours = [line for line in lines if all(line[column] == last[column] for column in same)]
    cell = ("task", "shape", "dtype", "threads", "contender")
    ordered = sorted(ours, key=lambda line: line["date"])
    return list({tuple(line[column] for column in cell): line for line in ordered}.values())


def page_tables(lines: Sequence[Line]) -> str:
    """For docs/results/performance.md: every task, every cell, with spread and memory."""
    if not lines:
        return NO_RESULTS
    parts = [_origin(lines)]
    for task in TASKS:
        rows = _rows(line for line in lines if line["task"] == task)
        if rows:
            title = TASKS[task].title
            parts += [f"### {title[0].upper()}{title[1:]}", _page_table(task, rows)]
    return "\n\n".join(parts)


def readme_table(lines: Sequence[Line]) -> str:
    """For README.md: the plain loss in float32 with all threads, times only."""
    plain = [line for line in lines if line["task"] == "ids" and line["dtype"] == "float32"]
    if not plain:
        return NO_RESULTS
    threads = max(int(line["threads"]) for line in plain)
    rows = _rows(line for line in plain if int(line["threads"]) == threads)
    names = _names("ids", rows)
    body = [
        [_shape(row), _milliseconds(row["cross_entropy"]), *(_ratio(row.get(name)) for name in names[1:])]
        for row in rows
    ]
    head = ["N×K", "cross_entropy, ms", *names[1:]]
    return f"{_origin(plain)} {threads} threads, float32.\n\n{_markdown(head, body)}"


def _rows(lines: Iterable[Line]) -> list[Row]:
    rows: dict[tuple, Row] = {}
    for line in lines:
        key = (_size(line), line["shape"], list(DTYPES).index(line["dtype"]), int(line["threads"]))
        rows.setdefault(key, {})[line["contender"]] = line
    return [rows[key] for key in sorted(rows)]


def _page_table(task: str, rows: list[Row]) -> str:
    names = _names(task, rows)
    body = []
    for row in rows:
        line = next(iter(row.values()))
        base = row.get(names[0])
        first = f"{_milliseconds(base)} · {_memory(base)}" if base else ""
        others = [_ratio_spread_and_memory(row.get(name)) for name in names[1:]]
        body.append([_shape(row), line["dtype"], line["threads"], first, *others])
    return _markdown(["shape", "type", "threads", f"{names[0]}, ms", *names[1:]], body)


def _names(task: str, rows: list[Row]) -> list[str]:
    return [name for name in TASKS[task].contenders if any(name in row for row in rows)]


def _ratio_spread_and_memory(line: Line | None) -> str:
    if line is None:
        return ""
    spread = f"({three_digits(float(line['ratio_q1']))}–{three_digits(float(line['ratio_q3']))})"
    return f"{_ratio(line)} {spread} · {_memory(line)}"


def _ratio(line: Line | None) -> str:
    return three_digits(float(line["ratio"])) if line else ""


def _memory(line: Line | None) -> str:
    return f"{float(line['peak_memory']):.1f}" if line else ""


def _milliseconds(line: Line) -> str:
    return three_digits(float(line["seconds"]) * 1e3)


def _shape(row: Row) -> str:
    return next(iter(row.values()))["shape"].replace("x", "×")


def _size(line: Line) -> int:
    return math.prod(int(part) for part in line["shape"].split("x"))


def _origin(lines: Sequence[Line]) -> str:
    line = lines[-1]
    dates = sorted({line["date"][:10] for line in lines})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = " and ".join(
        dict.fromkeys(line["commit"] for line in sorted(lines, key=lambda line: line["date"]))
    )
    return (
        f"{line['processor']}, {line['cores']} cores, {line['platform']}; Python {line['python']}, "
        f"torch {line['torch']}, beliefmatch {line['beliefmatch']} at {commits}, "
        f"kernel {line['kernel']}{_others(lines)}; {when}."
    )


def _others(lines: Sequence[Line]) -> str:
    """Versions of the packages that we compare with."""
    named = {f"{line['contender']} {line['contender_version']}" for line in lines if _is_package(line)}
    return "".join(f", {name}" for name in sorted(named))


def _is_package(line: Line) -> bool:
    return line["contender_version"] not in (line["torch"], line["beliefmatch"])


def _markdown(head: list[str], body: list[list[str]]) -> str:
    rows = [head, ["---:"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PAGES = {"docs/results/performance.md": page_tables, "README.md": readme_table}


def updated(page: str, text: str) -> str:
    """The page with the text between the markers."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the tables; the exit code."""
    parser = argparse.ArgumentParser(description="The latest results as Markdown tables.")
    parser.add_argument("--write", action="store_true", help=f"update {' and '.join(PAGES)}")
    parser.add_argument("--csv", type=Path, default=results.DEFAULT_PATH)
    args = parser.parse_args(arguments)
    try:
        lines = latest(results.read(args.csv))
    except (OSError, ValueError) as error:
        print(f"benchmarks/tables.py: argument --csv: {args.csv}: {error}", file=sys.stderr)
        return 2
    for name, tables in PAGES.items():
        text = tables(lines)
        print(f"{name}\n\n{text}\n")
        if args.write:
            page = ROOT / name
            page.write_text(updated(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
