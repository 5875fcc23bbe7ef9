"""view.dash: the page of a directory or URI, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import webbrowser
from collections.abc import Iterable
from typing import Any

from paceline.air.checks import check_bool
from paceline.air.errors import ConfigError
from paceline.run.found_runs import does_not_exist
from paceline.storage.run_dir import default_storage_root
from paceline.view.page.app import PageApplication, application
from paceline.view.page.state import PageState
from paceline.web.door import Door, Token, bind, checked_hosts, open_door, url_of
from paceline.web.limits import ConnectionLimits
from paceline.web.server import BackgroundServer, run_here
from paceline.web.tls import tls_context

PORT = 8686


class PageServer(BackgroundServer):
    """The server that `dash(..., blocking=False)` returns: `.url` to look at, `.link` with the token, `.stop()`."""

    root: str

    @property
    def link(self) -> str:
        """The address with the token, which a browser exchanges for a cookie."""
        return _link(self.url, self.token)

    def __repr__(self) -> str:
        return f"PageServer({self.url!r}, {self.root!r}, {self.state})"


def dash(
    path: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: Token = None,
    certfile: str | os.PathLike[str] | None = None,
    keyfile: str | os.PathLike[str] | None = None,
    blocking: bool = True,
    open_browser: bool = False,
    read_only: bool = False,
    filesystem: Any = None,
    allowed_hosts: Iterable[str] = (),
    access_log: bool = False,
) -> PageServer | None:
    """Show runs and searches in a browser.

    `path` is a results directory, an experiment, a run, a search, or a URI of one of these; without it, the directory
    where results go by default. With `blocking=False` the server runs in a thread and is returned: `.link`, `.url`,
    `.token`, `.stop()`.

    Every request needs the token: `token` is one of your own, None makes one, False needs none and is allowed on
    loopback only. The link has it. Without `port` it is 8686, or another one if that is in use. The page changes
    nothing, except that it can ask a live run to stop, and for the stacks of its ranks; `read_only=True` forbids that.
    """
    check_bool(blocking, "blocking")
    check_bool(read_only, "read_only")
    if blocking and asyncio._get_running_loop() is not None:
        raise ConfigError("In a notebook, or inside of a coroutine, use dash(..., blocking=False).")
    place = os.fspath(path) if path is not None else str(default_storage_root())
    missing = does_not_exist(place, filesystem, "results, of a run or of a search") if path is not None else None
    if missing is not None:
        raise missing
    door = open_door(host, PORT if port is None else port, token)
    tls = tls_context(certfile, keyfile)
    limits = ConnectionLimits()
    listening = _listening(door, port)
    try:
        state = PageState(place, filesystem, read_only=read_only)
        app = application(
            state,
            token=door.token,
            loopback=door.loopback,
            allowed_hosts=[*checked_hosts(allowed_hosts), host],
            access_log=access_log,
            tls=tls is not None,
        )
        if not blocking:
            server = PageServer(
                app, limits, listening, door.token, tls, thread_name="paceline-dash", on_stop=state.close
            )
            server.root = state.root
            if open_browser:
                _open_browser(app, listening, tls)
            return server
        _announce(state.root, _link(url_of(listening, tls), door.token), door.token)
        if open_browser:
            _open_browser(app, listening, tls)  # the socket accepts already; the answer comes when the server runs
        run_here(app, limits, listening, tls, on_stop=state.close)
    except BaseException:
        listening.close()
        raise
    return None


def _listening(door: Door, port: int | None) -> socket.socket:
    """On the port that was asked for; if none was, on the usual one, or on another if that is in use."""
    if port is None:
        with contextlib.suppress(ConfigError):
            return bind(door.address, door.port)
        return bind(door.address, 0)
    return bind(door.address, port)


def _open_browser(app: PageApplication, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Not with the token: every user of this machine can see the arguments that a browser is started with."""
    webbrowser.open(_link(url_of(listening, tls), app.guard.new_ticket()))


def _link(url: str, token: str | None) -> str:
    return url if token is None else f"{url}/?token={token}"


def _announce(root: str, link: str, token: str | None) -> None:
    from paceline.run.display import GuardedWriter, printable

    lines = [f"The runs in {root}: {link}"]
    if token is None:
        lines.append("No token is needed: every process and user of this machine can look at them.")
    lines.append("Ctrl-C ends the server.")
    GuardedWriter(sys.stdout).write("".join(f"{printable(line)}\n" for line in lines))
