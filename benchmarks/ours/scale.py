"""One driver with many simulated workers: start, reports of each, one worker's death, the next attempt, the end.

Arguments: workers, nodes, reports of each worker, `free` (as fast as the driver takes them), `lockstep` (each report is
answered before the next) or the seconds between two reports of a worker. With `--profile FILE`, where the time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import processes, workload
from benchmarks.simulated_engine import Moment, SimulatedEngine, Times
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def train_nothing(config: dict[str, Any]) -> None:
    """Stand-ins run nothing."""


def fit(engine: SimulatedEngine, workers: int, reports: int, *, lockstep: bool, storage: str, verbose: int) -> Any:
    return DataParallelTrainer(
        train_nothing,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            engine=engine,
            storage_path=storage,
            # Whoever may stop the run is asked after each row, so that each report waits for its answer.
            stop={"step": reports + 1} if lockstep else None,
            failure_config=FailureConfig(max_failures=1, start_timeout_s=300, heartbeat_timeout_s=120),
            verbose=verbose,
        ),
    ).fit()


def seconds(begin: Moment | None, end: Moment | None) -> dict[str, float]:
    """Between two moments, by the clock and of the driver's CPU."""
    assert begin is not None
    assert end is not None
    return {"s": end.at - begin.at, "cpu_s": end.cpu_s - begin.cpu_s}


def measured(workers: int, nodes: int, reports: int, pace: str, verbose: int, profiler: cProfile.Profile | None) -> Any:
    """The figures of one fit."""
    each = -(-workers // nodes)
    pace_s = 0.0 if pace in ("free", "lockstep") else float(pace)
    engine = SimulatedEngine(nodes, each, reports, pace_s=pace_s, dies=workers // 2, shows_logs=verbose > 1)
    try:
        processes.forget_peak()
        with tempfile.TemporaryDirectory(dir=workload.place()) as storage, profiler or contextlib.nullcontext():
            began = Moment.now()
            result = fit(engine, workers, reports, lockstep=pace == "lockstep", storage=storage, verbose=verbose)
            ended = Moment.now()
            journal_mb = sum(path.stat().st_size for path in Path(result.path).rglob("journal*")) / 2**20
        peak_mb = processes.peak_mb()
        check(result, reports)
    finally:
        engine.close()
    first, second = engine.times
    moments = [work(first), last(first), work(second), last(second), ended]
    return {
        "workers": workers,
        "nodes": nodes,
        "reports": reports,
        "opening": seconds(began, first.asked),
        "start": seconds(first.asked, first.ready),
        "to_work": seconds(first.ready, first.at_work),
        "reporting": seconds(first.at_work, first.reported),
        # Of the second attempt: in the first one, the log of each worker is made meanwhile.
        "rate": workers * reports / (last(second).at - work(second).at),
        "cpu_per_report": (last(second).cpu_s - work(second).cpu_s) / (workers * reports),
        "recovery": seconds(first.reported, second.at_work),
        "second_attempt": seconds(second.at_work, second.reported),
        "end": seconds(second.reported, ended),
        "whole": seconds(began, ended),
        "memory_mb": peak_mb - began.memory_mb,
        "memory_at": [round(moment.memory_mb - began.memory_mb, 1) for moment in moments],
        "memory_per_worker_kb": (work(first).memory_mb - began.memory_mb) * 1024 / workers,
        "journal_mb": journal_mb,
    }


def work(times: Times) -> Moment:
    assert times.at_work is not None
    return times.at_work


def last(times: Times) -> Moment:
    assert times.reported is not None
    return times.reported


def check(result: Any, reports: int) -> None:
    if result.error is not None or result.metrics["step"] != reports or result.attempts != 2:
        raise SystemExit(f"not what was expected: {result.error}, {result.metrics}, {result.attempts}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", type=int)
    parser.add_argument("nodes", type=int)
    parser.add_argument("reports", type=int)
    parser.add_argument("pace")
    parser.add_argument("--verbose", type=int, default=2)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    profiler = cProfile.Profile() if options.profile else None
    measured(4, 2, 2, "free", 0, None)  # imports, and whatever else happens only once
    time.sleep(0.2)
    figures = measured(options.workers, options.nodes, options.reports, options.pace, options.verbose, profiler)
    if profiler is not None:
        profiler.dump_stats(options.profile)
    workload.write_out(figures)


if __name__ == "__main__":
    main()
