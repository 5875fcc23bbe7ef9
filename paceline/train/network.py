"""Where the workers of a group reach each other: addresses, ports and network interfaces.

On one machine that is the loopback address, which nobody else can reach; on several, the addresses of their nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from paceline.engine.places import LOOPBACK, WorkerPlace


def on_one_machine(places: Sequence[WorkerPlace]) -> bool:
    """Whether all workers are on one machine, which need not be the driver's."""
    return all(place.node.is_drivers for place in places) or len({place.node.node_id for place in places}) == 1


def addresses_of(places: Sequence[WorkerPlace]) -> list[str]:
    """By rank, where the other workers of the group reach it."""
    if on_one_machine(places):
        return [LOOPBACK] * len(places)
    return [place.node.address for place in places]


# In a worker: only that knows the ports, interfaces and routes of its machine.


def bound_socket(address: str, *, shared: bool = False) -> socket.socket:
    """A socket that holds a free port of this machine at the address, and does not listen yet.

    `shared` lets others of this user bind the same port if they ask for it.
    """
    held = socket.socket()
    if shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((address, 0))
    except OSError as error:
        held.close()
        raise _unusable(address, error) from error
    return held


def listening_socket(address: str) -> socket.socket:
    """A socket that listens at a free port of the address, for as many peers as may come at once."""
    held = bound_socket(address)
    held.listen(socket.SOMAXCONN)
    return held


def free_port(address: str) -> int:
    """A port that is free now. Nobody holds it: another process may take it before it is used."""
    with bound_socket(address) as probe:
        return int(probe.getsockname()[1])


def _unusable(address: str, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"{socket.gethostname()} cannot listen at {address}, where the other workers look for it: {error.strerror}",
    )


def interface_for(own_address: str, peers: Collection[str] = ()) -> str | None:
    """The name of this machine's interface over which it is reached at its own address; otherwise, that over which it
    reaches one of the peers. None if that cannot be told."""
    if own_address == LOOPBACK:
        return loopback_interface()
    names = _interface_names()
    if own_address in names:
        return names[own_address]
    routes = (address_towards(peer) for peer in peers if peer != own_address)
    return next((names[address] for address in routes if address in names), None)


def loopback_interface() -> str:
    """Its name on this machine."""
    names = [name for _, name in socket.if_nameindex()]
    return "lo0" if "lo" not in names and "lo0" in names else "lo"


def address_towards(peer: str) -> str | None:
    """The address of this machine that a peer sees when this machine connects to it; None if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((peer, 9))  # Sends nothing.
        return str(probe.getsockname()[0])
    return None


_GET_INTERFACE_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


def _interface_names() -> dict[str, str]:
    """By its address."""
    names: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name))
            with contextlib.suppress(OSError):  # This one has no address.
                answer = fcntl.ioctl(probe.fileno(), _GET_INTERFACE_ADDRESS, request)
                names.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return names


# A filter for a socket whose library lets it listen everywhere: a small program that the kernel runs for each packet.


_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux."""
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SOURCE_ADDRESS = 0x100000000 - 0x100000 + 12
"""Of the packet: in its network header, which has this place in the kernel's numbering."""
_ALL, _NOTHING = 0xFFFFFFFF, 0


def admit_only(descriptor: int, addresses: Collection[str]) -> None:
    """Let a listening socket of TCP over IPv4 hear of connections from these addresses only; others get no answer.

    Where the kernel has no such filters, everybody is admitted.
    """
    instructions = [_INSTRUCTION.pack(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS)]
    for address in addresses:
        number = int.from_bytes(socket.inet_aton(address))
        instructions += [_INSTRUCTION.pack(_JUMP_IF_EQUAL, 0, 1, number), _INSTRUCTION.pack(_RETURN, 0, 0, _ALL)]
    instructions.append(_INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING))
    program = ctypes.create_string_buffer(b"".join(instructions))
    described = struct.pack("HP", len(instructions), ctypes.addressof(program))
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)


# How a rank lets go of the others: libraries have no function for it, so their connections are found from outside.


def open_sockets() -> dict[int, int]:
    """Descriptor and inode of every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # The one that lists the directory is gone.
            status = os.stat(f"/proc/self/fd/{name}")
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def send_no_more(
    descriptors: Iterable[int], is_meant: Callable[[tuple[Any, ...], tuple[Any, ...]], bool] = lambda own, peer: True
) -> None:
    """Close connections of TCP in one direction, if their two ends are meant. The descriptors stay open: they are
    somebody else's."""
    for descriptor in descriptors:
        # An error: it only listens, the peer has hung up, or its owner has closed it meanwhile.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and is_meant(connection.getsockname(), connection.getpeername()):
                connection.shutdown(socket.SHUT_WR)
