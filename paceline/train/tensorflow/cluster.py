"""What a worker does to be found by the others, before TensorFlow is imported in it."""

from __future__ import annotations

import json
import os
import socket

from paceline.train.tensorflow import keras3_guard, meeting

LOOPBACK = "127.0.0.1"

_held: socket.socket | None = None
"""Bound, never listening, and open as long as this worker is one of the cluster."""


def hold_ports() -> tuple[int, int]:
    """Take free ports: one for this worker's own server of TensorFlow to listen on later, and one for the meeting.

    The server binds the same port beside this socket, because both allow that. To all other users of this machine,
    and to all sockets that do not ask to share, the port is taken.
    """
    global _held
    give_ports_up()
    _held = socket.socket()
    _held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _held.bind(("", 0))  # TensorFlow listens on all addresses, whatever is in TF_CONFIG
    return int(_held.getsockname()[1]), meeting.hold_port()


def give_ports_up() -> None:
    """For the driver, which is itself the worker of the inline engine, and lives on."""
    global _held
    meeting.give_port_up()
    if _held is not None:
        _held.close()
    _held = None


def enter(ports: list[tuple[int, int]], rank: int) -> None:
    """Describe the cluster and this worker's place in it to TensorFlow."""
    workers = [f"{LOOPBACK}:{port}" for port, _ in ports]
    task = {"type": "worker", "index": rank}
    os.environ.update(
        {
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
            "TF_GRPC_REUSE_PORT": "1",
            "no_grpc_proxy": _past_the_proxy(),
        }
    )
    if len(ports) > 1:
        keras3_guard.install()
        meeting.install({workers[peer]: (peer, ports[peer][1]) for peer in range(len(ports)) if peer != rank})


def _past_the_proxy() -> str:
    """The hosts that gRPC connects to directly: otherwise it looks for this very machine behind the user's http_proxy.

    Where this variable is set, gRPC does not look at no_proxy any more.
    """
    names = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return ",".join([*([chosen] if chosen else []), LOOPBACK])
