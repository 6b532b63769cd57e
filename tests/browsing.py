"""Pages in a browser that reports every complaint, and every request to the outside."""

import os
import shutil
from contextlib import contextmanager

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("BELIEFMATCH_CHROMIUM") or shutil.which("chromium")
NO_CHROMIUM = "no chromium on the path, and BELIEFMATCH_CHROMIUM names none"
LOCAL = ("file:", "data:", "blob:")
# Of each plot: is it there, whose traces does plotly show, and how many did it draw?
PLOTS = """() => [...document.querySelectorAll('.plot')].map(e => ({
  id: e.id,
  shown: e.offsetParent !== null,
  models: [...new Set((e.calcdata || []).map(c => c[0].trace).filter(t => t.visible === true && t.meta)
    .map(t => t.meta.model))],
  curves: e.querySelectorAll('.scatterlayer .trace, .heatmaplayer .hm').length,
}))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextmanager
def chromium():
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0  # whom chromium's sandbox refuses
    options = ["--no-sandbox"] if as_root else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


def watched(browser, troubles):
    """A page whose complaints and requests are kept in `troubles`."""

    def gate(route):
        if route.request.url.startswith(LOCAL):
            route.continue_()
        else:
            troubles.append(f"request: {route.request.url}")
            route.abort()

    page = browser.new_page(color_scheme="light")
    page.route("**/*", gate)
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    return page
