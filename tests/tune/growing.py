"""A trial whose weights tell where they come from. Each of its processes imports this file, so it imports little."""

from __future__ import annotations

from typing import Any

from paceline.air import Checkpoint, session
from paceline.testing.processes import Marks


def grow(config: dict[str, Any]) -> None:
    """At each step the weights grow by the trial's own number; a large `rate` is good."""
    own = int((session.get_trial_id() or "").rpartition("_")[2])
    checkpoint = session.get_checkpoint()
    weights = [] if checkpoint is None else checkpoint.to_dict()["weights"]
    marks = Marks(config["marks"])
    marks.say("started", trial=own, weights=weights, rate=config["rate"])
    while True:
        weights = [*weights, own]
        saved = Checkpoint.from_dict({"weights": weights}) if len(weights) % config["every"] == 0 else None
        session.report({"score": config["rate"], "weights": weights}, checkpoint=saved)
        marks.say("reported", trial=own, weights=weights)
