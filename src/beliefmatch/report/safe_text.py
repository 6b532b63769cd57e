"""Names are data: how they are written where some signs mean more than themselves."""

import re

__all__ = ["markdown_text", "spreadsheet_text"]


def spreadsheet_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return (
        f"'{text}" if text.lstrip()[:1] in tuple("=+-@＝＋－＠") or text[:1] in ("\t", "\r", "\n") else text
    )


def markdown_text(text: str) -> str:
    """Text in which no sign means anything: backslashes for Markdown's, entities for HTML's."""
    text = re.sub(r"([\\`*_{}\[\]#|~$@])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
