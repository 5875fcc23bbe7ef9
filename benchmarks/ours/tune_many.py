"""A large experiment: what a trial costs the driver, and whether the last costs what the first did.

Argument: how many trials; each reports once, 2 at a time. Afterwards a fresh process restores the experiment.

Bookkeeping is the CPU time of the driver's event loop in paceline.tune: the experiment with its journal, searcher,
scheduler and display. What a single fit would spend as well is charged to the run (its files and loggers) or to the
engine. The clock is read at each change of hands; that is charged to whoever has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import processes, workload
from paceline import tune
from paceline.engine.local.engine import LocalEngine
from paceline.run.observers import Observers
from paceline.run.run import Run
from paceline.tune.experiment.audience import TrialObservers, TrialProgress
from paceline.tune.experiment.deciding import TrialDecider
from paceline.tune.experiment.ending import Endings
from paceline.tune.experiment.experiment import Experiment

HOOKS = ("started", "row", "checkpoint", "catch_up", "finished")


def train_nothing(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"] * config["momentum"]})


class Accounts:
    """In whose functions this thread spends its CPU time, not counting what they call of others."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._owner = "driver"
        self._since = time.thread_time()
        self._thread = threading.get_ident()

    def charge(self, owner: str, home: type, *names: str) -> None:
        for name in names:
            setattr(home, name, self._charged(owner, getattr(home, name)))

    def _charged(self, owner: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **options)
            outer = self._hand_over(owner)
            try:
                return function(*arguments, **options)
            finally:
                self._hand_over(outer)

        return call

    def _hand_over(self, owner: str) -> str:
        now = time.thread_time()
        self.spent[self._owner] += now - self._since
        outer, self._owner, self._since = self._owner, owner, now
        return outer


def account_for_the_loop() -> Accounts:
    accounts = Accounts()
    accounts.charge("run", Observers, *HOOKS)  # before the class that inherits from it
    accounts.charge("run", Run, "open", "step")
    accounts.charge("engine", LocalEngine, "wait")
    accounts.charge("tune", TrialObservers, *HOOKS)
    accounts.charge("tune", TrialDecider, "after_row")
    accounts.charge("tune", TrialProgress, "row", "output")
    accounts.charge("tune", Experiment, "step")
    return accounts


def stamp_ends(accounts: Accounts, stamps: list[tuple[float, float, float]]) -> None:
    """At the end of each trial: the time, the bookkeeping so far, and the driver's memory."""
    trial_ended = Endings.trial_ended

    def stamped(endings: Endings, *arguments: Any) -> None:
        trial_ended(endings, *arguments)
        stamps.append((time.perf_counter(), accounts.spent["tune"], processes.resident_mb()))

    setattr(Endings, "trial_ended", stamped)  # noqa: B010


def restored(path: str, trials: int) -> dict[str, Any]:
    out = workload.place() / "restored.json"
    script = Path(__file__).with_name("tune_restore.py")
    subprocess.run(
        [sys.executable, str(script), path, str(trials)], check=True, env={**os.environ, "BENCH_OUT": str(out)}
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def main(trials: int) -> None:
    accounts, stamps = account_for_the_loop(), list[tuple[float, float, float]]()
    stamp_ends(accounts, stamps)
    tuner = tune.Tuner(
        train_nothing,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="loss", mode="min"),
    )
    began = time.process_time()
    results = tuner.fit()
    cpu_seconds = time.process_time() - began
    tenth, start = trials // 10, trials // 20
    spans = {"early": (stamps[start], stamps[start + tenth]), "late": (stamps[-1 - tenth], stamps[-1])}
    workload.write_out(
        {
            "complete": sum("loss" in result.metrics for result in results) == trials,
            "bookkeeping": accounts.spent["tune"] / trials,
            "cpu": cpu_seconds / trials,
            "trial": {name: (last[0] - first[0]) / tenth for name, (first, last) in spans.items()},
            "kept": {name: (last[1] - first[1]) / tenth for name, (first, last) in spans.items()},
            "memory": [stamps[start][2], processes.resident_mb()],
            "restored": restored(results.experiment_path, trials),
        }
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
