"""A TCP proxy in front of a server, which a test can make slow, silent or broken."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_REASONS = {"403": b"Forbidden", "503": b"Slow Down"}
_CODES = {"403": b"AccessDenied", "503": b"SlowDown"}
_REQUEST = re.compile(rb"^(GET|PUT|POST|DELETE|HEAD) (\S+) HTTP/1\.[01]\r\n")


@dataclass
class Request:
    """One that came through, or was meant to."""

    method: str
    path: str
    time: float = field(default_factory=time.monotonic)


class ChaosProxy:
    """`trouble(request)` says what happens to it: "" nothing, "refuse", "reset", "403", "503", "half-close" or
    "hang".

    Each connection carries one request: clients are told to close it afterwards by the answer, or open another one.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._server = (str(parts.hostname), int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.trouble: Callable[[Request], str] = lambda request: ""
        self.latency_s = 0.0
        self.requests: list[Request] = []
        """All that were heard, in order."""
        self.passed: list[Request] = []
        """Those without trouble."""
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="chaos-proxy", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._listener.close()

    def names(self, method: str, ending: str) -> list[str]:
        """The last two parts of the paths that passed, by method and how they end."""
        found = (request.path for request in self.passed if request.method == method)
        return ["/".join(path.split("/")[-2:]) for path in found if path.endswith(ending)]

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Look at what the client sends: where a request begins, the trouble of that request applies."""
        with client, contextlib.suppress(OSError):
            server: socket.socket | None = None
            try:
                while data := client.recv(1 << 16):
                    if (found := _REQUEST.match(data)) is not None:
                        request = Request(found[1].decode(), unquote(found[2].decode()).partition("?")[0])
                        self.requests.append(request)
                        time.sleep(self.latency_s)
                        trouble = self.trouble(request)
                        if trouble:
                            self._make(trouble, client, server, data)
                            return
                        self.passed.append(request)
                    if server is None:
                        server = socket.create_connection(self._server)
                        threading.Thread(target=self._answer, args=[server, client], daemon=True).start()
                    server.sendall(data)
            finally:
                if server is not None:
                    with contextlib.suppress(OSError):
                        server.shutdown(socket.SHUT_RDWR)  # the other thread is reading from it
                    server.close()

    def _make(self, trouble: str, client: socket.socket, server: socket.socket | None, data: bytes) -> None:
        if trouble in _REASONS:
            self._swallow(client, data)
            head = b"HTTP/1.1 " + trouble.encode() + b" " + _REASONS[trouble]
            body = b"<Error><Code>" + _CODES[trouble] + b"</Code><Message>as S3 says it</Message></Error>"
            closed = b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
            client.sendall(head + closed + (b"" if data.startswith(b"HEAD") else body))
        elif trouble == "half-close":  # no answer will come, and the client may go on talking
            client.shutdown(socket.SHUT_WR)
            self._swallow(client, data)
        elif trouble == "hang":
            self._closed.wait()
        else:
            if trouble == "reset":  # in the middle of the body
                self._invite(client, data)
                client.settimeout(1.0)
                with contextlib.suppress(TimeoutError):  # a short body came with its request
                    client.recv(1 << 12)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    @staticmethod
    def _invite(client: socket.socket, data: bytes) -> None:
        """Some clients send the body only after they were told to."""
        if b"100-continue" in data.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    @staticmethod
    def _swallow(client: socket.socket, data: bytes) -> None:
        """Read the rest of a request, so that the answer is not lost in a reset."""
        length = re.search(rb"(?i)content-length: (\d+)", data)
        if b"100-continue" in data.lower():  # the client waits for an answer, and takes this one
            return
        left = int(length[1]) - len(data.partition(b"\r\n\r\n")[2]) if length else 0
        while left > 0 and (more := client.recv(1 << 16)):
            left -= len(more)

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def chaos_proxy(endpoint: str) -> Iterator[ChaosProxy]:
    proxy = ChaosProxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
