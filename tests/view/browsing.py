"""What the tests in a browser share: Chromium, a tab that remembers what went wrong in it, and pages of ours."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from paceline.view.page.start import PageServer
from tests.conftest import NO_BROWSER
from tools import browser as tool

PATIENCE_MS = 30_000
"""Far more than anything takes that a test waits for."""

BROWSER = tool.find()
"""Looked for here: the tests themselves have another home, and no XDG_CACHE_HOME."""

expect.set_options(timeout=PATIENCE_MS)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, for all tests of a module: while Playwright runs, its process has no other event loop."""
    if BROWSER is None:
        reason = f"{NO_BROWSER}: `python tools/browser.py` downloads it, without root"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER.executable, args=tool.FLAGS, env={**os.environ, **BROWSER.environment}
        )
        yield browser
        browser.close()


class Tab:
    """A page of a server, and what its browser complained of."""

    def __init__(self, context: BrowserContext, server: PageServer) -> None:
        self.page: Page = context.new_page()
        self.server = server
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.expected: list[str] = []
        """Patterns of complaints that the test provokes."""
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", self._requested)
        self.page.on("console", self._said)
        self.page.on("response", self._answered)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error.message}"))

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        self.requests.append(f"{parts.path}?{parts.query}")
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.server.url).netloc:
            self.problems.append(f"request to another host: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "responded with a status" not in message.text:  # see _answered
            self.problems.append(f"{message.type}: {message.text}")

    def open(self, path: str = "/") -> None:
        """As from the link that was printed: the token is exchanged for a cookie."""
        join = "&" if "?" in path else "?"
        self.page.goto(f"{self.server.url}{path}{join}token={self.server.token}")
        expect(self.page.locator(".live.open")).to_be_visible()

    def find(self, selector: str, **more: Any) -> Locator:
        return self.page.locator(selector, **more)

    def row(self, name: str) -> Locator:
        """The line of a run in the list."""
        return self.find(".row:not(.head)").filter(has=self.page.get_by_role("link", name=name, exact=True))

    def go_to(self, name: str) -> None:
        """The page of a run, from the list."""
        self.row(name).get_by_role("link", name=name, exact=True).click()
        expect(self.page.locator("h1")).to_have_text(name)

    def points(self, metric: str) -> int:
        """How many points the chart of a metric has."""
        return int(self.chart(metric).locator(".plot").get_attribute("data-points") or 0)

    def chart(self, metric: str) -> Locator:
        return self.find(f".chart[data-metric='{metric}']")

    def drawn(self) -> None:
        """Wait until what was chosen is drawn: canvases change with the next frame."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def asked_for(self, pattern: str) -> list[str]:
        """The requests that match a pattern."""
        return [each for each in self.requests if re.search(pattern, each)]

    def check(self) -> None:
        """Nothing went wrong, except for what was expected to."""
        left = [each for each in self.problems if not any(re.search(pattern, each) for pattern in self.expected)]
        assert not left, "\n".join(left)
