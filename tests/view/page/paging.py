"""What the tests of the page share: a server over a directory, and a client that reads its stream."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from paceline.view import dash
from paceline.view.page.start import PageServer
from tests.web.client import PATIENCE, Answer, Client

TOKEN = "a-token-for-the-tests-of-the-page"


@dataclass
class Page(Client):
    """A page's server, as a client sees it."""

    running: PageServer
    cookie: str = field(default="", init=False)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer that must be there."""
        answer = self.ask("GET", f"/api/{path}" + (f"?{urlencode(query, doseq=True)}" if query else ""))
        assert answer.status == 200, answer.body
        return answer.json

    def refused(self, path: str, status: int, **query: Any) -> str:
        answer = self.ask("GET", f"/api/{path}" + (f"?{urlencode(query, doseq=True)}" if query else ""))
        assert answer.status == status, answer.body
        return answer.reason

    def entries(self) -> dict[str, dict[str, Any]]:
        """The list, by the names of its entries' directories."""
        found = self.get("list")
        entries = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
        return {entry["path"]: entry for entry in entries}

    def id_of(self, path: str) -> str:
        return str(self.entries()[path]["id"])

    def log_in(self) -> Answer:
        """Exchange the token for the cookie, as a browser does."""
        answer = self.ask("GET", f"/?token={self.running.token}", token=None)
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def as_browser(self, method: str, path: str, **headers: str) -> Answer:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(method, path, headers={"Cookie": self.cookie, **more}, token=None)

    @contextlib.contextmanager
    def stream(self, last_id: str = "", **wishes: Any) -> Iterator[Events]:
        query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in wishes.items()}
        with self.connect() as connection:
            last = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
            connection.sendall(
                f"GET /api/live?{urlencode(query)} HTTP/1.1\r\nHost: 127.0.0.1\r\n{last}"
                f"Authorization: Bearer {self.running.token}\r\n\r\n".encode()
            )
            events = Events(connection)
            assert events.head.startswith(b"HTTP/1.1 200"), events.head
            yield events


class Events:
    """The events of a stream, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self.head = self._until(b"\r\n\r\n")
        self.last_id = ""

    def next(self, name: str) -> Any:
        """The data of the next event of a kind; others are passed over."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, f"there was no event {name}"
            event = self._event()
            fields = dict(line.split(": ", 1) for line in event.splitlines() if ": " in line)
            self.last_id = fields.get("id", self.last_id)
            if fields.get("event") == name:
                return json.loads(fields["data"])

    def _event(self) -> str:
        content = b""
        while not content.endswith(b"\n\n"):
            size = int(self._until(b"\r\n"), 16)
            assert size, "the stream has ended"
            while len(self._buffer) < size + 2:
                self._more()
            content += self._buffer[:size]
            self._buffer = self._buffer[size + 2 :]
        *before, last = content[:-2].split(b"\n\n")
        if before:  # several events in one piece
            again = b"".join(b"%x\r\n%b\n\n\r\n" % (len(each) + 2, each) for each in (*before[1:], last))
            self._buffer = again + self._buffer
            return before[0].decode()
        return last.decode()

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(end)
        return found

    def _more(self) -> None:
        piece = self._connection.recv(65536)
        assert piece, "the server closed the connection"
        self._buffer += piece


@contextlib.contextmanager
def showing(path: Path | str, *, token: Any = TOKEN, **settings: Any) -> Iterator[Page]:
    """A page over a directory, on a free port of loopback."""
    running = dash(path, port=0, token=token, blocking=False, **settings)
    assert running is not None
    with running:
        yield Page(running)
