"""Reading a page in tests: its elements, the data of its plots, and an outline of what a reader sees."""

import json
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input", "line", "br"}
HEADING = re.compile("h[1-6]")
BLOCKS = {"title", "p", "pre", "li", "tr", "dl", "div", "section", "summary", "option", "label", "legend"}
HIDDEN = {"script", "style", "noscript"}


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

    def texts(self, tag, **attributes):
        """The text of each element, with single spaces."""
        return [" ".join(element["text"].split()) for element in self.all(tag, **attributes)]

    def names(self):
        """The names of models, classes and sets, exactly as they are shown."""
        return [element["text"] for element in self.all("bdi", **{"class": "name"})]

    def plots(self):
        """The data and layout of every plot, by id."""
        (element,) = self.all("script", id="data")
        return {plot["id"]: plot for plot in json.loads(element["text"])["plots"]}

    def row(self, title):
        """The cells of the first table row whose title begins like this."""
        places = [
            place
            for place, element in enumerate(self.elements)
            if element["tag"] == "th" and element.get("scope") == "row" and element["text"].startswith(title)
        ]
        cells = []
        for element in self.elements[places[0] + 1 :]:
            if element["tag"] == "tr":
                break
            if element["tag"] == "td":
                cells.append(element)
        return cells


class _Outline(HTMLParser):
    """Lines of text: headings with #, rows with |, links, images and plots in brackets."""

    def __init__(self):
        super().__init__()
        self.lines, self.line, self.hidden = [], "", 0

    def flush(self):
        if words := " ".join(self.line.split()):
            self.lines.append(words)
        self.line = ""

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in HIDDEN:
            self.hidden += 1
        if tag in BLOCKS or HEADING.fullmatch(tag):
            self.flush()
            self.line = "#" * int(tag[1]) + " " if HEADING.fullmatch(tag) else ""
        elif tag in ("td", "th", "dt", "dd"):
            self.line += " | " if self.line else ""
        elif tag == "span":
            self.line += " "
        elif tag == "img":
            self.line += f"[image: {given['alt']}] "
        elif tag == "a":
            self.line += f"[{given['href']}] "
        if given.get("role") == "img":
            self.line = f"[plot: {given['aria-label']}]"
            self.flush()

    def handle_endtag(self, tag):
        if tag in HIDDEN:
            self.hidden -= 1
        if tag in BLOCKS or HEADING.fullmatch(tag):
            self.flush()

    def handle_data(self, data):
        if not self.hidden:
            self.line += data


def outline(text):
    """What a reader of a page sees or hears, line by line, whatever the markup is."""
    parser = _Outline()
    parser.feed(text)
    parser.close()
    return "\n".join(parser.lines) + "\n"
