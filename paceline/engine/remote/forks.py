"""Connections of the driver that its forked children must not keep open.

What a child keeps open hides the driver's end from agents and workers, and their ends from the driver.
"""

from __future__ import annotations

import os
import socket
import weakref

_not_for_children: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def not_for_children(sock: socket.socket) -> None:
    """Have it closed in every process that is forked from now on."""
    _not_for_children.add(sock)


def _hang_up_in_child() -> None:
    for sock in list(_not_for_children):
        sock.close()


os.register_at_fork(after_in_child=_hang_up_in_child)
