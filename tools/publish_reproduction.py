"""Copy reproductions into docs: records, figures, and their tables between two marks of docs/reproduction.md.

python tools/publish_reproduction.py runs/reproduce/cpu

Nothing is touched unless every record can be read and is of the scale that the page is about.
"""

import argparse
import shutil
import sys
from pathlib import Path

from beliefmatch.experiments.reproduction import REPRODUCTIONS
from beliefmatch.experiments.reproduction.record import ReproductionRecord
from beliefmatch.files import write_whole
from beliefmatch.report.reproduction_text import reproduction_markdown

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Publish every reproduction that has a record below the directory of its scale."""
    asked = _arguments()
    records = _records(asked.directory, asked.scale)
    page, place = asked.docs / "reproduction.md", asked.docs / "results" / "reproduction"
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
            _copy(asked.directory / name, new / name, record)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        sys.exit(f"publish: {error}")
    shutil.rmtree(place, ignore_errors=True)
    new.rename(place)
    write_whole(page, text.encode())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", default="cpu", help="that the page is about")
    parser.add_argument("--docs", type=Path, default=DOCS)
    return parser.parse_args()


def _records(directory: Path, scale: str) -> dict[str, ReproductionRecord]:
    found = {}
    for name in REPRODUCTIONS:
        file = directory / name / "reproduction.json"
        if not file.is_file():
            print(f"{name}: no record, left out")
            continue
        try:
            found[name] = ReproductionRecord.from_json(file.read_text("utf-8"))
        except ValueError as error:
            sys.exit(f"publish: {file}: {error}")
        if found[name].scale != scale:
            sys.exit(f"publish: {file} must be of scale {scale}, got {found[name].scale}")
    if not found:
        sys.exit(f"publish: there is no record below {directory}")
    return found


def _copy(source: Path, target: Path, record: ReproductionRecord) -> None:
    target.mkdir(parents=True)
    shutil.copy(source / "reproduction.json", target)
    for drawing in record.drawings:
        if drawing.is_drawn:
            shutil.copy(source / "figures" / f"{drawing.name}.png", target)


def _section(name: str, record: ReproductionRecord) -> str:
    text = reproduction_markdown(record, figures=f"results/reproduction/{name}")
    return text.replace("\n## ", "\n### ").replace("## ", "### ", 1).rstrip()


if __name__ == "__main__":
    main()
