"""How long to try to reach a store: a training is patient, somebody who waits for a command is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patience:
    """Limits for operations on a store."""

    attempts: int = 5
    total_s: float = 60.0
    """No operation is started again after this long."""
    connect_s: float | None = None
    """For a connection to S3; None: as the client does it."""


SHORT = Patience(attempts=2, total_s=5.0, connect_s=2.0)
_current = Patience()


def current() -> Patience:
    return _current


@contextlib.contextmanager
def short() -> Iterator[None]:
    """For a command that only reads: meanwhile this process says within seconds that a store cannot be reached.

    It holds for all threads, because several of them look at a store.
    """
    global _current
    before, _current = _current, SHORT
    try:
        yield
    finally:
        _current = before


def s3_options(client_attempts: int) -> dict[str, Any]:
    """What to open s3:// with, so that the client sends a request so many times. What the user has set for fsspec wins.

    Of the client's own five tries nobody would be told, and they would multiply ours.
    """
    from fsspec.config import conf

    limits: dict[str, Any] = {"retries": {"total_max_attempts": client_attempts}}
    if _current.connect_s is not None:
        limits["connect_timeout"] = _current.connect_s
    chosen: dict[str, Any] = {}
    for protocol in ("s3", "s3a"):
        chosen |= conf.get(protocol, {}).get("config_kwargs", {})
    return {"config_kwargs": {**limits, **chosen}}
