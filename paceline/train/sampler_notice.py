"""What users of DataLoaders should know about elastic runs."""

from __future__ import annotations

from paceline.air.session import SessionProtocol

NOTICE = (
    "This run is elastic, and its DataLoader deals rows by a sampler. A sampler does not know what was read before the "
    "number of workers changed: within such an epoch, some rows are read twice and some not at all. Each row is read "
    "exactly once if it comes from the trainer's datasets= (get_dataset_shard())."
)


def warn_of_samplers(session: SessionProtocol) -> None:
    """Said once in an elastic run."""
    if session.is_elastic:
        session.warn(NOTICE)
