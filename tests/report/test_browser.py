"""Pages in a browser: they draw, they follow their controls, they request nothing, and names do nothing."""

import os
import shutil

import pytest
from msgspec.structs import replace

from beliefmatch.report.comparison_page import render_comparison
from beliefmatch.report.page import render_page
from comparison_records import evaluations, five, hostile_comparison
from evaluation_records import HOSTILE, hostile, model, single_example, three

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("BELIEFMATCH_CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path, and BELIEFMATCH_CHROMIUM names none"
)

LOCAL = ("file:", "data:", "blob:")
# Of each plot: is it shown, which models' traces does plotly show, and how many did it draw?
PLOTS = """() => [...document.querySelectorAll('.plot')].map(e => ({
  id: e.id,
  shown: e.offsetParent !== null,
  models: [...new Set((e.calcdata || []).map(c => c[0].trace).filter(t => t.visible === true && t.meta)
    .map(t => t.meta.model))],
  curves: e.querySelectorAll('.scatterlayer .trace, .heatmaplayer .hm').length,
}))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
EDGE = "Math.max(...[...document.querySelectorAll('.plot svg')].map(e => e.getBoundingClientRect().right))"
CHOSEN = """(e, control) => e.calcdata.map(c => c[0].trace).filter(t => t.visible === true && t.meta)
  .map(t => t.meta[control])"""
INTRUDERS = "main b, main i, svg a, svg image, img[onerror], main script, main style"


def many_classes():
    classes = tuple(f"class {index}" for index in range(40))
    return render_page([model("wide", classes=classes, examples=400, ood=("x",))])


def hostile_methods():
    record = replace(hostile_comparison(), methods=hostile_comparison().methods[:4])
    return render_comparison(record, evaluations(record, examples=60, ood=HOSTILE[:1]))


PAGES = {
    "three": lambda: render_page(three()),
    "hostile": lambda: render_page(hostile()),
    "single": lambda: render_page([single_example()]),
    "many": many_classes,
    "comparison": lambda: render_comparison(five(), evaluations(five(), ood=())),
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
    unchecked = page.get_by_role("checkbox", checked=False)
    while unchecked.count():
        unchecked.first.check()


def own_plots(page):
    """Those of a comparison, before those of its evaluations."""
    plots = page.evaluate(PLOTS)
    return [plot for plot in plots if plot["id"].startswith(("plot-learning", "plot-rotation"))]


@pytest.mark.parametrize("name", ["three", "single", "many", "comparison"])
def test_every_plot_is_drawn(visit, name):
    plots = visit(name).evaluate(PLOTS)
    assert plots and all(plot["curves"] > 0 for plot in plots), plots


@pytest.mark.parametrize("name", ["three", "hostile", "many", "comparison"])
def test_the_page_never_scrolls_sideways(visit, name):
    page = visit(name)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for _ in range(100):  # plots follow the window a moment later
            if page.evaluate(EDGE) <= width and page.evaluate(OVERFLOW) <= 0:
                break
            page.wait_for_timeout(50)
        assert page.evaluate(EDGE) <= width
        assert page.evaluate(OVERFLOW) <= 0


def test_no_button_of_a_plot_sends_it_away(visit):
    buttons = visit("three").locator("#plot-risk .modebar-btn")
    names = [button.get_attribute("aria-label") for button in buttons.all()]
    assert names == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]


def test_a_model_that_is_switched_off_leaves_every_plot_and_table(visit):
    page = visit("three")
    before = page.evaluate(PLOTS)
    page.get_by_role("checkbox", name="label smoothing").uncheck()
    after = page.evaluate(PLOTS)
    touched = [(plot, was) for plot, was in zip(after, before, strict=True) if 1 in was["models"]]
    assert len(touched) == 1 + 2 + 3 + 1 + 2
    for plot, was in touched:
        assert not plot["shown"] or (1 not in plot["models"] and plot["curves"] < was["curves"]), plot["id"]
    assert page.locator("[data-model='1']:visible").count() == 0
    assert page.locator("#summary th[data-model='0']:visible").count() == 1
    assert "label smoothing" not in page.locator("main").inner_text()
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_role("checkbox", name="label smoothing").check()
    assert page.evaluate(PLOTS) == before


def test_a_method_that_is_switched_off_leaves_the_plots_and_tables_of_a_comparison(visit):
    page = visit("comparison")
    plots = own_plots(page)
    assert len(plots) == 5 and all(plot["curves"] >= 5 for plot in plots)
    assert all(plot["models"] == [0, 1, 2, 3, 4] for plot in plots)
    page.get_by_role("checkbox", name="ensemble of 5").uncheck()
    assert all(plot["models"] == [0, 1, 2, 4] for plot in own_plots(page))
    assert page.locator("#over-seeds [data-model='3']:visible").count() == 0
    assert page.locator("#rotation tr[data-model='2']:visible").count() == 1
    page.locator("#over-seeds details summary").click()
    assert page.locator("#over-seeds .one-seed:visible").count() == 5 * 4 * 3
    page.emulate_media(media="print")
    assert page.locator("details.seeds:visible").count() == 0


def test_all_models_can_be_switched_off_from_the_keyboard(visit):
    page = visit("three")
    for name in ("softmax", "label smoothing", "belief matching"):
        page.get_by_role("checkbox", name=name).focus()
        page.keyboard.press("Space")
    assert all(not plot["models"] or not plot["shown"] for plot in page.evaluate(PLOTS))


def test_choosing_a_score_changes_curves_rows_and_words(visit):
    page = visit("three")
    place, select = page.locator("#plot-roc-1"), page.get_by_role("combobox", name="Score")
    assert "by predictive entropy" in place.get_attribute("aria-label")
    select.select_option("mutual_information")
    assert "by mutual information" in place.get_attribute("aria-label")
    assert place.evaluate(CHOSEN, "score") == ["mutual_information"] * 3
    rows = page.locator("#detection tr[data-score]:visible")
    assert [row.get_attribute("data-score") for row in rows.all()] == ["mutual_information"] * 3 * 4
    select.select_option("entropy")
    assert place.evaluate(CHOSEN, "score") == ["entropy"] * 3


def test_choosing_bins_of_equal_size_changes_diagram_and_numbers(visit):
    page = visit("three")
    select = page.get_by_role("combobox", name="Bins of")
    select.select_option("mass")
    assert {*page.locator("#plot-reliability").evaluate(CHOSEN, "bins")} == {"mass"}
    page.locator("#calibration summary").focus()
    page.keyboard.press("Enter")
    rows = page.locator("#calibration details tbody tr:visible")
    assert rows.count() == sum(
        bool(count) for record in three() for count in record.reliability_by_mass.count
    )
    select.select_option("width")
    assert rows.count() == sum(bool(count) for record in three() for count in record.reliability.count)
    page.keyboard.press("Enter")


def lightness(page):
    """Of the paper, of the numbers on an axis and of its title, from 0 to 1."""
    colours = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('#plot-risk .xtick text')).fill,
        getComputedStyle(document.querySelector('#plot-risk .xtitle')).fill]"""
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
    ("name", "title", "plot", "curve"),
    [
        ("hostile", "Evaluation of 8 models", "plot-risk", {"curveNumber": 4, "pointNumber": 20}),
        ("hostile comparison", "Comparison of 4 methods", "plot-rotation-mean",
         {"curveNumber": 2, "pointNumber": 3}),
    ],
)  # fmt: skip
def test_hostile_names_stay_text_also_when_hovered_over(visit, name, title, plot, curve):
    page = visit(name)
    assert page.title() == title  # an onerror would have changed it
    assert page.locator(INTRUDERS).count() == 0
    chips = page.locator(".chip bdi").all_inner_texts()[:7]
    assert len(chips) >= 4 and chips == [*HOSTILE[: len(chips)]]
    page.evaluate("([plot, curve]) => Plotly.Fx.hover(plot, [curve])", [plot, curve])
    label = page.locator(f"#{plot} .hovertext").text_content()
    assert label.startswith("$x^2$ %{x} <b>bold</b> &lt;i&gt;")


