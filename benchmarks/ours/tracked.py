"""A training whose every report is answered, with a tracker or without. Arguments: seconds, and the address of MLflow.

Each step takes a few milliseconds and then waits for the driver, so a driver that is busy with a tracker shows. With
a tracker, training continues until the file `gate` exists; with ``-`` instead of an address, until the time is over.
Counted are the steps per second that the worker itself saw, and the rows that MLflow has in the end.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import workload
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

WORK = bytes(2_000_000)


def train_steps(config: dict[str, Any]) -> None:
    from paceline import train

    gate, began = Path(config["gate"]), time.perf_counter()
    step, done = 0, False
    while not done:
        step += 1
        hashlib.blake2b(WORK).digest()
        passed = time.perf_counter() - began
        done = passed > config["seconds"] and (not config["waits"] or gate.exists())
        train.report({"step": step, "loss": 1.0 / step, "accuracy": 0.5, "passed": passed, "samples": step * 64})


def main(seconds: float, uri: str) -> None:
    callbacks: list[Any] = []
    if uri != "-":
        from paceline.air.integrations.mlflow import MLflowLoggerCallback

        callbacks.append(MLflowLoggerCallback(uri, experiment_name="bench"))
        callbacks[0].wait_at_end_s = callbacks[0].wait_when_down_s = 600.0
    gate = Path(os.environ["BENCH_PLACE"], "gate")
    result = DataParallelTrainer(
        train_steps,
        train_loop_config={"seconds": seconds, "gate": str(gate), "waits": uri != "-"},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(callbacks=callbacks, stop={"step": 10**12}),
    ).fit()
    steps = result.metrics["step"]
    workload.write_out(
        {
            "rate": (steps - 1) / (result.metrics["passed"]),
            "steps": steps,
            "warnings": result.warnings,
            "arrived": arrived(uri) if uri != "-" else steps,
        }
    )


def arrived(uri: str) -> int:
    """How many rows MLflow has; each once."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("bench")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    steps = [point.value for point in client.get_metric_history(run.info.run_id, "step")]
    return len(set(steps)) if len(steps) == len(set(steps)) else -1


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
