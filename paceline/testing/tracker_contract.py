"""What every tracker must do, as one test class.

A tracker's test module derives from TrackerContract, and says how to make a tracker and how to read back what the
service has::

    class TestMyTracker(TrackerContract):
        def make(self):
            return MyTracker(self.place)

        def read(self):
            return [ReadRun(...), ...]

`self.place` is an empty directory, a new one for each test.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.trackers.tracker import Outcome, TrackedCheckpoint, TrackedRow, TrackedRun, Tracker

NOON = 1_700_000_000.0
"""When the rows of these tests were reported."""


@dataclass(frozen=True)
class ReadRow:
    """A row as the service has it."""

    attempt: int
    step: int
    values: dict[str, float]
    """At least the numbers that the user reported."""


@dataclass(frozen=True)
class ReadRun:
    """A run as the service has it."""

    name: str
    rows: Sequence[ReadRow]
    config: dict[str, str] = field(default_factory=dict)
    """Flat, as text: ``{"model/depth": "3"}``."""
    outcome: Outcome | None = None
    """None while it is open, or if the service does not know."""


def tracked_run(number: int = 0, **changes: Any) -> TrackedRun:
    """A run to tell a tracker about."""
    facts = {
        "key": f"4913f_{number:05d}-4913f0c0ffee",
        "name": f"climb_4913f_{number:05d}",
        "experiment_name": "climbs",
        "is_trial": True,
        "trial_id": f"4913f_{number:05d}",
        "experiment_id": "4913f0c0ffee",
        "experiment_tag": f"{number}_speed={number}",
        "trainer": "climb",
        "path": "",
        "config": {"speed": number, "model": {"depth": 3}},
        "started": NOON,
    }
    return TrackedRun(**{**facts, **changes})


def row(ordinal: int, *, attempt: int = 0, index: int | None = None, **metrics: Any) -> TrackedRow:
    """A row of a climb."""
    index = ordinal + 1 if index is None else index
    values = {"training_iteration": index, "time_total_s": 0.5 * index, "height": 10.0 * index, **metrics}
    return TrackedRow(attempt=attempt, index=index, ordinal=ordinal, time=NOON + ordinal, metrics=values)


class TrackerContract(ABC):
    """Derive a test class from it."""

    exactly_once: ClassVar[bool] = False
    """Rows that are sent again do not appear twice."""
    knows_outcome: ClassVar[bool] = True
    place: Path

    @abstractmethod
    def make(self) -> Tracker:
        """A tracker of the service in `self.place`. It is called again to stand for the next driver."""

    @abstractmethod
    def read(self) -> list[ReadRun]:
        """What the service has, in the order in which runs were opened. All runs are closed when it is called."""

    @pytest.fixture(autouse=True)
    def _own_place(self, tmp_path: Path) -> None:
        self.place = tmp_path / "service"
        self.place.mkdir()
        self.runs_path = tmp_path / "run"
        self.runs_path.mkdir()

    def run(self, number: int = 0, **changes: Any) -> TrackedRun:
        path = self.runs_path / f"climb_{number}"
        path.mkdir(exist_ok=True)
        return tracked_run(number, path=str(path), **changes)

    def test_a_run_arrives_with_its_configuration_its_rows_and_its_outcome(self) -> None:
        tracker = self.make()
        run_id = tracker.open(self.run(), None)
        tracker.send(run_id, [row(0), row(1)])
        tracker.send(run_id, [row(2)])
        tracker.close(run_id, "finished")
        (found,) = self.read()
        assert found.name == "climb_4913f_00000"
        assert [each.step for each in found.rows] == [1, 2, 3]
        assert [each.values["height"] for each in found.rows] == [10.0, 20.0, 30.0]
        assert {each.attempt for each in found.rows} == {0}
        assert {"speed": "0", "model/depth": "3"}.items() <= found.config.items()
        if self.knows_outcome:
            assert found.outcome == "finished"

    def test_a_run_that_is_continued_by_another_driver_stays_one_run(self) -> None:
        first = self.make()
        run_id = first.open(self.run(), None)
        first.send(run_id, [row(0), row(1), row(2)])
        first.close(run_id, "interrupted")
        second = self.make()
        assert second.open(self.run(attempt=1), run_id) == run_id
        second.send(run_id, [row(3, attempt=1, index=2), row(4, attempt=1, index=3)])
        second.close(run_id, "failed")
        (found,) = self.read()
        steps = [(each.attempt, each.step) for each in found.rows]
        assert sorted(steps) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
        if self.knows_outcome:
            assert found.outcome == "failed"

    def test_a_driver_that_died_before_it_knew_the_id_leaves_no_second_run(self) -> None:
        first = self.make()
        run_id = first.open(self.run(), None)
        first.close(run_id, "interrupted")
        second = self.make()
        assert second.open(self.run(may_exist=True), None) == run_id
        second.send(run_id, [row(0)])
        second.close(run_id, "finished")
        (found,) = self.read()
        assert len(found.rows) == 1

    def test_rows_that_are_sent_again_are_not_lost(self) -> None:
        """As after a crash between sending and remembering that; a service that can tell is asked first."""
        first = self.make()
        run_id = first.open(self.run(), None)
        first.send(run_id, [row(0), row(1)])
        first.close(run_id, "interrupted")
        second = self.make()
        assert second.open(self.run(), run_id) == run_id
        received = second.received(run_id)
        assert received in (None, 2)
        second.send(run_id, [row(1), row(2)] if received is None or self.exactly_once else [row(2)])
        second.close(run_id, "finished")
        (found,) = self.read()
        assert {each.step for each in found.rows} == {1, 2, 3}
        if self.exactly_once:
            assert len(found.rows) == 3

    def test_runs_that_are_open_at_the_same_time_do_not_mix(self) -> None:
        tracker = self.make()
        ids = [tracker.open(self.run(number), None) for number in range(3)]
        assert len(set(ids)) == 3
        for ordinal in range(2):
            for number, run_id in enumerate(ids):
                tracker.send(run_id, [row(ordinal, number=number)])
        outcomes: tuple[Outcome, ...] = ("finished", "failed", "interrupted")
        for run_id, outcome in zip(ids, outcomes, strict=True):
            tracker.close(run_id, outcome)
        found = sorted(self.read(), key=lambda run: run.name)
        assert [[each.values["number"] for each in run.rows] for run in found] == [[0, 0], [1, 1], [2, 2]]
        if self.knows_outcome:
            assert [run.outcome for run in found] == [*outcomes]

    def test_odd_names_and_values_are_taken(self) -> None:
        tracker = self.make()
        config = {"lr": 0.1, "why@=?": "x" * 20_000, "names": ["a", "b"], "none": None, "grüße": "日本語", "": 1}
        run_id = tracker.open(self.run(config=config), None)
        odd: dict[str, Any] = {
            "top@1=2": 1.0,
            "a/../b": 2,
            "/lead": 3,
            "x" * 400: 4,
            "日本": 5,
            "text": "hello",
            "none": None,
        }
        numbers: dict[str, Any] = {
            "nan": math.nan,
            "inf": math.inf,
            "least": -(2**63),
            "flag": True,
            "nested": {"deep": {"er": 6}},
        }
        tracker.send(run_id, [row(0, **odd, **numbers, words=["a", "b"])])
        tracker.close(run_id, "finished")
        (found,) = self.read()
        assert found.rows[0].values["height"] == 10.0
        assert any(name.endswith("nested/deep/er") for name in found.rows[0].values)

    def test_many_metrics_and_many_rows_are_taken(self) -> None:
        tracker = self.make()
        run_id = tracker.open(self.run(), None)
        tracker.send(run_id, [row(number) for number in range(300)])
        tracker.send(run_id, [row(300, **{f"layer_{number}": number for number in range(1200)})])
        tracker.close(run_id, "finished")
        (found,) = self.read()
        assert [each.step for each in found.rows] == [*range(1, 302)]
        assert found.rows[-1].values["layer_1199"] == 1199

    def test_a_configuration_may_change(self) -> None:
        tracker = self.make()
        run_id = tracker.open(self.run(), None)
        tracker.send(run_id, [row(0)])
        tracker.change_config(run_id, {"speed": 7, "new": "yes"}, attempt=1)
        tracker.send(run_id, [row(1, attempt=1, index=2)])
        tracker.close(run_id, "finished")
        (found,) = self.read()
        assert found.config["new"] == "yes"
        assert len(found.rows) == 2

    def test_checkpoints_are_taken_while_they_are_there(self) -> None:
        tracker = self.make()
        run = self.run()
        run_id = tracker.open(run, None)
        path = Path(run.path, "checkpoint_000000")
        path.mkdir()
        (path / "weights.txt").write_text("0.5")
        tracker.add_checkpoint(run_id, TrackedCheckpoint(number=0, iteration=1, attempt=0, path=path))
        tracker.send(run_id, [row(0)])
        tracker.close(run_id, "finished")
        assert len(self.read()) == 1

    def test_it_has_a_name_for_files_and_one_for_people(self) -> None:
        tracker = self.make()
        assert tracker.name.isidentifier()
        assert tracker.label
