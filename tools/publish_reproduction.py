"""Copy reproductions into docs: records, figures, and their tables between two marks of docs/reproduction.md.

python tools/publish_reproduction.py runs/reproduce/cpu

Nothing is touched unless every record can be read and is of the scale that the page is about. What was
published before and is not below the directory stays as it was. The records of single runs, those that an
option was chosen by too, lie in results/reproduction/runs, without the places of this machine.
"""

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from beliefmatch._files import atomic_write
from beliefmatch.experiments.config import config_from, to_mapping
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.report.reproduction import reproduction_markdown
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.dataset_paths import without_paths
from beliefmatch.reproduce.record import ReproductionRecord

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
DOCS = Path(__file__).parents[1] / "docs"
_RECORD = "reproduction.json"


def main() -> None:
    """Publish every reproduction that has a record below the directory of its scale."""
    asked = _arguments()
    page, place = asked.docs / "reproduction.md", asked.docs / "results" / "reproduction"
    places = _places(asked.directory, place)
    records = {name: _record(home, asked.scale) for name, home in places.items()}
    if not page.is_file():
        sys.exit(f"publish: there is no {page}")
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"publish: {page} must have the marks {BEGIN} and {END}")
    parts = [_section(name, record) for name, record in records.items()]
    text = "\n\n".join([f"{before}{BEGIN}", *parts, f"{END}{after}"])
    new = place.with_name("reproduction.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        for name, record in records.items():
            _copy(places[name], new / name, record)
        named = {run.fingerprint for record in records.values() for run in record.runs}
        _copy_runs(named, asked.directory.parent / "runs", place / "runs", new / "runs")
    except (OSError, ValueError) as error:
        shutil.rmtree(new, ignore_errors=True)
        sys.exit(f"publish: {error}")
    shutil.rmtree(place, ignore_errors=True)
    new.rename(place)
    atomic_write(page, text.encode())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", default="cpu", help="that the page is about")
    parser.add_argument("--docs", type=Path, default=DOCS)
    return parser.parse_args()


def _places(directory: Path, published: Path) -> dict[str, Path]:
    """Where the record of each reproduction lies: below the directory, or where it was published."""
    found = {}
    for name in REPRODUCTIONS:
        homes = [home for home in (directory / name, published / name) if (home / _RECORD).is_file()]
        if not homes or homes[0] == published / name:
            print(f"{name}: no record, {'stays as it was published' if homes else 'left out'}")
        found |= {name: homes[0]} if homes else {}
    if not any(home.parent == directory for home in found.values()):
        sys.exit(f"publish: there is no record below {directory}")
    return found


def _record(home: Path, scale: str) -> ReproductionRecord:
    file = home / _RECORD
    try:
        record = ReproductionRecord.from_json(file.read_text("utf-8"))
    except ValueError as error:
        sys.exit(f"publish: {file}: {error}")
    if record.scale != scale:
        sys.exit(f"publish: {file} must be of scale {scale}, got {record.scale}")
    return record


def _copy(source: Path, target: Path, record: ReproductionRecord) -> None:
    """Figures lie in a folder of their own, but where they were published."""
    target.mkdir(parents=True)
    shutil.copy(source / _RECORD, target)
    figures = source / "figures" if (source / "figures").is_dir() else source
    for drawing in record.drawings:
        if drawing.is_drawn:
            shutil.copy(figures / f"{drawing.name}.png", target)


def _copy_runs(names: Iterable[str], home: Path, published: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    here = [file.parent.name for file in home.glob("*/record.json")]
    for name in sorted({*names, *here}):
        record, before = RunDirectory(home / name).record(), published / f"{name}.json"
        if record is not None:
            config = to_mapping(without_paths(config_from(record.config)))
            atomic_write(target / before.name, replace(record, config=config).to_json().encode())
        elif before.is_file():
            shutil.copy(before, target)


def _section(name: str, record: ReproductionRecord) -> str:
    text = reproduction_markdown(record, figures=f"results/reproduction/{name}")
    return text.replace("\n## ", "\n### ").replace("## ", "### ", 1).rstrip()


if __name__ == "__main__":
    main()
