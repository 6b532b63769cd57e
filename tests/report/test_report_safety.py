"""The page of an evaluation as text: what it escapes and what it never asks for."""

import base64
import hashlib
import json
import re

import pytest
from msgspec.structs import replace

from beliefmatch.report.page import render_page
from beliefmatch.report.plot_parts import as_text
from evaluation_records import HOSTILE, hostile, model, three
from html_page import Page, data_of


@pytest.fixture(scope="module")
def page():
    return Page(render_page(three()))


@pytest.fixture(scope="module")
def hostile_page():
    return Page(render_page(hostile()))


def test_the_page_asks_the_network_for_nothing(page):
    for element in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            value = element.get(name)
            assert value is None or value.startswith(("#", "data:")), element
        assert not any(name.startswith("on") for name in element), element
    (style,) = page.all("style")
    assert "url(" not in style["text"] and "@import" not in style["text"]
    assert not page.all("iframe") + page.all("object") + page.all("base")


def test_the_policy_allows_these_scripts_and_no_other(page):
    (policy,) = (
        element["content"] for element in page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"]
    scripts = [element["text"] for element in page.all("script") if "type" not in element]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert len(scripts) == 2 and "plotly.js" in scripts[0][:60]


def test_names_are_text_wherever_they_stand(hostile_page):
    scripts = hostile_page.all("script")
    assert len(scripts) == 3 and len(hostile_page.all("style")) == 1
    assert not hostile_page.all("b") + hostile_page.all("i")
    assert all(image["src"].startswith("data:image/png;base64,") for image in hostile_page.all("img"))
    heads = [e["text"] for e in hostile_page.all("bdi") if e.get("class") == "name"]
    assert {*HOSTILE[:7]} <= set(heads)
    assert "[red]a␊b[/red] ␛[31m�</style>" in heads


def test_names_in_plots_hold_no_tag_no_template_no_mathematics(hostile_page):
    def strings(value):
        if isinstance(value, dict):
            value = [item for key, item in value.items() if key not in ("hovertemplate", "meta", "alts")]
        if isinstance(value, list):
            return [text for item in value for text in strings(item)]
        return [value] if isinstance(value, str) else []

    found = strings([[plot["data"], plot["layout"]] for plot in data_of(hostile_page)["plots"]])
    for string in found:
        assert not re.search(r"<(?!br>)|%\{|\$", string), string
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found
    templates = re.findall(
        r'"hovertemplate":"(.*?)"', json.dumps(data_of(hostile_page), separators=(",", ":"))
    )
    assert {name for text in templates for name in re.findall(r"%\{([^:}]*)", text)} <= {
        "fullData.name", "x", "y", "z", "text",
    }  # fmt: skip


def test_plotly_text_is_escaped_once():
    assert as_text("<b>&lt;%{x}$") == "&lt;b&gt;&amp;lt;&#37;{x}&#36;"


def test_embedded_data_cannot_end_its_element():
    record = replace(model(examples=50), name="</script><!--\u2028 &amp;")
    text = render_page([record])
    in_distribution = re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1)
    assert not re.search("[<>&\u2028]", in_distribution)
    assert json.loads(in_distribution)["models"] == 1


def test_only_a_png_becomes_a_picture():
    first = model(examples=200)
    bad = ['" onerror="alert(1)', "iVBORw0KGgo<", "PHN2Zz4=", ""]
    mistakes = [replace(first.mistakes[0], image=image) for image in bad] + [first.mistakes[0]]
    page = Page(render_page([replace(first, mistakes=mistakes, doubtful=[])]))
    (image,) = page.all("img")
    assert base64.b64decode(image["src"].partition(",")[2]).startswith(b"\x89PNG")
    assert image["alt"].startswith(f"example {first.mistakes[0].index}, ")
