"""When ranks are asked what they use, and what becomes a record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.engine.usage import Usage
from paceline.run import usage_watch
from paceline.run.records import FORMAT, RanksUsed, RankUse
from paceline.run.usage_watch import UsageWatch
from paceline.storage.run_dir import RunDir
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig


class Clock:
    """The time, and ranks of which rank 0 keeps a core busy and rank 1 a half."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0

    def usage(self) -> dict[int, Usage]:
        self.asked += 1
        return {1: Usage(self.now / 2, 2_000, 2_000, 3), 0: Usage(self.now, 1_000, 1_500)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_the_share_of_a_core_since_the_last_look(clock: Clock) -> None:
    watch = UsageWatch(attempt=2)
    assert watch.look(clock.usage) is None
    assert not watch.newest
    clock.now += 2
    found = watch.look(clock.usage)
    assert found is not None
    assert (found.attempt, found.ranks) == (
        2,
        [RankUse(0, 1.0, 1_000, 1, 1_000, 1_500), RankUse(1, 0.5, 2_000, 3, 2_000, 2_000)],
    )
    assert watch.newest[1].cpu == 0.5


def test_a_long_run_is_asked_less_often(clock: Clock) -> None:
    watch = UsageWatch(0)
    hours = []
    for _ in range(3):
        before = clock.asked
        for _ in range(36_000):
            clock.now += 0.1
            watch.look(clock.usage)
        hours.append(clock.asked - before)
    assert 60 < hours[0] < 250
    assert hours[1] <= hours[2] + 1 <= 62


def test_start_and_peak_are_those_of_all_looks_and_the_end_is_written_down(clock: Clock) -> None:
    watch = UsageWatch(0)
    for memory in (100, 300, 900, 500):
        watch.look(lambda memory=memory: {0: Usage(0.0, memory, memory)})  # type: ignore[misc]
        clock.now += 1
    assert watch.look(dict) is None, "the process has ended"
    last = watch.last_record()
    assert last is not None
    (use,) = last.ranks
    assert (use.start, use.peak, use.memory) == (100, 900, 500)
    assert watch.last_record() is None


def test_looking_at_many_processes_takes_little_of_the_drivers_time(clock: Clock) -> None:
    watch = UsageWatch(0)
    spent = 0.0

    def slow() -> dict[int, Usage]:
        nonlocal spent
        spent += 0.25
        clock.now += 0.25
        return clock.usage()

    for _ in range(6000):
        clock.now += 0.1
        watch.look(slow)
    assert 0 < spent < 0.01 * 600


def test_a_rank_that_is_new_or_gone(clock: Clock) -> None:
    watch = UsageWatch(0)
    watch.look(lambda: {0: Usage(5.0, 1, 1)})
    clock.now += 2
    found = watch.look(lambda: {0: Usage(4.0, 1, 1), 1: Usage(7.0, 2, 2)})  # a child of rank 0 has ended
    assert found is not None
    assert [each.cpu for each in found.ranks] == [0.0, 0.0]
    clock.now += 10
    assert watch.look(dict) is None


def test_it_is_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_watch, "FIRST_S", 0.02)
    monkeypatch.setattr(usage_watch, "EVERY_S", 0.02)
    journal = tmp_path / "run"

    def loop(config: dict[str, Any]) -> None:
        deadline = time.monotonic() + 60
        while not any(b'"kind":"usage"' in each.read_bytes() for each in journal.glob("*/journal.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        train.report({"loss": 1.0})

    result = DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    ).fit()
    records = list(FORMAT.read(RunDir(Path(result.path or "")).journal))
    found = next(record for record in records if isinstance(record, RanksUsed))
    assert [each.rank for each in found.ranks] == [0, 1]
    assert all(each.memory > 1_000_000 and each.processes >= 1 for each in found.ranks)
