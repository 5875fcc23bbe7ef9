"""A network between an agent and its driver that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Network:
    """Forwards connections to an address. After `cut` nothing arrives any more, and nobody is told."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._is_cut = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._socks: list[socket.socket] = []
        self.seen = bytearray()
        """Everything that came this way."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._socks += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if self._is_cut.is_set():
                    return
                self.seen += data
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    def cut(self) -> None:
        self._is_cut.set()
        with contextlib.suppress(OSError):  # It was cut before.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def close(self) -> None:
        self.cut()
        for sock in self._socks:
            sock.close()
