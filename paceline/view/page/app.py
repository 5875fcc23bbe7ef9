"""The ASGI application of the page: routes, and the guard in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.applications import Starlette

from paceline.view.page.answers import not_found, wrong_method
from paceline.view.page.metrics import metrics_route
from paceline.view.page.routes import checkpoints, comparing, lists, logs, pages, runs, searches
from paceline.view.page.session import PageGuard
from paceline.view.page.state import PageState
from paceline.web.traffic import Traffic


class PageApplication(Starlette):
    """Starlette, with the guard in front of everything."""

    guard: PageGuard
    traffic: Traffic

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.guard(scope, receive, self.traffic.counted(scope, send))

    async def routed(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)


def application(
    state: PageState,
    *,
    token: str | None,
    loopback: bool,
    allowed_hosts: Iterable[str] = (),
    access_log: bool = False,
    tls: bool = False,
) -> PageApplication:
    """The application that shows the runs of a state."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(state.watch())
        try:
            yield
        finally:
            state.close()
            await watching
            state.end()

    traffic = Traffic()
    subjects = (pages, lists, comparing, runs, logs, checkpoints, searches)
    routes = [*(route for subject in subjects for route in subject.ROUTES), metrics_route(state, traffic)]
    traffic.know(routes)
    app = PageApplication(routes=routes, lifespan=lifespan, exception_handlers={404: not_found, 405: wrong_method})
    app.router.redirect_slashes = False
    app.guard = PageGuard(
        app.routed, token=token, loopback=loopback, allowed_hosts=allowed_hosts, log=access_log, tls=tls
    )
    app.traffic = traffic
    app.state.page = state
    app.state.page_token = app.guard.page_token
    return app
