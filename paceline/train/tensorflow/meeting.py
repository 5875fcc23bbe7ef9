"""The workers wait for each other in Python before TensorFlow connects them.

`MultiWorkerMirroredStrategy()` waits for the servers of all workers inside of a call that holds the interpreter. The
worker would give no sign of life as long as a slow peer is still reading its data, and would be taken for dead. So
TensorFlow is called once all are there.

A worker has a port that is bound from the start. It listens once the worker has come to the meeting: until then,
whoever connects is refused.
"""

from __future__ import annotations

import functools
import socket
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from paceline.train.after_import import AfterImport

LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 0.02
TELL_AFTER_S = 30.0
"""The user hears whom a worker waits for; later again, each time after twice as long."""

_own: socket.socket | None = None
_peers: dict[str, tuple[int, int]] = {}
"""By the address of its server in the cluster: rank and port of every worker of the run."""
_connected = False


def took_place() -> bool:
    """Whether TensorFlow has connected this worker with its peers."""
    return _connected


def hold_port() -> int:
    """Bind this worker's port."""
    global _own
    give_port_up()
    _own = socket.socket()
    _own.bind((LOOPBACK, 0))
    return int(_own.getsockname()[1])


def give_port_up() -> None:
    global _own
    if _own is not None:
        _own.close()
    _own = None


def install(peers: Mapping[str, tuple[int, int]]) -> None:
    """Meet these workers when TensorFlow, once it is imported, is told of a cluster."""
    _peers.clear()
    _peers.update(peers)
    _HOOK.install()


def _meet_first(module: ModuleType) -> None:
    context: Any = module.Context
    enable_collective_ops = context.enable_collective_ops

    @functools.wraps(enable_collective_ops)
    def met(self: Any, server_def: Any) -> Any:
        addresses = {address for job in server_def.cluster.job for address in job.tasks.values()}
        meet({rank: port for address, (rank, port) in _peers.items() if address in addresses})
        return enable_collective_ops(self, server_def)

    context.enable_collective_ops = met


_HOOK = AfterImport({"tensorflow.python.eager.context": _meet_first})


def meet(ports: Mapping[int, int]) -> None:
    """Say that this worker is there, and wait until all ranks of `ports` are."""
    global _connected
    if _own is not None:
        _own.listen(len(ports) + 1)
    began, tell_after = time.monotonic(), TELL_AFTER_S
    missing = dict(ports)
    while missing := {rank: port for rank, port in missing.items() if not _is_there(port)}:
        if time.monotonic() - began > tell_after:
            print(_waiting_text(list(missing), tell_after), file=sys.stderr, flush=True)
            tell_after *= 2
        time.sleep(LOOK_EVERY_S)
    _connected = True


def _is_there(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex((LOOPBACK, port)) == 0


def _waiting_text(ranks: list[int], seconds: float) -> str:
    names = ", ".join(map(str, ranks))
    return (
        f"MultiWorkerMirroredStrategy() has waited {seconds:g} s for rank(s) {names}, which did not make theirs yet. "
        "Every worker must make one."
    )
