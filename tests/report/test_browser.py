"""Pages in a browser: they draw, they follow their controls, they request nothing, and names do nothing."""

import os
import shutil

import pytest
from msgspec.structs import replace

from beliefmatch.report.comparison import comparison_page
from beliefmatch.report.evaluation import evaluation_page
from beliefmatch.report.page import render_page
from comparison_records import evaluations, five, hostile_comparison
from evaluation_records import HOSTILE, hostile, model, single_example, three

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("BELIEFMATCH_CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path, and BELIEFMATCH_CHROMIUM names none"
)

LOCAL = ("file:", "data:", "blob:")
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = "() => { for (const one of document.querySelectorAll('details')) one.open = true; }"
EMPTY = """() => [...document.querySelectorAll('.panel svg')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width < 100 || box.height < 60 || e.querySelectorAll('path').length < 5;
}).length"""
EDGE = """() => Math.max(...[...document.querySelectorAll('.panel:not(.wide) svg')]
  .map(e => e.getBoundingClientRect().right))"""
INTRUDERS = "main b, main i, svg a, img[onerror], main script, main style"


def evaluated_page(*records):
    return render_page(evaluation_page(records), caller="test")


def compared_page(record, found):
    return render_page(comparison_page(record, found), caller="test")


def many_classes():
    classes = tuple(f"class {index}" for index in range(40))
    return evaluated_page(model("wide", classes=classes, examples=400, ood=("x",)))


def hostile_methods():
    record = replace(hostile_comparison(), methods=hostile_comparison().methods[:4])
    return compared_page(record, evaluations(record, examples=60, ood=HOSTILE[:1]))


PAGES = {
    "three": lambda: evaluated_page(*three()),
    "hostile": lambda: evaluated_page(*hostile()),
    "single": lambda: evaluated_page(single_example()),
    "many": many_classes,
    "comparison": lambda: compared_page(five(), evaluations(five(), ood=())),
    "hostile comparison": hostile_methods,
}


@pytest.fixture(scope="module")
def browser():
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0  # chromium's sandbox refuses root
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if as_root else []
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Opens each page once, and keeps its complaints and requests."""
    place, pages, troubles = tmp_path_factory.mktemp("pages"), {}, []

    def gate(route):
        if route.request.url.startswith(LOCAL):
            route.continue_()
        else:
            troubles.append(f"request: {route.request.url}")
            route.abort()

    def opened(name):
        if name not in pages:
            path = place / f"{name}.html"
            path.write_text(PAGES[name](), encoding="utf-8")
            page = pages[name] = browser.new_page(color_scheme="light")
            page.route("**/*", gate)
            page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
            page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
        return pages[name]

    return opened, troubles


@pytest.fixture
def visit(opened):
    """A page as it is when opened; by the end of the test nothing may have complained or been requested."""
    open_page, troubles = opened
    visited = []

    def fresh(name):
        visited.append(open_page(name))
        reset(visited[-1])
        return visited[-1]

    yield fresh
    found = troubles[:]
    troubles.clear()
    for page in visited:
        reset(page)
    assert found == []


def reset(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", media="screen")
    page.get_by_role("radio", name="auto").check(force=True)
    page.evaluate("""() => document.querySelectorAll('details').forEach(
      e => { e.open = e.matches('.section') && e === document.querySelector('details.section'); })""")
    unchecked = page.get_by_role("checkbox", checked=False)
    while unchecked.count():
        unchecked.first.check()


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_drawn(visit, name):
    page = visit(name)
    page.evaluate(OPEN)
    assert page.locator(".panel svg").count() > 2 and page.evaluate(EMPTY) == 0


@pytest.mark.parametrize("name", ["three", "hostile", "many", "comparison"])
def test_the_page_never_scrolls_sideways(visit, name):
    page = visit(name)
    page.evaluate(OPEN)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(EDGE) <= width
        assert page.evaluate(OVERFLOW) <= 0


def test_the_first_screen_has_the_verdict_the_cards_and_a_picture(visit):
    page = visit("three")
    page.set_viewport_size({"width": 1280, "height": 1000})
    tops = [page.locator(one).first.bounding_box()["y"] for one in ("h1", ".card", ".panel svg")]
    assert tops == sorted(tops) and tops[2] < 1000
    folded = page.locator("details.section:not([open])")
    assert folded.count() >= 4 and page.evaluate("document.body.scrollHeight") < 4000


@pytest.mark.parametrize(
    ("name", "model", "others"), [("three", "label smoothing", 2), ("comparison", "ensemble of 5", 4)]
)
def test_a_model_that_is_switched_off_leaves_every_figure_and_table(visit, name, model, others):
    page = visit(name)
    page.evaluate(OPEN)
    index = page.get_by_role("checkbox", name=model).get_attribute("data-toggles")
    before = page.locator(f"[data-model='{index}']:visible").count()
    page.get_by_role("checkbox", name=model).uncheck()
    assert before > 10 and page.locator(f"[data-model='{index}']:visible").count() == 0
    kept = {one for one in range(others + 1) if f"{one}" != index}
    assert all(page.locator(f"[data-model='{one}']:visible").count() > 5 for one in kept)
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_role("checkbox", name=model).check()
    assert page.locator(f"[data-model='{index}']:visible").count() == before


def test_all_models_can_be_switched_off_from_the_keyboard(visit):
    page = visit("three")
    for name in ("softmax", "label smoothing", "belief matching"):
        page.get_by_role("checkbox", name=name).focus()
        page.keyboard.press("Space")
    assert page.locator("[data-model]:visible").count() == 0


def test_sections_open_from_the_keyboard_and_by_a_link(visit):
    page = visit("three")
    section = page.locator("details.section").nth(1)
    section.locator("> summary").focus()
    page.keyboard.press("Enter")
    assert section.get_attribute("open") is not None
    page.keyboard.press("Enter")
    page.evaluate("location.hash = 'selective-prediction'")
    page.wait_for_selector("#selective-prediction[open]")
    page.evaluate("location.hash = ''; document.getElementById('selective-prediction').open = false")


def lightness(page):
    """Of the paper, of the numbers on an axis and of a title of a panel, from 0 to 1."""
    colours = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
        ...[...document.querySelectorAll('.panel svg text')].slice(0, 3)
          .map(e => getComputedStyle(e).fill)]"""
    )
    numbers = [colour[colour.index("(") + 1 : -1].split(",")[:3] for colour in colours]
    return [sum(map(int, number)) / 765 for number in numbers]


