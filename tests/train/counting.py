"""A loop that counts, and a driver program that runs it: ``python -m tests.train.counting``."""

from __future__ import annotations

import json
import sys
from typing import Any

from paceline.air import Checkpoint, CheckpointConfig, session
from paceline.testing.processes import Marks
from tests.train.quick import quick_trainer


def count(config: dict[str, Any]) -> None:
    """Count to `steps` with a checkpoint at every second step; may wait on the way, to be killed there."""
    newest = session.get_checkpoint()
    start = newest.to_dict()["step"] if newest else 0
    for step in range(start + 1, config["steps"] + 1):
        metrics = {"step": step, "size": session.get_world_size()}
        if step == config.get("wait_at"):
            session.report(metrics, reduce={"step": "max"})  # every rank gets here before one of them says so
            Marks(config["marks"]).say("waiting")
            Marks(config["marks"]).pass_gate("never opened")
        session.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None)


def main(storage: str, config: str, checkpoints: str, verbose: str = "0") -> None:
    quick_trainer(
        count,
        config=json.loads(config),
        name="experiment",
        storage_path=storage,
        checkpoint_config=CheckpointConfig(**json.loads(checkpoints)),
        verbose=int(verbose),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
