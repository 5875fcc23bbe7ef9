"""Those who look on: in which order the user is shown what the workers print and report."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air.config import RunConfig
from paceline.air.result import Result
from paceline.run.observers import Observers, make_progress
from paceline.run.spec import Trial
from paceline.storage.run_dir import RunDir


class Shown:
    """A run of two workers, whose output is written by hand."""

    def __init__(self, folder: Path) -> None:
        self.stream = io.StringIO()
        self._paths = {rank: folder / f"rank_{rank}.log" for rank in range(2)}
        trial = Trial("4913f_00000", "Trainer", str(folder), "e1")
        config = RunConfig(callbacks=[])
        self.observers = Observers(config, trial, RunDir(folder), progress=make_progress(3, self.stream))
        self.observers.started([], 2, self._paths, continues=False)

    def prints(self, rank: int, text: str, at: float | None = None) -> None:
        path = self._paths[rank]
        with path.open("a") as file:
            file.write(f"{text}\n")
        if at is not None:
            os.utime(path, (at, at))

    def row(self, iteration: int) -> None:
        self.observers.row(iteration, {"loss": 1.0, "training_iteration": iteration})

    @property
    def order(self) -> list[str]:
        """The lines that are not about the beginning, cut at their first comma."""
        return [line.split(",")[0] for line in self.stream.getvalue().splitlines()[1:]]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    shown = Shown(tmp_path)
    yield shown
    shown.observers.close()


def test_output_comes_before_the_row_that_was_reported_after_it(shown: Shown) -> None:
    shown.prints(0, "before the report")
    shown.row(1)
    shown.observers.catch_up()
    shown.prints(0, "after the report")
    shown.observers.catch_up()
    assert shown.order == [
        "(rank 0) before the report",
        "Trainer_4913f_00000: iteration 1",
        "(rank 0) after the report",
    ]


def test_all_of_it_even_if_it_is_much(shown: Shown) -> None:
    shown.prints(0, "\n".join(["much " * 20] * 5000))
    shown.prints(0, "the last of it")
    shown.row(1)
    shown.observers.catch_up()
    assert shown.order[-2:] == ["(rank 0) the last of it", "Trainer_4913f_00000: iteration 1"]


def test_output_comes_before_a_warning(shown: Shown) -> None:
    shown.prints(1, "first")
    shown.observers.warn("second")
    assert shown.order == ["(rank 1) first", "Warning: second"]


def test_a_preempted_attempt_is_not_called_failed(shown: Shown) -> None:
    shown.observers.attempt_failed("rank 1: preempted: SIGTERM to rank 1", retry=True, charged=False)
    assert shown.order == [
        "Trainer_4913f_00000: attempt 1 ended: rank 1: preempted: SIGTERM to rank 1",
        "Starting the next attempt.",
    ]


def test_output_comes_before_the_end_of_an_attempt_and_of_the_run(shown: Shown) -> None:
    shown.prints(0, "first")
    shown.observers.attempt_failed("rank 0 was killed", retry=True, charged=True)
    shown.prints(1, "second")
    shown.observers.finished(Result(metrics={}), 0)
    shown.prints(0, "nobody sees it any more")
    shown.observers.catch_up()
    shown.observers.close()
    assert shown.order[:2] == ["(rank 0) first", "Trainer_4913f_00000: attempt 1 failed: rank 0 was killed"]
    assert shown.order[3:5] == ["(rank 1) second", "Trainer_4913f_00000 finished after 0 iterations"]
    assert "nobody" not in shown.stream.getvalue()


def test_ranks_come_in_the_order_in_which_they_wrote(shown: Shown) -> None:
    shown.prints(1, "first", at=1000)
    shown.prints(0, "second", at=2000)
    shown.observers.catch_up()
    shown.prints(0, "third", at=3000)
    shown.prints(1, "fourth", at=4000)
    shown.observers.finished(Result(metrics={}), 0)
    assert shown.order[:4] == ["(rank 1) first", "(rank 0) second", "(rank 0) third", "(rank 1) fourth"]
