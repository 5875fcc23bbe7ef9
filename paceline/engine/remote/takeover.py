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
ASK_S = 0.25
"""How often the earlier agent is asked. One that is stopped accepts nothing, and after about a hundred connections the
system refuses more: then nobody could find out its process id any more."""
PEER = struct.Struct("3i")
"""struct ucred: process id, user, group."""


def take_place(settings: messages.AgentSettings) -> socket.socket | None:
    """Wait until no other agent of this driver is on this node. A connection to the socket that is returned may mean
    that another agent wants the place: `is_wanted` says whether it does."""
    if not settings.node:
        return None
    name = "\0paceline-agent-" + hashlib.sha256(settings.token + settings.node.encode()).hexdigest()
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    began = time.monotonic()
    asked_at = float("-inf")
    while True:
        try:
            place.bind(name)
        except OSError:
            waited_s = time.monotonic() - began
            if waited_s > TAKEOVER_WAIT_S:
                place.close()
                raise EngineError("an earlier agent on this machine does not end") from None
            if time.monotonic() - asked_at > ASK_S:
                asked_at = time.monotonic()
                _ask_to_leave(name, must=waited_s > TAKEOVER_WAIT_S / 2)
        else:
            place.listen()
            place.setblocking(False)
            return place
        time.sleep(TAKEOVER_PAUSE_S)


def is_wanted(place: socket.socket) -> bool:
    """Whether a process of this user has connected. The system shows the names of such sockets to everybody."""
    while True:
        try:
            caller, _ = place.accept()
        except OSError:
            return False
        with caller:
            if _peer(caller)[1] == os.geteuid():
                return True


def _peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end; the process is 0 if this one cannot see it."""
    pid, user, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, user


def _ask_to_leave(name: str, must: bool) -> None:
    """A connection is all that an agent needs to know. One that is stopped, say, must be killed."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as earlier:
        earlier.setblocking(False)
        earlier.connect(name)
        pid, user = _peer(earlier)
        if must and pid > 0 and user == os.geteuid():
            os.kill(pid, signal.SIGKILL)
