"""Helpers that a backend calls on a worker."""

from __future__ import annotations

import socket


def get_address_and_port() -> tuple[str, int]:
    """Where the other workers of a run reach this one, and a port that is free there now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", int(probe.getsockname()[1])
