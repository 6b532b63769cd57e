"""Copy the record and the figures of an adaptation into docs, without paths of the machine it was made on.

python tools/publish_adaptation.py runs/resnet20 resnet20
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

FIGURES = ("reliability", "choice_of_lambda")
DOCS = Path(__file__).parents[1] / "docs"


def main(run: str, name: str, *figures: str) -> None:
    """Write docs/results/adapt/NAME.json and docs/images/adapt_NAME_FIGURE.png."""
    record = json.loads((Path(run) / "record.json").read_text("utf-8"))
    place = DOCS / "results" / "adapt" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(placeless(record), indent=1) + "\n", "utf-8")
    for figure in figures or FIGURES:
        shutil.copy(Path(run) / "figures" / f"{figure}.png", DOCS / "images" / f"adapt_{name}_{figure}.png")


def placeless(value: Any) -> Any:
    """Absolute paths as the names of their files, also behind a NAME=."""
    if isinstance(value, dict):
        return {key: placeless(one) for key, one in value.items()}
    if isinstance(value, list):
        return [placeless(one) for one in value]
    if not isinstance(value, str):
        return value
    name, equals, path = value.rpartition("=")
    return f"{name}{equals}{Path(path).name}" if Path(path).is_absolute() else value


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: publish_adaptation.py DIRECTORY NAME [FIGURE...]")
    main(*sys.argv[1:])
