"""A training that counts, and a program that runs it with a tracker: ``python -m tests.trackers.climbs ledger ...``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import train
from paceline.testing.processes import wait_for
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from tests.trackers.services import SERVICES

ROWS = 9
EVERY = 3
"""A checkpoint every so many rows."""
WAITS_AT = 8


def climb(config: Mapping[str, Any]) -> None:
    """Report heights; before the row `WAITS_AT`, wait for the file `gate` if there is to be one."""
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["index"] if checkpoint else 0
    for index in range(start + 1, config.get("rows", ROWS) + 1):
        if index == WAITS_AT and "gate" in config:
            wait_for(Path(config["gate"]).exists, "the gate")
        saved = Checkpoint.from_dict({"index": index}) if index % EVERY == 0 else None
        train.report({"height": 10.0 * index}, checkpoint=saved)


def trainer(callbacks: list[Any], storage: Path, **config: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        climb,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="climbs", storage_path=str(storage), callbacks=callbacks, verbose=0),
    )


if __name__ == "__main__":
    service, place, storage, gate, *more = sys.argv[1:]
    callback = SERVICES[service].callback(Path(place), *more)
    trainer([callback], Path(storage), gate=gate).fit()
