"""What a worker does to be found by the others, before TensorFlow is imported in it."""

from __future__ import annotations

import json
import os
import socket

LOOPBACK = "127.0.0.1"

_held: socket.socket | None = None
"""Bound, never listening, and open as long as this worker is one of the cluster."""
_replaced: dict[str, str | None] = {}
"""What the variables were before."""


def hold_port() -> int:
    """Take a free port, for this worker's own server of TensorFlow to listen on later.

    The server binds the same port beside this socket, because both allow that. To all other users of this machine,
    and to all sockets that do not ask to share, the port is taken.
    """
    global _held
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("", 0))  # TensorFlow listens on all addresses, whatever is in TF_CONFIG
    _held = holder
    return int(holder.getsockname()[1])


def enter(ports: list[int], rank: int) -> None:
    """Describe the cluster and this worker's place in it to TensorFlow."""
    cluster = {"worker": [f"{LOOPBACK}:{port}" for port in ports]}
    task = {"type": "worker", "index": rank}
    for name, value in {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "TF_GRPC_REUSE_PORT": "1",
    }.items():
        _replaced.setdefault(name, os.environ.get(name))
        os.environ[name] = value
    if len(ports) > 1:
        from paceline.train.tensorflow import keras3_guard

        keras3_guard.install()


def leave() -> None:
    """Put the variables back and give the port up: a worker of the inline engine lives on in the user's program."""
    global _held
    for name, value in _replaced.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _replaced.clear()
    if _held is not None:
        _held.close()
    _held = None
