"""Functions that all ranks of a train function call together: ``from paceline.train import collective``."""

from __future__ import annotations

import pickle
from typing import TypeVar

from paceline.air import session
from paceline.air.errors import SerializationError

T = TypeVar("T")

__all__ = ["barrier", "broadcast_from_rank_zero"]


def barrier() -> None:
    """Wait until every rank has called this. A rank that fails or returns instead ends the waiting with an error."""
    session.meet("collective.barrier()", None, None)


def broadcast_from_rank_zero(data: T) -> T:
    """The `data` of rank 0, on every rank. It travels by pickle through the driver: keep it small."""
    current = session.current()
    content: bytes | None = None
    if current is not None and current.world_rank == 0 and current.world_size > 1:
        content = _pickled(data)
    received = session.meet("collective.broadcast_from_rank_zero()", content, data)
    if current is None or current.world_rank == 0 or not isinstance(received, bytes):
        return data
    sent: T = pickle.loads(received)  # the user's own code on rank 0 has made it
    return sent


def _pickled(data: object) -> bytes:
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(data, protocol=5)
    except Exception as error:
        raise SerializationError(
            f"broadcast_from_rank_zero() cannot send a {type(data).__name__}: {type(error).__name__}: {error}. Send "
            "plain data, such as a path or a dict of numbers."
        ) from error
    return content
