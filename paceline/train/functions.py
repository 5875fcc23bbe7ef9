"""The functions that a train function calls by the names of `paceline.train` itself: `train.report(...)`.

`report` takes a dict (the newest spelling) or keywords (the oldest) and is one function. `get_checkpoint`,
`get_dataset_shard` and `get_context` are those of `paceline.air`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import reject_misspelled
from paceline.air.errors import MetricError

if TYPE_CHECKING:
    from paceline.air.validation import ValidationTask


def report(
    metrics: dict[str, Any] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    reduce: Mapping[str, str | tuple[str, float]] | None = None,
    validation: bool | ValidationTask | None = None,
    checkpoint_dir_name: str | None = None,
    **keywords: Any,
) -> dict[str, Any] | None:
    """Hand one row of metrics, and maybe a checkpoint, to the run; each call is one iteration.

    With `validation` the checkpoint is validated by other workers while training continues: True, or a ValidationTask
    with arguments for the function in the trainer's ValidationConfig.
    """
    if metrics is not None and keywords:
        reject_misspelled("report()", keywords, ("metrics", "checkpoint", "reduce", "validation"))
        raise MetricError("report() takes either a dict of metrics or keywords, not both.")
    row = keywords if metrics is None else metrics
    return session.report_as("train.report()", row, checkpoint, reduce, checkpoint_dir_name, validation)


def save_checkpoint(**items: Any) -> None:
    """Report a checkpoint that holds `items`, with no metrics."""
    session.report_as("train.save_checkpoint()", {}, Checkpoint.from_dict(items))


def load_checkpoint() -> dict[str, Any] | None:
    """The newest checkpoint's dict, or None."""
    checkpoint = session.checkpoint_as("train.load_checkpoint()")
    return checkpoint.to_dict() if checkpoint is not None else None


def local_rank() -> int:
    """This worker's rank on its machine."""
    return session.asked("train.local_rank()", 0).local_rank


def world_rank() -> int:
    """This worker's rank."""
    return session.rank_asked("train.world_rank()", 0).world_rank


def world_size() -> int:
    """How many workers there are."""
    return session.rank_asked("train.world_size()", 1).world_size
