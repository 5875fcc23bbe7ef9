"""What a worker does to join its process group and to leave it.

These functions are sent to workers by `TorchBackend`. The driver imports this module too,
so torch is only imported inside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from paceline.run.backend import WorkerState
from paceline.train.torch.devices import assign_gpus

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_GET_INTERFACE_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


@dataclass
class ProcessGroupMember(WorkerState):
    """This worker's part in the group."""

    store_file: int | None = None
    """This worker's own descriptor of the memory file in which the ranks meet. It stays open for the life of the
    process: the store uses the number even when it is destroyed, and would then write into another file."""
    listener: socket.socket | None = None
    """On rank 0: the bound socket on which it will host the store."""
    group: Any = None
    """The default group. A train function may call destroy_process_group() while its model still
    uses the group; dropping the last reference there joins a thread that waits for the
    interpreter lock, and hangs. This reference outlives the train function."""


def listen(address: str) -> int:
    """On rank 0: bind the port of the store before anyone connects to it; returns its number."""
    ProcessGroupMember.here().listener = listener = socket.create_server((address, 0), backlog=socket.SOMAXCONN)
    return int(listener.getsockname()[1])


def free_port(address: str) -> int:
    """A port for a group that the train function may make itself from MASTER_ADDR and MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def interface_with(addresses: Collection[str]) -> str | None:
    """The name of the network interface of this machine that has one of the addresses, as far as that can be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name))
            with contextlib.suppress(OSError):  # this one has no address
                answer = fcntl.ioctl(probe.fileno(), _GET_INTERFACE_ADDRESS, request)
                if socket.inet_ntoa(answer[20:24]) in addresses:
                    return name
    return None


def enter(environment: Mapping[str, str], own_gpus: tuple[int, ...], store_path: str | None) -> bool:
    """Set this rank's variables and open the memory file; False if the file cannot be opened."""
    chosen = os.environ.get(INTERFACE_VARIABLE)
    os.environ.update(environment)
    if chosen is not None:  # The user knows better.
        os.environ[INTERFACE_VARIABLE] = chosen
    assign_gpus(tuple(own_gpus))
    member = ProcessGroupMember.here()
    if store_path is None:
        member.store_file = None
        return True
    try:
        member.store_file = os.open(store_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    return True


def join(backend: str, timeout_s: float) -> None:
    """Make the default process group, together with all other ranks."""
    import torch
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = os.environ["ACCELERATE_TORCH_DEVICE"]
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
    timeout = timedelta(seconds=timeout_s)
    member = ProcessGroupMember.here()
    if member.group is not None and dist.is_initialized() and dist.group.WORLD is member.group:
        # A failed run in this same process did not get to leave its group.
        dist.destroy_process_group()
    dist.init_process_group(
        backend, store=_store(member, world_size, timeout), rank=rank, world_size=world_size, timeout=timeout
    )
    member.group = dist.group.WORLD


def _store(member: ProcessGroupMember, world_size: int, timeout: timedelta) -> Store:
    from torch._C._distributed_c10d import FileStore, HashStore, TCPStore

    if world_size == 1:
        return HashStore()
    if member.store_file is not None:
        # The store opens its path again for every operation; this one stays valid while the
        # descriptor is open, needs no name in a file system and is gone with the last worker.
        return FileStore(f"/proc/self/fd/{member.store_file}", world_size)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if member.listener is None:
        return TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    descriptor = member.listener.detach()  # the store's from here on
    member.listener = None
    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def leave() -> None:
    """Leave the group, unless the train function already did."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    assign_gpus(())
