"""The HTTP server around an application: its socket, its thread, its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import Any, Self

import uvicorn

from paceline.air.errors import EngineError
from paceline.web.connection import LAST_REQUEST_SECONDS, Connection, connection_class
from paceline.web.door import BACKLOG, url_of
from paceline.web.limits import ConnectionLimits

START_SECONDS = 30.0
STOP_MARGIN_SECONDS = 5.0
ACCEPT_SECONDS = 1.0
"""Clients that keep coming cannot keep a server from ending."""


class _HttpServer(uvicorn.Server):
    """Records signals and leaves acting on them to its caller. Answers all clients that connected before the end."""

    signalled: int | None = None

    def __init__(
        self,
        config: uvicorn.Config,
        connections: type[Connection],
        tls: ssl.SSLContext | None,
        on_stop: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._tls = tls
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, with a limit on the handshake: until it has ended, no other limit holds."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise EngineError("The server's application did not start; its log says why.")
        seconds = None if self._tls is None else self._connections.limits.header_timeout_s
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._connection, sock=each, ssl=self._tls, backlog=BACKLOG, ssl_handshake_timeout=seconds
            )
            for each in sockets or []
        ]
        self.started = True

    def _connection(self) -> Connection:
        return self._connections(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._accept_all(sockets or [])
        self._connections.stopping = True
        if self._on_stop is not None:
            self._on_stop()
        await super().shutdown(sockets)

    async def _accept_all(self, sockets: list[socket.socket]) -> None:
        """Clients for whom the kernel has accepted a connection would be reset when the socket is closed."""
        await self._let_loop_work()
        waiting = select.poll()
        for each in sockets:
            waiting.register(each, select.POLLIN)
        deadline = time.monotonic() + ACCEPT_SECONDS
        while waiting.poll(0) and time.monotonic() < deadline:
            await self._let_loop_work()

    async def _let_loop_work(self) -> None:
        """It accepts; makes a connection; reads what has arrived there."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def _wait_tasks_to_complete(self) -> None:
        if self._connections.coming:
            gc.collect()  # those whose handshake has failed are garbage that refers to itself
        deadline = time.monotonic() + LAST_REQUEST_SECONDS
        while self._connections.coming and not self.force_exit and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await super()._wait_tasks_to_complete()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # asked twice: do not wait for what is under way
            self.force_exit = True
        self.should_exit = True
        self.signalled = self.signalled or sig


def make_server(
    app: Any, limits: ConnectionLimits, tls: ssl.SSLContext | None, on_stop: Callable[[], None] | None = None
) -> _HttpServer:
    """A server for an application. `on_stop` ends what would go on for as long as its client likes."""
    connections = connection_class(limits)
    config = uvicorn.Config(
        app,
        http=connections,
        ws="none",
        loop="uvloop" if find_spec("uvloop") else "asyncio",
        lifespan="on",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]  # any number of seconds will do
        timeout_graceful_shutdown=int(limits.request_timeout_s + STOP_MARGIN_SECONDS),
        limit_concurrency=limits.max_connections,
    )
    return _HttpServer(config, connections, tls, on_stop)


def run_here(
    app: Any,
    limits: ConnectionLimits,
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal, and finish what is under way.

    Ctrl-C ends in KeyboardInterrupt, SIGTERM in SystemExit(0): the process ends as it was asked to, and `finally`
    blocks run.
    """
    server = make_server(app, limits, tls, on_stop)
    server.run(sockets=[listening])
    if server.signalled == signal.SIGINT:
        raise KeyboardInterrupt
    if server.signalled is not None:
        sys.exit(0)


class BackgroundServer:
    """A server in a thread of this process; `stop()` or the end of a `with` block ends it."""

    def __init__(
        self,
        app: Any,
        limits: ConnectionLimits,
        listening: socket.socket,
        token: str | None,
        tls: ssl.SSLContext | None = None,
        *,
        thread_name: str,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self.url = url_of(listening, tls)
        self.token = token
        self._pid = os.getpid()
        self._server = make_server(app, limits, tls, on_stop)
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening,), name=thread_name, daemon=True)
        self._thread.start()
        self._wait_until_started()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Answer what is under way and end."""
        if os.getpid() != self._pid:
            return  # a fork of the process that has the server
        atexit.unregister(self.stop)
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> str:
        return "ended" if self._ended.is_set() else "running"

    def _serve(self, listening: socket.socket) -> None:
        try:
            self._server.run(sockets=[listening])
        except BaseException as error:
            self._failure = error
        finally:
            self._ended.set()

    def _wait_until_started(self) -> None:
        waited = 0.0
        while not self._server.started:
            if self._ended.wait(0.005):
                raise EngineError(f"The server did not start: {self._failure!r}") from self._failure
            waited += 0.005
            if waited > START_SECONDS:
                self._server.should_exit = True
                raise EngineError(f"The server did not start within {START_SECONDS:g} s.")