def test_hostile_names_of_classes_stay_text(visit):
    ticks = visit("hostile").locator("#plot-classes .ytick text").all_text_contents()
    assert any(text.startswith("<script>al") for text in ticks), ticks
    assert any(text.startswith("$x^2$ %{x}") for text in ticks), ticks


def test_on_paper_plots_stay_and_controls_go(visit):
    page = visit("three")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.locator(".theme:visible, nav:visible, .chip input:visible, details:visible").count() == 0
    assert page.locator(".chip:visible").count() == 3  # the legend
    boxes = page.evaluate(
        """() => [...document.querySelectorAll('.plot')].map(e => [e, e.querySelector('svg.main-svg')]
        .map(x => x.getBoundingClientRect().toJSON()))"""
    )
    for box, drawing in boxes:
        assert box["height"] > 80 and box["right"] <= 721
        assert drawing["width"] <= box["width"] + 1 and drawing["height"] <= box["height"] + 1
    paper, *ink = lightness(page)
    assert paper == 1 and max(ink) < 0.5


def test_tables_and_pictures_need_no_script(browser, tmp_path):
    (tmp_path / "page.html").write_text(render_page(three()), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert page.locator("#summary td.best:visible").count() > 3
        assert page.locator(".examples img:visible").count() == 3 * 2 * 12
