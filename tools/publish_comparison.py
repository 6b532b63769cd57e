"""Copy the record of a comparison into docs, without paths of its machine, and draw its figures.

python tools/publish_comparison.py runs/compare compare/digits rotated_digit
python tools/publish_comparison.py docs/results/compare/digits.json compare/digits rotated_digit

The second draws the figure again from the record that was published.
"""

import json
import sys
from pathlib import Path

from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison_figures import comparison_figures
from beliefmatch.report.figure import paper_files
from publish_adaptation import DOCS, placeless


def main(source: str, name: str, *figures: str) -> None:
    """Write docs/results/NAME.json and docs/images/FIGURE.png."""
    file = Path(source) if Path(source).is_file() else Path(source) / "comparison.json"
    place = DOCS / "results" / f"{name}.json"
    if file.resolve() != place.resolve():
        record = placeless(json.loads(file.read_text("utf-8")))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(record, separators=(",", ":")) + "\n", "utf-8")
    drawn = comparison_figures(ComparisonRecord.from_json(place.read_text("utf-8")))
    for path, content in paper_files([one for one in drawn if one.name in figures], ("png",)):
        (DOCS / "images" / path).write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: publish_comparison.py DIRECTORY|RECORD NAME [FIGURE...]")
    main(*sys.argv[1:])
