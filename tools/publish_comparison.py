"""Copy the record of a comparison into docs, without paths of the machine it was made on.

python tools/publish_comparison.py runs/compare semi/digits
"""

import json
import sys
from pathlib import Path

from publish_adaptation import DOCS, placeless


def main(directory: str, name: str) -> None:
    """Write docs/results/NAME.json."""
    record = json.loads((Path(directory) / "comparison.json").read_text("utf-8"))
    place = DOCS / "results" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(placeless(record), separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: publish_comparison.py DIRECTORY NAME")
    main(*sys.argv[1:])
