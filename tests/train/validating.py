"""A run whose checkpoints are validated, with gates at which both sides stand still until the test lets them continue.

A test runs it in its own process, or in a driver process that it can kill: ``python -m tests.train.validating {...}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.run.records import RunRecords
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer, ValidationConfig


def loop(config: dict[str, Any]) -> None:
    """Report steps with checkpoints. Before the steps in `stops` it waits for the gate of that name."""
    marks = Marks(config["marks"])
    start = train.get_checkpoint()
    done = 0 if start is None else int(start.to_dict()["step"])
    marks.say("training", pid=os.getpid(), after=done)
    for step in range(done + 1, config["steps"] + 1):
        if step in config.get("stops", ()):
            marks.say("stands", before=step)
            marks.pass_gate(f"train-{step}")
        train.report({"loss": 1 / step}, checkpoint=Checkpoint.from_dict({"step": step}), validation=True)
    marks.say("trained", checkpoints=sorted(os.listdir(train.get_context().get_trial_dir() or "")))
    if "end" in config.get("stops", ()):
        marks.pass_gate("train-end")


def validate(checkpoint: Checkpoint, *, marks: str, stops: Sequence[int] = ()) -> dict[str, float]:
    """The second step is the best one. At the steps in `stops` it waits for a gate."""
    step = int(checkpoint.to_dict()["step"])
    Marks(marks).say("validating", step=step, pid=os.getpid())
    if step in stops:
        Marks(marks).pass_gate(f"validate-{step}")
    return {"error": float(abs(step - 2)), "step": step}


def trainer(
    storage: str,
    marks: str,
    *,
    steps: int = 4,
    train_stops: Sequence[Any] = (),
    validation_stops: Sequence[int] = (),
    keep: int | None = None,
    max_failures: int = 0,
    retries: int = 0,
    restore: str | None = None,
    engine: str | None = None,
    workers: int = 1,
    **validation: Any,
) -> DataParallelTrainer:
    config = {"marks": marks, "steps": steps, "stops": list(train_stops)}
    how = ValidationConfig(
        partial(validate, marks=marks, stops=validation_stops),
        scaling_config=ScalingConfig(num_workers=workers),
        max_failures=retries,
        **validation,
    )
    if restore is not None:
        return DataParallelTrainer.restore(restore, loop, train_loop_config=config, validation_config=how)
    return DataParallelTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        validation_config=how,
        run_config=RunConfig(
            storage_path=storage,
            name="validated",
            verbose=0,
            engine=engine,
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(
                num_to_keep=keep, checkpoint_score_attribute="validation/error", checkpoint_score_order="min"
            ),
        ),
    )


def run_of(tmp_path: Path) -> Path:
    (journal,) = (tmp_path / "results").glob("*/*/journal.jsonl")
    return journal.parent


def records_of(path: Path | str) -> RunRecords:
    return RunRecords.read(RunDir(Path(path)))


def said_at_the_end(path: Path | str) -> str:
    """The warnings of the run."""
    end = records_of(path).last_end
    assert end is not None
    return "\n".join(end.warnings)


def check_metrics(result: Result, steps: int = 4) -> None:
    """Every row has the metrics of its own checkpoint, wherever they are looked at."""
    for each in (result, Result.from_path(result.path)):
        rows = each.metrics_dataframe
        assert rows["training_iteration"].tolist() == list(range(1, steps + 1))
        assert rows["validation/step"].tolist() == rows["training_iteration"].tolist()
        assert each.metrics["validation"] == {"error": abs(steps - 2), "step": steps}
        for checkpoint, metrics in each.best_checkpoints:
            assert checkpoint.to_dict()["step"] == metrics["validation"]["step"]


if __name__ == "__main__":
    trainer(**json.loads(sys.argv[1])).fit()
