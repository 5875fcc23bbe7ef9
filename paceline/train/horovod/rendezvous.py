"""The place where the workers of one attempt find each other: Horovod's rendezvous server, for this machine only.

Importing this module imports Horovod's launcher (not PyTorch, not TensorFlow): the driver does so when workers start.
"""

from __future__ import annotations

import ipaddress
import selectors
import socket
import socketserver
import threading
from collections.abc import Iterable
from typing import Any

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from paceline.train.horovod.config import HOST, LOOPBACK
from paceline.train.horovod.peers import is_of_this_user


class _Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
    """Horovod's own requests only. Its class also answers with the names of files in the working directory, and
    has a traceback for paths that it does not know."""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command in ("GET", "PUT", "DELETE") and self.path.count("/") == 2:
            return True
        self.send_error(400)
        return False


class _Server(RendezvousHTTPServer):  # type: ignore[misc]  # the same
    addresses: frozenset[str]
    """Where the workers of the group are."""
    daemon_threads = True
    request_queue_size = socket.SOMAXCONN
    """All workers come at once."""
    timeout = 0
    """A connection that is gone again before it was taken is not waited for."""

    def server_bind(self) -> None:
        """Without looking up the name of the address, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whoever writes to the store decides whom the workers connect with."""
        address = client_address[0]
        if address not in self.addresses:
            return False
        return not ipaddress.ip_address(address).is_loopback or is_of_this_user(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed breaks off its request: that is told as the failure of the worker."""


class Rendezvous:
    """A running server with an empty store; `close` ends it at once, whoever is connected."""

    def __init__(self, world_size: int, addresses: Iterable[str] = (LOOPBACK,)) -> None:
        """`addresses` are those of the workers' machines. On this one, only processes of this user are admitted."""
        self._server = _Server((LOOPBACK, 0), _Handler, 0)
        self._server.addresses = frozenset(addresses)
        self._server.init([SlotInfo(HOST, rank, rank, 0, world_size, world_size, 1) for rank in range(world_size)])
        self.port: int = self._server.server_port
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="horovod-rendezvous", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Wait without a clock: the end of an attempt is not delayed until the next look at a flag."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                if any(key.fileobj is self._woken for key, _ in selector.select()):
                    return
                self._server.handle_request()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._woken.close()
        self._server.server_close()
