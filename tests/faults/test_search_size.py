"""A search of ten thousand trials, and its restore."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.tune import ResultGrid, TuneConfig, Tuner
from tests.tune.search_invariants import created_trials, ended_trials

TRIALS = 10_000
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


def instant(config: dict[str, Any]) -> dict[str, float]:
    return {"score": config["x"]}


class Large:
    """The search, and what it cost the driver."""

    def __init__(self, storage: Path) -> None:
        driver = psutil.Process()
        run_config = RunConfig(name="large", storage_path=str(storage), verbose=0)
        config = TuneConfig(num_samples=TRIALS, metric="score", mode="max", max_concurrent_trials=2)
        tuner = Tuner(instant, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run_config)
        before = driver.memory_info().rss
        self.grid: ResultGrid = tuner.fit()
        self.gained = driver.memory_info().rss - before
        self.experiment = Path(self.grid.experiment_path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Large:
    return Large(tmp_path_factory.mktemp("large"))


def test_ten_thousand_instant_trials_are_all_done(large: Large) -> None:
    """H6: the driver does not grow with them, and writes as much for the last as for the first."""
    assert len(large.grid) == TRIALS
    assert large.grid.num_errors == 0
    assert len(ended_trials(large.experiment)) == TRIALS
    assert large.gained <= 200 * 2**20, f"the driver grew by {large.gained / 2**20:.0f} MB"
    size = sum(path.stat().st_size for path in large.experiment.glob("experiment-*.jsonl*"))
    assert size / TRIALS < 2000, f"the journal has {size / TRIALS:.0f} bytes for each trial"


def test_restoring_it_takes_seconds_and_runs_nothing_again(large: Large) -> None:
    """H7, at ten times the bound."""
    made = list(created_trials(large.experiment))
    began = time.monotonic()
    grid = Tuner.restore(str(large.experiment), instant).fit()
    seconds = time.monotonic() - began
    assert len(grid) == TRIALS
    assert list(created_trials(large.experiment)) == made
    assert seconds <= 50, f"it took {seconds:.0f} s"
