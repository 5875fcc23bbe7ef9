"""How far a training has come: what a checkpoint keeps, and what the next attempt starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.train.lightgbm.checkpoint import Details, LightGBMCheckpoint

if TYPE_CHECKING:
    import lightgbm as lgb

    from paceline.train.lightgbm.features import Features


@dataclass
class Progress:
    """The model so far, and what belongs to it."""

    model: lgb.Booster | None = None
    features: Features | None = None
    evaluations: list[list[list[Any]]] = field(default_factory=list)
    """Of all its rounds, unless it comes from elsewhere."""
    rounds: int = 0
    """How many were trained; the model has fewer where nothing could be split."""

    def checkpoint(self) -> LightGBMCheckpoint:
        assert self.model is not None
        details = Details(self.model.best_iteration, self.features, self.evaluations, self.rounds)
        return LightGBMCheckpoint._of(self.model, details)


def earlier_progress() -> Progress:
    """Where the run's newest checkpoint left off, or the one that it was started from."""
    checkpoint = session_slot.get_checkpoint()
    if checkpoint is None:
        return Progress()
    earlier = LightGBMCheckpoint.from_checkpoint(checkpoint)
    model, details = earlier.get_model(), earlier.details()
    rounds = model.current_iteration() if details.rounds is None else details.rounds
    whole = len(details.evaluations) == rounds
    return Progress(model, details.features, details.evaluations if whole else [], rounds)
