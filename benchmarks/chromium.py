"""A real browser that looks at pages and says when something is on the screen."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT, MeasureError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_S = 300.0


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium, started and ready: what it takes to start does not count for the pages."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MeasureError("playwright is not installed") from None
    tool = _tool()
    try:
        found = tool.install()
    except OSError as error:
        raise MeasureError(str(error)) from None
    with sync_playwright() as playwright:
        env = {**os.environ, **found.environment}
        browser = playwright.chromium.launch(executable_path=found.executable, args=list(tool.FLAGS), env=env)
        try:
            open_page(browser).close()
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser) -> Page:
    """A page with a memory of its own: nothing is cached, nobody is logged in."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, locale="en-US")
    page.set_default_timeout(PATIENCE_S * 1000)
    return page


def seconds_until(page: Page, condition: str, since: float) -> float:
    """From a moment of the monotonic clock until a condition holds in the page, and the frame after that is drawn."""
    from playwright.sync_api import Error

    # Rendered twice: the first callback may still run before the frame that the condition belongs to is painted.
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
    try:
        page.wait_for_function(f"() => {condition}", polling="raf", timeout=PATIENCE_S * 1000)
        page.evaluate(drawn)
    except Error as error:
        raise MeasureError(f"{page.url} did not show it: {error}") from None
    return time.monotonic() - since


def _tool() -> Any:
    """tools/browser.py, which finds or downloads Chromium."""
    path = ROOT / "tools" / "browser.py"
    spec = importlib.util.spec_from_file_location("tools_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module
