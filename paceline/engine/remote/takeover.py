"""One agent per driver and node: a new one ends the one before it, which may not know yet that it was given up."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import struct
import time

from paceline.air.errors import EngineError
from paceline.engine.remote import messages

TAKEOVER_WAIT_S = 10.0
TAKEOVER_PAUSE_S = 0.02
PEER = struct.Struct("3i")
"""struct ucred: process id, user, group."""


def take_place(settings: messages.AgentSettings) -> socket.socket | None:
    """Wait until no other agent of this driver is on this node. A connection to the socket that is returned means that
    another agent wants the place. The driver's agents know its name, and nobody else does."""
    if not settings.node:
        return None
    name = "\0paceline-agent-" + hashlib.sha256(settings.token + settings.node.encode()).hexdigest()
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    began = time.monotonic()
    while True:
        try:
            place.bind(name)
        except OSError:
            waited_s = time.monotonic() - began
            if waited_s > TAKEOVER_WAIT_S:
                place.close()
                raise EngineError("an earlier agent on this machine does not end") from None
            _ask_to_leave(name, must=waited_s > TAKEOVER_WAIT_S / 2)
        else:
            place.listen()
            return place
        time.sleep(TAKEOVER_PAUSE_S)


def _ask_to_leave(name: str, must: bool) -> None:
    """A connection is all that an agent needs to know. One that is stopped, say, must be killed."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as earlier:
        earlier.setblocking(False)
        earlier.connect(name)
        if must:
            pid, _, _ = PEER.unpack(earlier.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            os.kill(pid, signal.SIGKILL)
