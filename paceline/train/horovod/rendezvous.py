"""The place where the workers of one attempt find each other: Horovod's rendezvous server, for them only.

Importing this module imports Horovod's launcher (not PyTorch, not TensorFlow): whoever hosts it does so when workers
start.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import selectors
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from paceline.engine.places import LOOPBACK
from paceline.train.horovod.backend import Slot


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


class _RendezvousServer(RendezvousHTTPServer):  # type: ignore[misc]  # the same
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
        is_here = ipaddress.ip_address(address).is_loopback or address == self.server_address[0]
        return not is_here or is_of_this_user(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed breaks off its request: it is reported as the worker's failure."""


class Rendezvous:
    """A running server with an empty store; `close` ends it at once, whoever is connected."""

    def __init__(self, slots: Sequence[Slot], addresses: Iterable[str] = (LOOPBACK,), own: str = LOOPBACK) -> None:
        """`addresses` are those of the workers' machines, `own` is that of this one. On this one, only processes of
        this user are admitted."""
        self._server = _RendezvousServer((own, 0), _Handler, 0)
        self._server.addresses = frozenset(addresses)
        self._server.init([SlotInfo(*dataclasses.astuple(slot)) for slot in slots])
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


# -- who asks --------------------------------------------------------------------------------------


_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
"""Of a netlink message: length, type, flags, sequence, port."""
_ALL_STATES = _NO_COOKIE = 0xFFFFFFFF
_OWNER = struct.Struct("=II")
_OWNER_AT = _HEADER.size + 64
"""In the answer: the user and the inode, behind the state, the two addresses and the queues."""
_SOCKETS = Path("/proc/net/tcp")

Address = tuple[str, int]


def is_of_this_user(accepted: socket.socket) -> bool:
    """Whether the other end of an accepted connection was opened by a process of this user that still has it.

    Where the kernel cannot be asked (no Linux), everybody passes.
    """
    try:
        there, here = accepted.getpeername(), accepted.getsockname()
    except OSError:  # it is gone again
        return False
    try:
        owner = _asked(there, here)
    except OSError:  # this kernel has no such interface
        owner = _looked_up(there, here)
    return owner is None or owner == os.geteuid()


NOBODY = -1
"""The process is gone, or was never seen: the kernel shows sockets without an owner as root's."""


def _asked(there: Address, here: Address) -> int | None:
    """By a question about this one socket: on a busy machine the table of all takes 20 ms to read."""
    if not sys.platform.startswith("linux"):
        return None
    addresses = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (there, here))
    question = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ALL_STATES)
    question += struct.pack("!HH", there[1], here[1]) + addresses + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        raise OSError(-code, os.strerror(-code))
    user, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return int(user) if inode else NOBODY


def _looked_up(there: Address, here: Address) -> int | None:
    pair = f"{_shown(there)} {_shown(here)} "
    try:
        lines = _SOCKETS.read_text().splitlines()
    except OSError:
        return None
    fields = next((line.split() for line in lines if pair in line), None)
    return int(fields[7]) if fields is not None and fields[9] != "0" else NOBODY


def _shown(address: Address) -> str:
    """As the table has it."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"
