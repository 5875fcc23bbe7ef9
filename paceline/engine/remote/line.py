"""How agents and workers of other machines connect to the driver, and how both sides know whom they talk to.

The driver listens, everybody else dials. Both prove that they know the driver's token, which itself is never sent:

    dialler   who I am, and a number of mine that nobody used before
    driver    a number of my own, and a digest of everything so far, keyed with the token
    dialler   another digest of the same

A connection that says anything else is closed. All of it is encrypted if the cluster has certificates (`tls`), and
nothing of it otherwise.
"""

from __future__ import annotations

import errno
import hmac
import os
import resource
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.air.errors import EngineError
from paceline.engine.reactor import Reactor
from paceline.engine.remote.forks import not_for_children
from paceline.engine.remote.tls import FDS_PER_CONNECTION, TlsRelay

MAGIC: Final = b"PCL1"
NONCE_BYTES: Final = 16
DIGEST_BYTES: Final = 32
HELLO: Final = struct.Struct(f"<4sBII{NONCE_BYTES}s")
ANSWER_BYTES: Final = NONCE_BYTES + DIGEST_BYTES
GREETING_S: Final = 10.0
"""How long a connection may take to prove itself."""
MOST_STRANGERS: Final = 4096
"""Connections that have not proven themselves; beyond it, the oldest are hung up on. They never get more than half of
the descriptors that this process may have."""
PATIENCE_S = 1.0
"""How long a connection may take to prove itself although others wait for its place."""
LOOK_AT_STRANGERS_S = 0.5
MOST_DIALLING: Final = 8
"""Of the workers of one node, so many dial at once: hundreds of nodes together stay below MOST_STRANGERS."""
MOST_AT_ONCE: Final = 64
"""Connections that are taken before somebody else is served."""
BACKLOG: Final = 4096
"""Also while the driver is stopped, agents find out that its machine is there: by a connection of each of them, which
waits to be accepted. The system may allow less (net.core.somaxconn)."""

AGENT: Final = 0
WORKER: Final = 1


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
        """`tls` is closed with it."""
        self._tls = tls
        self._token = token
        self._reactor = reactor
        self._on_connected = on_connected
        self._strangers: dict[int, _Stranger] = {}
        self._sock = socket.create_server((host, 0), backlog=BACKLOG)
        not_for_children(self._sock)
        self._sock.setblocking(False)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        self._is_accepting = False
        self._begin_to_accept()
        reactor.every(LOOK_AT_STRANGERS_S, self._look)

    def _begin_to_accept(self) -> None:
        if not self._is_accepting:
            self._is_accepting = True
            self._reactor.add(self._sock.fileno(), lambda _mask: self._accept())

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._reactor.remove(self._sock.fileno())

    def _look(self) -> None:
        """Nobody else may connect for hours: what is old goes by itself."""
        self._forget_old_strangers()
        self._begin_to_accept()

    def _accept(self) -> None:
        most = self._most_strangers()
        for _ in range(MOST_AT_ONCE):
            self._forget_old_strangers(most - 1)
            if len(self._strangers) >= most:  # All are new: most likely many workers start at once.
                self._stop_accepting()
            if not self._is_accepting:
                return
            try:
                sock, _ = self._sock.accept()
            except OSError as error:  # There is none, it has hung up meanwhile, or there are too many open files.
                self._relieve_if_full(error)
                return
            try:
                self._welcome(sock)
            except OSError as error:
                sock.close()
                self._relieve_if_full(error)

    def _most_strangers(self) -> int:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return MOST_STRANGERS
        each = 1 if self._tls is None else FDS_PER_CONNECTION
        return max(1, min(MOST_STRANGERS, limit // 2 // each))

    def _relieve_if_full(self, error: OSError) -> None:
        """If the descriptors are used up, who waits to be accepted would be announced over and over again."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._forget_old_strangers(len(self._strangers) // 2, patience_s=0.0)
            self._stop_accepting()

    def _welcome(self, sock: socket.socket) -> None:
        _without_delay(sock)
        not_for_children(sock)
        if self._tls is not None:
            sock = self._tls.encrypt(sock, is_server=True)
            not_for_children(sock)
        sock.setblocking(False)
        stranger = self._strangers[sock.fileno()] = _Stranger(sock)
        self._reactor.add(sock.fileno(), lambda _mask: self._on_bytes(stranger))

    def _forget_old_strangers(self, most: int = MOST_STRANGERS, patience_s: float = PATIENCE_S) -> None:
        now = time.monotonic()
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            if now - oldest.since < (GREETING_S if len(self._strangers) <= most else patience_s):
                return
            self._hang_up(oldest)

    def _release(self, stranger: _Stranger) -> None:
        self._reactor.remove(stranger.sock.fileno())
        self._strangers.pop(stranger.sock.fileno(), None)
        self._begin_to_accept()  # There is room for another.

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
        self._reactor.cancel(self._look)
        self._stop_accepting()
        self._sock.close()
        if self._tls is not None:
            self._tls.close()
