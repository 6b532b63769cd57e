"""The list of reproductions with their runs and times."""

import pytest

from beliefmatch.report.reproduction import Listed, list_tables
from rendered import terminal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (20, "1 min"),
        (1500, "25 min"),
        (5400, "1.5 h"),
        (100 * 3600, "4 days"),
        (9e7, "1,042 days"),
    ],
)
def test_times_are_in_minutes_hours_or_days(seconds, text):
    listed = Listed("table1", "Image classification", (40, 4), (seconds, 60))
    line = next(line for line in terminal(*list_tables([listed], listed)).splitlines() if "table1" in line)
    assert line.split()[-5:] == ["40", *text.split(), "4", "1", "min"][-5:]
    assert f"40 at paper scale ({text})" in " ".join(terminal(*list_tables([listed], listed)).split())
