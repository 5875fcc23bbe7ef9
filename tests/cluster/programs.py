"""What drivers on hosts run in the tests of faults: a loop that counts, holds where it is told, and continues."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, cast

from paceline import train
from paceline.air.errors import PacelineError, TrainingFailedError
from paceline.air.result import Result
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from paceline.tune.callback import Callback
from tests.cluster import slow_start
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RESULTS
from tools.hosts import NETWORK

STEPS = 6
HOLD = 3
"""The step after which the first attempt stands still, or comes to an end."""
MEETING_PORT = 7000
AT_WORK = f"{RESULTS}/at_work.json"
"""Where a worker says on its own host that it is there."""


def count(config: dict[str, Any]) -> None:
    """Count with a checkpoint after each step. The first attempt holds."""
    checkpoint = train.get_checkpoint()
    begun = 0 if checkpoint is None else checkpoint.to_dict()["done"]
    context = train.get_context()
    at_work = {"rank": context.get_world_rank(), "pid": os.getpid(), "begun": begun}
    os.makedirs(RESULTS, exist_ok=True)
    Path(AT_WORK).write_text(json.dumps(at_work))
    print("output of", socket.gethostname())
    for done in range(begun + 1, STEPS + 1):
        metrics = {"done": done, "begun": begun, "host": socket.gethostname()}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"done": done}))
        if done == HOLD and not begun:
            end_or_hold(config, context.get_world_rank())


def end_or_hold(config: dict[str, Any], rank: int) -> None:
    if rank == config.get("kills_itself"):
        os.kill(os.getpid(), signal.SIGKILL)
    while config["holds"]:
        time.sleep(0.02)


def fail_after_each_other(config: dict[str, Any]) -> None:
    """One rank fails, then the others. By the clocks of their hosts it may be the other way round."""
    train.report({"done": 0, "begun": 0, "host": socket.gethostname()})
    context = train.get_context()
    if context.get_world_rank() == config["first"]:
        with socket.create_server(("", MEETING_PORT)) as server:
            waiting = [server.accept()[0] for _ in range(context.get_world_size() - 1)]
        assert waiting
        raise LookupError("the cause")
    with connection_to_the_first() as line:
        line.recv(1)  # Until it raises, or is about to.
    time.sleep(0.2)  # It may be slow.
    raise RuntimeError("a consequence")


def connection_to_the_first() -> socket.socket:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for number in (1, 2, 3):
            with contextlib.suppress(OSError):
                return socket.create_connection((f"{NETWORK}.{number}", MEETING_PORT), timeout=60)
        time.sleep(0.01)
    raise TimeoutError("nobody listens")


def fail_in_order(first: int) -> dict[str, Any]:
    """A run in which rank `first` is the cause."""
    trainer = DataParallelTrainer(
        fail_after_each_other,
        train_loop_config={"first": first},
        scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2}),
    )
    return outcome_of(trainer)


class TellRows(Callback):
    """Every row is told to the test, with the nodes that Ray believes to be alive."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        import ray

        alive = sum(node["Alive"] for node in ray.nodes()) if ray.is_initialized() else 0
        tell("row", done=result["done"], begun=result["begun"], alive=alive)


def fit(
    workers: int,
    *,
    cpus: int = 2,
    max_failures: int = 1,
    heartbeat_timeout_s: float = 5.0,
    start_timeout_s: float = 60.0,
    storage: str | None = None,
    backend: str = "",
    **config: Any,
) -> dict[str, Any]:
    """A whole run; one worker per host unless `cpus` says otherwise."""
    trainer = DataParallelTrainer(
        count,
        backend_config=slow_start.CONFIGS[backend](),
        train_loop_config={"holds": True, **config},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cpus}),
        run_config=RunConfig(
            name="experiment",
            storage_path=storage,
            callbacks=[TellRows()],
            failure_config=FailureConfig(
                max_failures=max_failures, heartbeat_timeout_s=heartbeat_timeout_s, start_timeout_s=start_timeout_s
            ),
        ),
    )
    return outcome_of(trainer)


def fit_twice(workers: int, *, again: int, **settings: Any) -> dict[str, Any]:
    """Two runs of one driver; the test says when the second begins, which has other workers and holds nowhere."""
    from tests.cluster.driver import wait_for_word

    first = fit(workers, **settings)
    tell("first", **first)
    wait_for_word()
    return fit(again, **{**settings, "holds": False})


def restore(path: str) -> dict[str, Any]:
    """Continue a run that another driver began."""
    trainer = DataParallelTrainer.restore(
        path,
        train_loop_per_worker=count,
        train_loop_config={"holds": True},
        run_config=RunConfig(callbacks=[TellRows()]),
    )
    return outcome_of(trainer)


def outcome_of(trainer: DataParallelTrainer) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        return {**described(trainer.fit()), "error": None}
    except TrainingFailedError as error:
        root = error.root_cause
        cause = None if root is None else {"rank": root.rank, "kind": root.kind, "message": root.message}
        return {**described(cast(Result, error.result)), "error": str(error), "cause": cause}
    except PacelineError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begun}


def described(result: Result) -> dict[str, Any]:
    return {
        "path": result.path,
        "attempts": result.attempts,
        "done": result.metrics.get("done"),
        "begun": result.metrics.get("begun"),
        "hosts": [metrics["host"] for _, metrics in sorted(result.rank_metrics.items())],
        "checkpoint": None if result.checkpoint is None else result.checkpoint.to_dict()["done"],
        "rows": [] if result.metrics_dataframe is None else [int(done) for done in result.metrics_dataframe["done"]],
        "logs": [path.read_text() for path in sorted((Path(result.path) / "logs").glob("rank_*.log"))],
        "warnings": result.warnings,
    }
