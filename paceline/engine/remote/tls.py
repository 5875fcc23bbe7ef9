"""Encrypted connections, where the cluster has certificates. Both sides must show one that the authority has signed.

The rest of the engine talks in the clear, to a socket of its own machine: a thread of this process encrypts what goes
in there and decrypts what comes back. So a worker can be given such a socket as if it were the connection itself.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Sequence

from paceline.air.errors import EngineError
from paceline.engine.remote.forks import not_for_children

CHUNK_BYTES = 64 * 1024
AHEAD_BYTES = 256 * 1024
"""While so much waits to be written on one side, the other side is not read."""
FDS_PER_CONNECTION = 3
"""The socket to the network, and two to pass on what is decrypted."""
LOOPBACK = "127.0.0.1"


class TlsRelay:
    """One thread serves all encrypted connections of a process."""

    def __init__(self, certificate: str, key: str, authority: str) -> None:
        """The paths of files in PEM format."""
        self._contexts = {
            True: _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority),
            False: _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority),
        }
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="paceline-tls", daemon=True).start()

    @classmethod
    def from_variables(cls, names: Sequence[str]) -> TlsRelay:
        """Each machine has its own files: these variables name certificate, key and authority."""
        paths = [os.environ.get(name, "") for name in names]
        for name, path in zip(names, paths, strict=True):
            if not os.access(path, os.R_OK):
                found = f"{path} cannot be read" if path else "it is not set"
                raise EngineError(
                    f"{name} must name a file for encrypted connections on {socket.gethostname()}: {found}"
                )
        try:
            return cls(*paths)
        except (OSError, ssl.SSLError) as error:
            raise EngineError(f"the files in {', '.join(names)} do not belong together: {error}") from error

    def encrypt(self, sock: socket.socket, *, is_server: bool) -> socket.socket:
        """The near end of an encrypted connection; what is at the far end must prove itself before anything passes.

        A connection of the family AF_INET on purpose: it says that no descriptors can be passed.
        """
        near, far = _loopback_pair()
        not_for_children(far)
        connection = _Connection(sock, far, self._contexts[is_server], is_server)
        connection.advance(self._selector)
        return near

    def _serve(self) -> None:
        while self._selector.get_map():
            # Both ends of a connection may be ready: once is enough.
            for connection in {key.data for key, _ in self._selector.select()}:
                if connection is None:
                    self._selector.unregister(self._woken)
                else:
                    connection.advance(self._selector)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def close(self) -> None:
        """Nobody encrypts anything more: the thread ends with the last connection."""
        with contextlib.suppress(OSError):  # It has ended.
            self._waker.send(b"\0")


class _Connection:
    """What is on its way between the network and the far end of the socket that this process uses."""

    def __init__(self, network: socket.socket, far: socket.socket, context: ssl.SSLContext, is_server: bool) -> None:
        self._network = network
        self._far = far
        for sock in (network, far):
            sock.setblocking(False)
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=is_server)
        self._is_proven = False
        self._from_far, self._to_network, self._to_far = bytearray(), bytearray(), bytearray()
        self._ended: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def advance(self, selector: selectors.BaseSelector) -> None:
        """Pass on what can be passed on without waiting; then wait for what is missing."""
        with self._lock:
            if not self._is_closed:
                self._advance(selector)

    def _advance(self, selector: selectors.BaseSelector) -> None:
        try:
            self._pass_on()
        except ssl.SSLError:  # The other side has not proven itself, or talks nonsense.
            self._tell_why()
            self._ended.update((self._network, self._far))
            self._to_far.clear()
        if self._is_over:
            self._is_closed = True
            for sock in (self._network, self._far):
                _watch(selector, sock, 0, self)
                sock.close()
            return
        reads_far = len(self._from_far) + len(self._to_network) < AHEAD_BYTES
        self._watch(selector, self._far, reads_far, self._to_far)
        self._watch(selector, self._network, len(self._to_far) < AHEAD_BYTES, self._to_network)

    def _watch(self, selector: selectors.BaseSelector, sock: socket.socket, reads: bool, unsent: bytearray) -> None:
        read = selectors.EVENT_READ if reads and sock not in self._ended else 0
        _watch(selector, sock, read | (selectors.EVENT_WRITE if unsent else 0), self)

    @property
    def _is_over(self) -> bool:
        if self._network in self._ended:
            return not self._to_far
        return self._far in self._ended and not (self._is_proven and (self._from_far or self._to_network))

    def _pass_on(self) -> None:
        if len(self._to_far) < AHEAD_BYTES:
            self._received.write(self._read(self._network))
        if len(self._from_far) + len(self._to_network) < AHEAD_BYTES:
            self._from_far += self._read(self._far)
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._is_proven:
                self._tls.do_handshake()
                self._is_proven = True
            if self._from_far:
                del self._from_far[: self._tls.write(self._from_far)]
            while data := self._tls.read(CHUNK_BYTES):
                self._to_far += data
        self._to_network += self._to_send.read()
        self._write(self._network, self._to_network)
        self._write(self._far, self._to_far)

    def _read(self, sock: socket.socket) -> bytes:
        if sock in self._ended:
            return b""
        try:
            data = sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._ended.add(sock)
        return data

    def _write(self, sock: socket.socket, unsent: bytearray) -> None:
        try:
            while unsent:
                del unsent[: sock.send(unsent)]
        except BlockingIOError:
            pass
        except OSError:  # Nobody reads there any more; but what was sent from there before may still be unread.
            unsent.clear()

    def _tell_why(self) -> None:
        with contextlib.suppress(OSError):
            self._network.send(self._to_send.read())


def _watch(selector: selectors.BaseSelector, sock: socket.socket, events: int, connection: _Connection) -> None:
    is_watched = sock.fileno() in selector.get_map()
    if events and is_watched:
        selector.modify(sock, events, connection)
    elif events:
        selector.register(sock, events, connection)
    elif is_watched:
        selector.unregister(sock)


def _context(protocol: int, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # Machines of a cluster have addresses that come and go; the authority is its own.
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    return context


def _loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends on this machine."""
    with socket.create_server((LOOPBACK, 0)) as server:
        near = socket.create_connection(server.getsockname())
        try:
            while True:
                far, address = server.accept()
                if address == near.getsockname():  # Somebody else may have been faster.
                    break
                far.close()
        except BaseException:
            near.close()
            raise
    for sock in (near, far):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far
