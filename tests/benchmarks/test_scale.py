"""One driver serves many workers, in time and memory that grow with their number and no faster."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness import OURS, Bench

MOST_KB_PER_WORKER = 25
"""Of the driver's memory when all are at work: about five times what it is."""


def fit(workers: int, nodes: int, reports: int, pace: str) -> dict[str, Any]:
    """The script itself checks that all reports arrived, and that the run took two attempts."""
    with Bench(quick=True, with_ray=False) as bench:
        return bench.run(OURS / "scale.py", str(workers), str(nodes), str(reports), pace).data


@pytest.mark.parametrize("pace", ["free", "lockstep", "0.01"])
def test_a_run_with_simulated_workers_loses_one_and_ends(pace: str) -> None:
    found = fit(20, 4, 10, pace)
    assert found["workers"] == 20
    assert found["rate"] > 0


@pytest.mark.slow
def test_the_driver_serves_many_workers_in_little_memory() -> None:
    found = fit(200, 10, 100, "free")
    assert found["memory_per_worker_kb"] < MOST_KB_PER_WORKER


@pytest.mark.slow
def test_a_report_costs_the_driver_the_same_with_ten_times_the_workers() -> None:
    few, many = fit(40, 4, 500, "free"), fit(400, 20, 50, "free")
    assert many["cpu_per_report"] < 3 * few["cpu_per_report"]
