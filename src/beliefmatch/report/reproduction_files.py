"""All files of a reproduction: its record, its table, its figures."""

from beliefmatch.report.reproduction_figures import reproduction_figures
from beliefmatch.report.reproduction_text import reproduction_markdown
from beliefmatch.reproduce.record import ReproductionRecord

__all__ = ["reproduction_files"]


def reproduction_files(record: ReproductionRecord) -> list[tuple[str, bytes]]:
    """Name and content of each file, below a directory that is the reproduction's own."""
    texts = [("reproduction.json", record.to_json()), ("summary.md", reproduction_markdown(record))]
    figures = [(f"figures/{name}", content) for name, content in reproduction_figures(record)]
    return [*((name, text.encode()) for name, text in texts), *figures]
