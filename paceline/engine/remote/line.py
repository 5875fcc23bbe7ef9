"""How agents and workers of other machines connect to the driver, and how both sides know whom they talk to.

The driver listens, everybody else dials. Both prove that they know the driver's token, which itself is never sent:

    dialler   who I am, and a number of mine that nobody used before
    driver    a number of my own, and a digest of everything so far, keyed with the token
    dialler   another digest of the same

Whatever is not exactly that is hung up on. All of it is encrypted if the cluster has certificates (`tls`), and nothing
of it otherwise.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.air.errors import EngineError
from paceline.engine.reactor import Reactor
from paceline.engine.remote.tls import TlsRelay

MAGIC: Final = b"PCL1"
NONCE_BYTES: Final = 16
DIGEST_BYTES: Final = 32
HELLO: Final = struct.Struct(f"<4sBII{NONCE_BYTES}s")
ANSWER_BYTES: Final = NONCE_BYTES + DIGEST_BYTES
GREETING_S: Final = 10.0
"""How long a connection may take to prove itself."""
MOST_STRANGERS: Final = 4096
"""Connections that have not proven themselves; beyond it, the oldest are hung up on."""
MOST_DIALLING: Final = 8
"""Of the workers of one node, so many dial at once: hundreds of nodes together stay below MOST_STRANGERS."""
MOST_AT_ONCE: Final = 64
"""Connections that are taken before somebody else is served."""
BACKLOG: Final = 4096
"""Also while the driver is stopped, agents find out by a connection that its machine is there."""

AGENT: Final = 0
WORKER: Final = 1

_not_for_children: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _hang_up_in_child() -> None:
    """What a child of the driver keeps open would hide the driver's end from agents and workers."""
    for sock in list(_not_for_children):
        sock.close()


os.register_at_fork(after_in_child=_hang_up_in_child)


@dataclass(frozen=True)
class Caller:
    """Whose connection it is: an agent by its number, a worker by its group and rank."""

    kind: int
    number: int
    rank: int = 0


def _digest(token: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, side + hello + nonce, "sha256")


def _without_delay(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def dial(
    address: tuple[str, int], token: bytes, caller: Caller, tls: TlsRelay | None = None, timeout: float = GREETING_S
) -> socket.socket:
    """A connection on which both sides have proven themselves. Raises OSError, or EngineError for a false driver."""
    sock = socket.create_connection(address, timeout=timeout)
    try:
        _without_delay(sock)
        if tls is not None:
            sock = tls.encrypt(sock, is_server=False)
            sock.settimeout(timeout)
        hello = HELLO.pack(MAGIC, caller.kind, caller.number, caller.rank, os.urandom(NONCE_BYTES))
        sock.sendall(hello)
        answer = _receive(sock, ANSWER_BYTES)
        nonce, digest = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(digest, _digest(token, b"driver", hello, nonce)):
            raise EngineError(f"what listens at {address[0]}:{address[1]} is not the driver of this run")
        sock.sendall(_digest(token, b"caller", hello, nonce))
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("the driver hung up")
        data += part
    return data


class _Stranger:
    """A connection that has not proven itself."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.since = time.monotonic()
        self.received = b""
        self.nonce = os.urandom(NONCE_BYTES)
        self.is_answered = False

    @property
    def hello(self) -> bytes:
        return self.received[: HELLO.size]

    @property
    def proof(self) -> bytes:
        return self.received[HELLO.size :]

    @property
    def caller(self) -> Caller:
        _, kind, number, rank, _ = HELLO.unpack(self.hello)
        return Caller(kind, number, rank)


class Listener:
    """Takes connections without ever waiting for one; calls back for those that have proven themselves."""

    def __init__(
        self,
        host: str,
        token: bytes,
        reactor: Reactor,
        on_connected: Callable[[Caller, socket.socket], None],
        tls: TlsRelay | None = None,
    ) -> None:
        self._tls = tls
        self._token = token
        self._reactor = reactor
        self._on_connected = on_connected
        self._strangers: dict[int, _Stranger] = {}
        self._sock = socket.create_server((host, 0), backlog=BACKLOG)
        _not_for_children.add(self._sock)
        self._sock.setblocking(False)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        reactor.add(self._sock.fileno(), lambda _mask: self._accept())

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
                _without_delay(sock)
            except OSError:  # There is none, it has hung up meanwhile, or there are too many open files.
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        _not_for_children.add(sock)
        if self._tls is not None:
            try:
                sock = self._tls.encrypt(sock, is_server=True)
            except OSError:  # There are too many open files.
                sock.close()
                return
            _not_for_children.add(sock)
        sock.setblocking(False)
        self._forget_old_strangers()
        stranger = self._strangers[sock.fileno()] = _Stranger(sock)
        self._reactor.add(sock.fileno(), lambda _mask: self._on_bytes(stranger))

    def _forget_old_strangers(self) -> None:
        now = time.monotonic()
        for stranger in list(self._strangers.values()):  # The oldest first.
            if now - stranger.since < GREETING_S and len(self._strangers) < MOST_STRANGERS:
                return
            self._hang_up(stranger)

    def _release(self, stranger: _Stranger) -> None:
        self._reactor.remove(stranger.sock.fileno())
        self._strangers.pop(stranger.sock.fileno(), None)

    def _hang_up(self, stranger: _Stranger) -> None:
        self._release(stranger)
        stranger.sock.close()

    def _on_bytes(self, stranger: _Stranger) -> None:
        expected = HELLO.size + (DIGEST_BYTES if stranger.is_answered else 0)
        try:
            part = stranger.sock.recv(expected - len(stranger.received))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        stranger.received += part
        if not part or not MAGIC.startswith(stranger.received[: len(MAGIC)]):
            self._hang_up(stranger)
        elif len(stranger.received) == expected:
            self._on_proof(stranger) if stranger.is_answered else self._answer(stranger)

    def _answer(self, stranger: _Stranger) -> None:
        stranger.is_answered = True
        answer = stranger.nonce + _digest(self._token, b"driver", stranger.hello, stranger.nonce)
        try:
            sent = stranger.sock.send(answer)
        except OSError:
            sent = 0
        if sent != len(answer):  # An empty buffer takes it, so the connection is gone.
            self._hang_up(stranger)

    def _on_proof(self, stranger: _Stranger) -> None:
        if not hmac.compare_digest(stranger.proof, _digest(self._token, b"caller", stranger.hello, stranger.nonce)):
            self._hang_up(stranger)
            return
        self._release(stranger)
        stranger.sock.setblocking(True)
        self._on_connected(stranger.caller, stranger.sock)

    def close(self) -> None:
        for stranger in list(self._strangers.values()):
            self._hang_up(stranger)
        self._reactor.remove(self._sock.fileno())
        self._sock.close()
