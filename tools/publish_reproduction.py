"""Copy reproductions into docs: records, figures, and their tables between two marks of a page.

python tools/publish_reproduction.py runs/reproduce/cpu

Nothing is touched unless every record can be read and is of the scale that the page is about. Reproductions
that were published before and are not in the directory keep their records, and so do runs. Figures are drawn
from the records; `python tools/publish_reproduction.py docs/results/reproduction` draws them all again. The
records of single runs, trials of a search included, go to results/reproduction/runs, without the paths of
this machine. The page is results/reproduction/README.md; what stands outside of its marks is kept.
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
from beliefmatch.report.reproduction import (
    common_markdown,
    common_notes,
    reproduction_figures,
    reproduction_markdown,
)
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.dataset_paths import without_paths
from beliefmatch.reproduce.record import ReproductionRecord

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
DOCS = Path(__file__).parents[1] / "docs"
_RECORD, _PAGE = "reproduction.json", "README.md"


def main() -> None:
    """Publish every reproduction that has a record in the directory of its scale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", default="cpu", help="Scale that the page is about.")
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    docs, directory = options.docs.resolve(), options.directory.resolve()
    published = docs / "results" / "reproduction"
    page = published / _PAGE
    sources = _sources(directory, published)
    records = {name: _record(source / _RECORD, options.scale) for name, source in sources.items()}
    text = _page(page, records)
    new = published.with_name("reproduction.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        for name, record in records.items():
            _copy(sources[name], new / name, record)
        names = {run.fingerprint for record in records.values() for run in record.runs}
        _copy_runs(names, directory.parent / "runs", published / "runs", new / "runs")
        (new / _PAGE).write_text(text, "utf-8")
    except (OSError, ValueError) as error:
        shutil.rmtree(new, ignore_errors=True)
        sys.exit(f"publish: {error}")
    shutil.rmtree(published, ignore_errors=True)
    new.rename(published)


def _sources(directory: Path, published: Path) -> dict[str, Path]:
    """Directory with the record of each reproduction: a new one, or the published one."""
    found = {}
    for name in REPRODUCTIONS:
        sources = [one for one in (directory / name, published / name) if (one / _RECORD).is_file()]
        if not sources or sources[0].parent != directory:
            print(f"{name}: no record, {'stays as it was published' if sources else 'left out'}")
        found |= {name: sources[0]} if sources else {}
    if not any(source.parent == directory for source in found.values()):
        sys.exit(f"publish: there is no record below {directory}")
    return found


def _record(file: Path, scale: str) -> ReproductionRecord:
    try:
        record = ReproductionRecord.from_json(file.read_text("utf-8"))
    except ValueError as error:
        sys.exit(f"publish: {file}: {error}")
    if record.scale != scale:
        sys.exit(f"publish: {file} must be of scale {scale}, got {record.scale}")
    return record


def _page(page: Path, records: dict[str, ReproductionRecord]) -> str:
    """The page with the sections of the records between its marks."""
    if not page.is_file():
        sys.exit(f"publish: there is no {page}")
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"publish: {page} must have the marks {BEGIN} and {END}")
    common = tuple(common_notes([*records.values()]))
    sections = [common_markdown([*records.values()])] if common else []
    for name, record in records.items():
        sections.append(reproduction_markdown(record, figures=name, common=common).rstrip())
    return "\n\n".join([f"{before}{BEGIN}", *sections, f"{END}{after}"])


def _copy(source: Path, target: Path, record: ReproductionRecord) -> None:
    """Copy a record, and draw its figures from it."""
    target.mkdir(parents=True)
    shutil.copy(source / _RECORD, target)
    for name, content in reproduction_figures(record):
        if name.endswith(".png"):
            (target / name).write_bytes(content)


def _copy_runs(names: Iterable[str], runs: Path, published: Path, target: Path) -> None:
    """Copy the record of each run; one published before is kept unless there is a new one."""
    target.mkdir(parents=True, exist_ok=True)
    new = [file.parent.name for file in runs.glob("*/record.json")]
    for name in sorted({*names, *new, *(file.stem for file in published.glob("*.json"))}):
        record, before = RunDirectory(runs / name).record(), published / f"{name}.json"
        if record is not None:
            config = to_mapping(without_paths(config_from(record.config)))
            atomic_write(target / before.name, replace(record, config=config).to_json().encode())
        elif before.is_file():
            shutil.copy(before, target)


if __name__ == "__main__":
    main()
