"""Reading the page of an evaluation in tests."""

import json
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input", "line", "br"}


class Page(HTMLParser):
    """Elements in order, each with its tag, attributes and text; closing tags must match."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag=None, **attributes):
        return [
            element
            for element in self.elements
            if tag in (None, element["tag"])
            and all(element.get(name) == value for name, value in attributes.items())
        ]


def data_of(page):
    (element,) = page.all("script", id="data")
    return json.loads(element["text"])


def row(page, title):
    """The cells that follow a row's title."""
    places = [
        place
        for place, element in enumerate(page.elements)
        if element["tag"] == "th" and element.get("scope") == "row" and element["text"].startswith(title)
    ]
    cells = []
    for element in page.elements[places[0] + 1 :]:
        if element["tag"] == "tr":
            break
        if element["tag"] == "td":
            cells.append(element)
    return cells
