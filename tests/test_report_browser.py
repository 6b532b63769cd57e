"""The page in a browser: it draws, it obeys, it asks nobody for anything, and names do nothing."""

import os
import shutil

import pytest

from beliefmatch.report.page import render_page
from evaluation_records import hostile, model, single_example, three

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("BELIEFMATCH_CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path, and BELIEFMATCH_CHROMIUM names none"
)

# The curves, bars and marks that a reader sees of one trace; plotly leaves hidden traces out.
TRACES = """() => [...document.querySelectorAll('.plot')].map(e => ({
  id: e.id,
  shown: e.offsetParent !== null,
  models: [...new Set((e.calcdata || []).map(c => c[0].trace).filter(t => t.visible === true && t.meta)
    .map(t => t.meta.model))],
  curves: e.querySelectorAll('.scatterlayer .trace, .heatmaplayer .hm').length,
}))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0  # whom chromium's sandbox refuses
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if as_root else []
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Where the pages lie on disk."""
    place = tmp_path_factory.mktemp("pages")
    records = {"three": three(), "hostile": hostile(), "single": [single_example()]}
    many = [f"class {index}" for index in range(40)]
    records["many"] = [model("wide", classes=many, examples=400, foreign=("x",), images=False)]
    found = {}
    for name, content in records.items():
        path = place / f"{name}.html"
        path.write_text(render_page(content), encoding="utf-8")
        found[name] = path.as_uri()
    return found


@pytest.fixture
def visit(browser, addresses):
    """Open a page; at the end of the test, complaints and requests must not have happened."""
    contexts, troubles = [], []

    def gate(route):
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            troubles.append(route.request.url)
            route.abort()

    def visit(name, *, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.route("**/*", gate)
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:", "blob:")) else troubles.append(request.url)
            ),
        )
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(addresses[name])
        page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.mark.parametrize("name", ["three", "single", "many"])
def test_every_plot_is_drawn(visit, name):
    plots = visit(name).evaluate(TRACES)
    assert plots and all(plot["curves"] > 0 for plot in plots), plots


@pytest.mark.parametrize("name", ["three", "hostile", "many"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(visit, name, width):
    page = visit(name, width=width)
    assert page.evaluate(OVERFLOW) <= 0
    for element in page.query_selector_all(".plot"):
        box = element.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_a_model_that_is_switched_off_leaves_every_plot_and_table(visit):
    page = visit("three")
    before = page.evaluate(TRACES)
    page.get_by_role("checkbox", name="label smoothing").uncheck()
    after = page.evaluate(TRACES)
    assert any(1 in plot["models"] for plot in before)
    for plot, was in zip(after, before, strict=True):
        assert 1 not in plot["models"] or not plot["shown"]
        assert plot["curves"] < was["curves"] or not plot["shown"], plot["id"]
    assert page.locator("[data-model='1']:visible").count() == 0
    assert page.locator("#summary th[data-model='0']:visible").count() == 1
    assert "label smoothing" not in page.locator("main").inner_text()
    page.get_by_role("checkbox", name="label smoothing").check()
    assert page.evaluate(TRACES) == before
    assert page.evaluate(OVERFLOW) <= 0


def test_all_models_can_be_switched_off_from_the_keyboard(visit):
    page = visit("three")
    for name in ("softmax", "label smoothing", "belief matching"):
        page.get_by_role("checkbox", name=name).focus()
        page.keyboard.press("Space")
    assert all(not plot["models"] or not plot["shown"] for plot in page.evaluate(TRACES))


def test_choosing_a_score_changes_curves_rows_and_words(visit):
    page = visit("three")
    place = page.locator("#plot-roc-1")
    before = place.get_attribute("aria-label")
    page.get_by_label("Score").select_option("energy")
    assert "by energy" in place.get_attribute("aria-label") != before
    scores = "e => e.calcdata.map(c => c[0].trace).filter(t => t.visible === true && t.meta).map(t => t.meta.score)"
    assert set(place.evaluate(scores)) == {"energy"}
    rows = page.locator("#detection tr[data-score]:visible")
    assert {rows.nth(i).get_attribute("data-score") for i in range(rows.count())} == {"energy"}
    assert rows.count() == 3 * 4
    page.get_by_label("Groups of").select_option("mass")
    bins = scores.replace("meta.score", "meta.bins")
    assert set(page.locator("#plot-reliability").evaluate(bins)) == {"mass"}


def colours(page):
    return page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('#plot-risk .xtick text')).fill,
        getComputedStyle(document.querySelector('#plot-risk .xtitle')).fill]"""
    )


def lightness(colour):
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 765


def test_light_and_dark_follow_the_system_and_the_reader(visit):
    dark, light = visit("three", color_scheme="dark"), visit("three", color_scheme="light")
    assert lightness(colours(dark)[0]) < 0.2 < 0.5 < min(map(lightness, colours(dark)[1:]))
    assert lightness(colours(light)[0]) > 0.9 > 0.5 > max(map(lightness, colours(light)[1:]))
    followed = colours(light)
    light.get_by_role("radio", name="dark").check(force=True)
    assert colours(light) == colours(dark)
    dark.get_by_role("radio", name="light").check(force=True)
    assert colours(dark) == followed


def test_hostile_names_stay_text(visit):
    page = visit("hostile")
    assert page.title() == "Evaluation of 8 models"  # an onerror would have changed it
    assert (
        page.evaluate("document.querySelectorAll('main b, main i, svg a, svg image, img[onerror]').length")
        == 0
    )
    names = page.locator(".chip bdi").all_inner_texts()
    assert names[:3] == [record.name for record in hostile()[:3]]
    ticks = page.locator("#plot-classes .ytick text").all_text_contents()
    assert any(text.startswith("<script>al") for text in ticks)
    assert any("%{x}" in text for text in ticks) and any("&lt;i&gt;" in text for text in ticks)


def test_a_hostile_name_is_text_when_hovered_over(visit):
    page = visit("hostile")
    page.locator("#plot-risk").scroll_into_view_if_needed()
    page.evaluate("Plotly.Fx.hover('plot-risk', [{curveNumber: 4, pointNumber: 20}])")
    label = page.locator("#plot-risk .hovertext").text_content()
    assert label.startswith("$x^2$ %{x} <b>bold</b> &lt;i&gt;")


def test_the_data_behind_a_figure_opens_from_the_keyboard(visit):
    page = visit("three")
    summary = page.locator("#calibration summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#calibration details table").is_visible()
    visible = page.locator("#calibration details tbody tr:visible").count()
    assert visible == sum(bool(count) for record in three() for count in record.reliability.count)


def test_on_paper_plots_stay_and_controls_go(visit):
    page = visit("three", color_scheme="dark")
    page.set_viewport_size({"width": 720, "height": 1000})
    page.emulate_media(media="print")
    assert page.locator(".theme:visible, nav:visible, .chip input:visible, details:visible").count() == 0
    for element in page.query_selector_all(".plot"):
        box = element.bounding_box()
        assert box["height"] > 80 and box["x"] + box["width"] <= 721
        drawing = element.query_selector("svg.main-svg").bounding_box()
        assert drawing["width"] <= box["width"] + 1
    assert lightness(colours(page)[0]) == 1 and max(map(lightness, colours(page)[1:])) < 0.5
    assert page.locator(".chip:visible").count() == 3  # the legend


def test_tables_speak_without_scripts(browser, addresses):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(addresses["three"])
    assert page.locator("#summary td.best").count() > 3
    assert page.get_by_text("The figures need JavaScript").is_visible()
    context.close()
