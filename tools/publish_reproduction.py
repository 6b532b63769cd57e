"""Copy reproductions into docs: records, figures, and their tables between two marks of docs/reproduction.md.

python tools/publish_reproduction.py runs/reproduce/cpu
"""

import shutil
import sys
from pathlib import Path

from beliefmatch.experiments.reproduction import REPRODUCTIONS
from beliefmatch.experiments.reproduction.record import ReproductionRecord
from beliefmatch.report.reproduction_text import reproduction_markdown

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
DOCS = Path(__file__).parents[1] / "docs"


def main(directory: str) -> None:
    """Publish every reproduction that has a record below the directory of its scale."""
    place, parts = DOCS / "results" / "reproduction", []
    shutil.rmtree(place, ignore_errors=True)
    for name in REPRODUCTIONS:
        source = Path(directory) / name
        if not (source / "reproduction.json").is_file():
            print(f"{name}: no record, left out")
            continue
        record = ReproductionRecord.from_json((source / "reproduction.json").read_text("utf-8"))
        (place / name).mkdir(parents=True)
        shutil.copy(source / "reproduction.json", place / name)
        for drawing in record.drawings:
            shutil.copy(source / "figures" / f"{drawing.name}.png", place / name)
        text = reproduction_markdown(record, figures=f"results/reproduction/{name}")
        parts.append(text.replace("\n## ", "\n### ").replace("## ", "### ", 1).rstrip())
    page = DOCS / "reproduction.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text("\n\n".join([f"{before}{BEGIN}", *parts, f"{END}{after}"]), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: publish_reproduction.py DIRECTORY")
    main(sys.argv[1])
