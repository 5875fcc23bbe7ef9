"""Tells that a training which goes on from a checkpoint had nothing left to do."""

from __future__ import annotations

from typing import Any

from paceline.air.session import active


def warn_if_nothing_was_left(trainer: Any) -> None:
    """For a fit that trained on no batch: Lightning ends it in silence if what it goes on from has come to the limit.

    After a failure that may be so, and the run has its rows.
    """
    session = active()
    if session.rows_before:
        return
    for argument, unit, done in (
        ("max_epochs", "epochs", trainer.current_epoch),
        ("max_steps", "steps", trainer.global_step),
    ):
        limit = getattr(trainer, argument)
        if limit is not None and 0 < limit <= done:
            session.warn(
                f"Nothing was left to train: the checkpoint that training goes on from has {done} {unit}, and "
                f"Trainer({argument}={limit}) counts them too. To train further, give a larger {argument}."
            )
            return
