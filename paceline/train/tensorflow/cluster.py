"""What a worker does to be found by the others, before TensorFlow is imported in it."""

from __future__ import annotations

import json
import os
import socket

LOOPBACK = "127.0.0.1"

_held: list[socket.socket] = []
"""Bound, never listening, and open for the life of this process."""


def hold_port() -> int:
    """Take a free port, for this worker's own server of TensorFlow to listen on later.

    The server binds the same port beside this socket, because both allow that. To all other users of this machine,
    and to all sockets that do not ask to share, the port is taken.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("", 0))  # TensorFlow listens on all addresses, whatever is in TF_CONFIG
    _held.append(holder)
    return int(holder.getsockname()[1])


def enter(ports: list[int], rank: int) -> None:
    """Describe the cluster and this worker's place in it to TensorFlow."""
    os.environ["TF_GRPC_REUSE_PORT"] = "1"
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {"worker": [f"{LOOPBACK}:{port}" for port in ports]},
            "task": {"type": "worker", "index": rank},
        }
    )
    if len(ports) > 1:
        from paceline.train.tensorflow import keras3_guard

        keras3_guard.install()
