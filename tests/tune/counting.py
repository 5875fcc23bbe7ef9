"""Trials that count. Each of their processes imports this file, so it imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.air import Checkpoint, session
from paceline.testing.processes import Marks


def count(config: dict[str, Any]) -> None:
    """Counts to 3 with a checkpoint at each step, and fails where it is told to until the marks have a claim."""
    marks, trial = Marks(config["marks"]), session.get_trial_id()
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    marks.say("started", trial=trial, after=start)
    for step in range(start + 1, 4):
        if step == 3 and config.get("fails") and not Path(config["marks"], "mended").exists():
            raise ValueError("not mended yet")
        session.report({"score": config["x"] * step}, checkpoint=Checkpoint.from_dict({"step": step}))


def renamed_count(config: dict[str, Any]) -> None:
    count(config)


def one_row(config: dict[str, Any]) -> dict[str, float]:
    Marks(config["marks"]).say("started", trial=session.get_trial_id(), after=0)
    return {"score": (config["x"] - 0.3) ** 2}
