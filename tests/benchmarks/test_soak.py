"""K4: one driver works under faults for a long time. `make soak` takes an hour; here it is a short one."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak_gauges import GAUGES, Sample, sample, table, trends
from benchmarks.soak_loops import BEING_SLOW
from benchmarks.soak_work import STEPS, WORK, random_faults, train_slowly
from paceline.air import FailureConfig
from paceline.testing import chaos


def samples(per_hour: float, noise: float = 0.0) -> list[Sample]:
    """An hour in which each gauge starts at 100."""
    dice = random.Random(1)
    return [
        Sample(seconds, tuple(100 + per_hour * seconds / 3600 + dice.uniform(-noise, noise) for _ in GAUGES))
        for seconds in range(0, 3600, 10)
    ]


def test_a_slope_is_found_in_noise() -> None:
    assert all(trend.is_flat for trend in trends(samples(0.0, noise=3.0), 600))
    grown = trends(samples(60.0, noise=3.0), 600)
    assert not any(trend.is_flat for trend in grown)
    assert all(55 < trend.per_hour < 65 for trend in grown)
    assert table(grown).count("GROWS") == len(GAUGES)


def test_a_single_peak_is_no_growth() -> None:
    with_peak = samples(0.0)
    with_peak[200] = Sample(with_peak[200].seconds, (500.0,) * len(GAUGES))
    assert all(trend.is_flat for trend in trends(with_peak, 0))


def test_too_few_samples_say_so() -> None:
    with pytest.raises(ValueError, match="longer"):
        trends(samples(0.0)[:5], 0)


def test_what_this_process_holds_is_counted(tmp_path: Path) -> None:
    before = sample(0.0, tmp_path)
    (tmp_path / "file").write_bytes(bytes(2 << 20))
    with (tmp_path / "file").open("rb"), (tmp_path / "file").open("rb"):
        after = sample(1.0, tmp_path)
    grown = {gauge.name: b - a for gauge, a, b in zip(GAUGES, before.values, after.values, strict=True)}
    assert grown["descriptors"] == 2
    assert 1.9 < grown["disk"] < 2.1


def test_all_faults_that_are_drawn_can_be_injected() -> None:
    for number in range(200):
        faults = random_faults(random.Random(number), 2)
        chaos(**faults)
        assert all(fault["step"] <= STEPS for kind in ("kill", "fail", "sigterm") for fault in faults.get(kind, []))


@pytest.mark.faults
@pytest.mark.parametrize("how", list(BEING_SLOW))
def test_a_slow_rank_is_left_alone_for_longer_than_a_heartbeat(tmp_path: Path, how: str) -> None:
    """B6: the rare long case of the soak, with each way to be slow."""

    class Loaded(random.Random):
        def random(self) -> float:
            return 0.0

        def choice(self, choices: Any) -> Any:
            return how

    began = time.monotonic()
    train_slowly(Loaded(), tmp_path)
    assert time.monotonic() - began > (FailureConfig().heartbeat_timeout_s or 0)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_short_soak_has_no_findings(tmp_path: Path) -> None:
    """K4, in small: each kind of work several times, with faults in all of them, and no invariant is broken.

    The driver must not grow in the time after the warm-up; an hour shows more.
    """
    command = [sys.executable, "-m", "benchmarks", "soak", "--minutes", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert " 0 findings" in ended.stdout
    assert all(f"| {name} |" in ended.stdout for name in WORK)
    for gauge in GAUGES:
        assert re.search(rf"^\| {gauge.name} \|.* flat \|$", ended.stdout, re.MULTILINE), ended.stdout
    assert list(tmp_path.iterdir()) == [], "the soak left files behind"
