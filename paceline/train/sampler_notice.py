"""What users of DataLoaders should know about elastic runs, and about rows that do not divide by the workers."""

from __future__ import annotations

from paceline.air.session import SessionProtocol
from paceline.air.words import counted

NOTICE = (
    "This run is elastic, and its DataLoader deals rows by a sampler. A sampler does not know what was read before the "
    "number of workers changed: within such an epoch, some rows are read twice and some not at all. Each row is read "
    "exactly once if it comes from the trainer's datasets= (get_dataset_shard())."
)


def warn_of_samplers(session: SessionProtocol) -> None:
    """Said once in an elastic run."""
    if session.is_elastic:
        session.warn(NOTICE)


def warn_of_repeated_rows(session: SessionProtocol, rows: int, advice: str) -> None:
    """For a loader that does not shuffle, as those of evaluations are."""
    if missing := -rows % session.world_size:
        is_repeated = "is read" if missing == 1 else "are read"
        session.warn(
            f"A DataLoader deals {counted(rows, 'row')} over {session.world_size} workers. So that all have equally "
            f"many, {counted(missing, 'row')} {is_repeated} twice, and an evaluation counts that. {advice}"
        )
