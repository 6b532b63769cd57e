"""The page in a browser: it draws, it obeys, it asks nobody for anything, and names do nothing."""

import pytest

from beliefmatch.report.page import render_page
from browsing import CHROMIUM, NO_CHROMIUM, OVERFLOW, PLOTS, chromium, watched
from evaluation_records import hostile, model, single_example, three

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

CHOSEN = """(e, control) => e.calcdata.map(c => c[0].trace).filter(t => t.visible === true && t.meta)
  .map(t => t.meta[control])"""
EDGE = "Math.max(...[...document.querySelectorAll('.plot svg')].map(e => e.getBoundingClientRect().right))"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Open pages from disk, each once; what they complain about or ask for is kept."""
    many = [f"class {index}" for index in range(40)]
    records = {
        "three": three(),
        "hostile": hostile(),
        "single": [single_example()],
        "many": [model("wide", classes=many, examples=400, ood=("x",), images=False)],
    }
    place, pages, troubles = tmp_path_factory.mktemp("pages"), {}, []

    def opened(name):
        if name not in pages:
            path = place / f"{name}.html"
            path.write_text(render_page(records[name]), encoding="utf-8")
            pages[name] = watched(browser, troubles)
            pages[name].goto(path.as_uri())
            pages[name].wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
        return pages[name]

    yield opened, troubles
    for page in pages.values():
        page.close()


@pytest.fixture
def visit(opened):
    """A page as it is when opened; by the end of the test nothing may have been said or asked for."""
    visit, troubles = opened
    visited = []

    def fresh(name):
        visited.append(visit(name))
        _reset(visited[-1])
        return visited[-1]

    yield fresh
    found = troubles[:]
    troubles.clear()
    for page in visited:
        _reset(page)
    assert found == []


def _reset(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", media="screen")
    page.get_by_role("radio", name="auto").check(force=True)
    unchecked = page.get_by_role("checkbox", checked=False)
    while unchecked.count():
        unchecked.first.check()


@pytest.mark.parametrize("name", ["three", "single", "many"])
def test_every_plot_is_drawn(visit, name):
    plots = visit(name).evaluate(PLOTS)
    assert plots and all(plot["curves"] > 0 for plot in plots), plots


@pytest.mark.parametrize("name", ["three", "hostile", "many"])
def test_the_page_never_scrolls_sideways(visit, name):
    page = visit(name)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for _ in range(100):  # plots follow the window a moment later
            if page.evaluate(EDGE) <= width:
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
    select.select_option("energy")
    assert "by energy" in place.get_attribute("aria-label")
    assert place.evaluate(CHOSEN, "score") == ["energy"] * 3
    rows = page.locator("#detection tr[data-score]:visible")
    assert [row.get_attribute("data-score") for row in rows.all()] == ["energy"] * 3 * 4
    select.select_option("entropy")
    assert place.evaluate(CHOSEN, "score") == ["entropy"] * 3


def test_choosing_bins_of_equal_size_changes_diagram_and_numbers(visit):
    page = visit("three")
    select = page.get_by_role("combobox", name="Bins of")
    select.select_option("mass")
    assert page.locator("#plot-reliability").evaluate(CHOSEN, "bins") == ["mass"] * 6
    page.locator("#calibration summary").focus()
    page.keyboard.press("Enter")
    rows = page.locator("#calibration details tbody tr:visible").count()
    assert rows == sum(bool(count) for record in three() for count in record.reliability_by_mass.count)
    select.select_option("width")
    rows = page.locator("#calibration details tbody tr:visible").count()
    assert rows == sum(bool(count) for record in three() for count in record.reliability.count)
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


def test_hostile_names_stay_text(visit):
    page = visit("hostile")
    assert page.title() == "Evaluation of 8 models"  # an onerror would have changed it
    intruders = "main b, main i, svg a, svg image, img[onerror], main script, main style"
    assert page.locator(intruders).count() == 0
    assert page.locator(".chip bdi").all_inner_texts()[:7] == [record.name for record in hostile()[:7]]
    ticks = page.locator("#plot-classes .ytick text").all_text_contents()
    assert any(text.startswith("<script>al") for text in ticks), ticks
    assert any(text.startswith("$x^2$ %{x}") for text in ticks), ticks


def test_a_hostile_name_is_text_when_hovered_over(visit):
    page = visit("hostile")
    page.evaluate("Plotly.Fx.hover('plot-risk', [{curveNumber: 4, pointNumber: 20}])")
    label = page.locator("#plot-risk .hovertext").text_content()
    assert label.startswith("$x^2$ %{x} <b>bold</b> &lt;i&gt;")


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


def test_without_scripts_the_tables_still_speak(browser, tmp_path):
    (tmp_path / "page.html").write_text(render_page(three()), encoding="utf-8")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert page.locator("#summary td.best:visible").count() > 3
        assert page.locator(".examples img:visible").count() == 3 * 2 * 12
