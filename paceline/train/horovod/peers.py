"""Which user is at the other end of a connection on this machine, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

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
