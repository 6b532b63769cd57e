"""The page of a comparison in a browser: it draws, it obeys, it asks nobody for anything."""

import pytest
from msgspec.structs import replace

from beliefmatch.report.comparison_page import render_comparison
from browsing import CHROMIUM, NO_CHROMIUM, OVERFLOW, PLOTS, chromium, watched
from comparison_records import evaluations, five, hostile_comparison
from evaluation_records import HOSTILE

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def opened(browser, path, text):
    troubles = []
    path.write_text(text, encoding="utf-8")
    page = watched(browser, troubles)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
    return page, troubles


def own_plots(page):
    return [
        plot for plot in page.evaluate(PLOTS) if plot["id"].startswith(("plot-learning", "plot-rotation"))
    ]


def test_the_page_draws_toggles_and_fits_a_phone(browser, tmp_path):
    text = render_comparison(five(), evaluations(five(), ood=()))
    page, troubles = opened(browser, tmp_path / "five.html", text)
    plots = own_plots(page)
    assert len(plots) == 5 and all(plot["curves"] >= 5 for plot in plots)
    assert all(plot["models"] == [0, 1, 2, 3, 4] for plot in plots)
    page.get_by_role("checkbox", name="ensemble of 5").uncheck()
    assert all(plot["models"] == [0, 1, 2, 4] for plot in own_plots(page))
    assert page.locator("#over-seeds [data-model='3']:visible").count() == 0
    assert page.locator("#rotation tr[data-model='2']:visible").count() == 1
    page.locator("#over-seeds details summary").click()
    assert page.locator("#over-seeds .one-seed:visible").count() == 5 * 4 * 3
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for _ in range(100):  # plots follow the window a moment later
            if page.evaluate(OVERFLOW) <= 0:
                break
            page.wait_for_timeout(50)
        assert page.evaluate(OVERFLOW) <= 0
    page.emulate_media(media="print")
    assert page.locator("details.seeds:visible").count() == 0
    assert troubles == []


def test_names_do_nothing(browser, tmp_path):
    record = replace(hostile_comparison(), methods=hostile_comparison().methods[:4])
    text = render_comparison(record, evaluations(record, examples=60, ood=HOSTILE[:1]))
    page, troubles = opened(browser, tmp_path / "hostile.html", text)
    assert page.title() == "Comparison of 4 methods"
    intruders = "main b, main i, svg a, svg image, img[onerror], main script, main style"
    assert page.locator(intruders).count() == 0
    assert page.locator(".chip bdi").all_inner_texts() == [*HOSTILE[:4]]
    page.evaluate("Plotly.Fx.hover('plot-rotation-mean', [{curveNumber: 2, pointNumber: 3}])")
    label = page.locator("#plot-rotation-mean .hovertext").text_content()
    assert label.startswith("$x^2$ %{x} <b>bold</b> &lt;i&gt;")
    assert troubles == []
