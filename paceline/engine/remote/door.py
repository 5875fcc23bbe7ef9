"""How an agent finds out whether the machine of a silent driver is still there."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time

_KNOCK = bytes(8)
"""Nothing that a connection begins with: a driver that hears it hangs up."""
_LOOK_S = 0.05


class Door:
    """Its machine takes what is sent to a driver that is stopped; one that is gone, or cut off, takes nothing.

    One connection is used for all knocks: a driver that is stopped accepts none, and the system keeps only so many for
    it.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    def knock(self, timeout: float) -> None:
        """Raises OSError if nobody is there."""
        if self._sock is not None:
            try:
                _send(self._sock, timeout / 2)
                return
            except OSError:  # The driver has hung up, or what is on the way has forgotten the connection.
                self._sock.close()
        self._sock = socket.create_connection(self._address, timeout=timeout / 2)
        self._sock.setblocking(False)
        _send(self._sock, timeout / 2)


def _send(sock: socket.socket, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    sock.send(_KNOCK)
    while _untaken(sock):
        if time.monotonic() > deadline:
            raise TimeoutError("what was sent is not confirmed")
        time.sleep(_LOOK_S)


def _untaken(sock: socket.socket) -> int:
    """How many bytes that were sent the other machine has not confirmed."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0])
