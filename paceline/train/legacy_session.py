"""The oldest spelling of the session: functions of `paceline.train` itself.

`report` takes a dict (the newest spelling) or keywords (the oldest) and is one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import MetricError
from paceline.air.keywords import reject_misspelled

CALLED_AS = "train"


def report(
    metrics: dict[str, Any] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    reduce: Mapping[str, str | tuple[str, float]] | None = None,
    checkpoint_dir_name: str | None = None,
    **keywords: Any,
) -> dict[str, Any] | None:
    """Hand one row of metrics, and maybe a checkpoint, to the run; each call is one iteration."""
    if metrics is not None and keywords:
        reject_misspelled("report()", keywords, ("metrics", "checkpoint", "reduce"))
        raise MetricError("report() takes either a dict of metrics or keywords, not both.")
    row = keywords if metrics is None else metrics
    return session.report(row, checkpoint=checkpoint, reduce=reduce, checkpoint_dir_name=checkpoint_dir_name)


def save_checkpoint(**items: Any) -> None:
    """Report a checkpoint that holds `items`, with no metrics."""
    session.report({}, checkpoint=Checkpoint.from_dict(items))


def load_checkpoint() -> dict[str, Any] | None:
    """The newest checkpoint's dict, or None."""
    checkpoint = session.get_checkpoint()
    return checkpoint.to_dict() if checkpoint is not None else None


def local_rank() -> int:
    """This worker's rank on its machine."""
    return session.get_local_rank()


def world_rank() -> int:
    """This worker's rank."""
    return session.get_world_rank()


def world_size() -> int:
    """How many workers there are."""
    return session.get_world_size()
