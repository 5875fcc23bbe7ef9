"""Fixtures of the tests in a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser(no_process_left: None) -> Iterator[Any]:
    from tests.view.browsing import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def show() -> Iterator[Callable[..., Any]]:
    """Shows the runs of a directory; the servers end after the tabs that look at them."""
    from paceline.view import dash

    with contextlib.ExitStack() as stack:
        yield lambda path, **settings: stack.enter_context(dash(path, **{"port": 0, "blocking": False, **settings}))


@pytest.fixture
def tab_of(browser: Any, show: Any) -> Iterator[Callable[..., Any]]:
    """Opens a tab for a server. At the end, no tab may have logged an error or asked another host for anything."""
    from tests.view.browsing import Tab

    opened: list[tuple[Any, Any]] = []

    def open_tab(server: Any, **settings: Any) -> Any:
        context = browser.new_context(**{"locale": "en-US", "viewport": {"width": 1400, "height": 900}, **settings})
        tab = Tab(context, server)
        opened.append((context, tab))
        return tab

    yield open_tab
    for context, _ in opened:
        context.close()
    for _, tab in opened:
        tab.check()