def test_light_and_dark_follow_the_system_and_the_reader(visit):
    page = visit("three")
    light = lightness(page)
    page.emulate_media(color_scheme="dark")
    dark = lightness(page)
    assert light[0] > 0.9 and max(light[1:]) < 0.5
    assert dark[0] < 0.2 and min(dark[1:]) > 0.5
    page.get_by_role("radio", name="light").check(force=True)
    assert lightness(page) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("radio", name="dark").check(force=True)
    assert lightness(page) == dark


@pytest.mark.parametrize(
    ("name", "title"),
    [("hostile", "Evaluation of 8 models"), ("hostile comparison", "Comparison of 4 methods")],
)
def test_hostile_names_stay_text(visit, name, title):
    page = visit(name)
    page.evaluate(OPEN)
    assert page.title() == title  # an onerror would have changed it
    assert page.locator(INTRUDERS).count() == 0
    chips = page.locator(".chip bdi").all_inner_texts()[:7]
    assert len(chips) >= 4
    assert all(chip[:24] == name[:24] for chip, name in zip(chips, HOSTILE, strict=False))
    drawn = page.locator(".panel svg text").all_text_contents()
    assert any(text.startswith("<script>al") for text in drawn), drawn[:50]


def test_on_paper_figures_stay_and_controls_go(visit):
    page = visit("three")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 720, "height": 1000})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".theme:visible, .models:visible, .numbers:visible").count() == 0
    assert page.locator("details.section:not([open])").count() == 0
    boxes = [one.bounding_box() for one in page.locator(".panel svg").all()]
    assert all(box["height"] > 60 and box["x"] + box["width"] <= 721 for box in boxes)
    paper, *ink = lightness(page)
    assert paper == 1 and max(ink) < 0.5
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.section:not([open])").count() > 3


def test_tables_and_figures_need_no_script(browser, tmp_path):
    (tmp_path / "page.html").write_text(evaluated_page(*three()), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert page.locator("td.best:visible").count() > 3
        assert page.locator(".panel svg:visible").count() >= 4
