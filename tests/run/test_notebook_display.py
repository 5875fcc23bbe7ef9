"""The view in a cell: bounded, not drawn too often, and never fatal."""

from __future__ import annotations

import html
import re
import time

import pytest

pytest.importorskip("IPython")

from paceline.air.result import Result
from paceline.run import notebook_display
from paceline.run.notebook_display import NotebookDisplay
from paceline.run.progress import ShownProgress
from paceline.run.spec import Trial

TRIAL = Trial("4913f_00000", "Trainer", "/results/exp/run", "e1")


class Cell:
    """Takes the place of IPython's display: what is shown, and what replaces it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.broken = False

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        self.update(data, raw=True)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        if self.broken:
            raise RuntimeError("the front end is gone")
        self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(html.unescape(re.sub("<[^>]+>", " ", self.shown[-1]["text/html"])).split())


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    monkeypatch.setattr("IPython.display.display", cell.display)
    return cell


@pytest.fixture
def progress(cell: Cell) -> ShownProgress:
    progress = ShownProgress(NotebookDisplay())
    progress.started(TRIAL, "/results/exp/run", 2)
    return progress


def test_output_is_bounded(cell: Cell, progress: ShownProgress) -> None:
    for number in range(1000):
        progress.output(number % 2, f"line {number}\n")
    progress.output(0, "x" * 1000 + "\n10%\r100%\n\x1b[2Jharmless\n")
    progress.finished(Result(metrics={}))
    progress.close()
    assert "… 903 earlier lines are in the log files (rank 1) line 903" in cell.text
    assert "(rank 1) line 999" in cell.text
    assert f"(rank 0) {'x' * 300}… (the log file has the whole line)" in cell.text
    assert "(rank 0) 100% (rank 0) harmless" in cell.text
    assert len(cell.shown[-1]["text/html"]) < 10_000


def test_messages_are_bounded(cell: Cell, progress: ShownProgress) -> None:
    for number in range(100):
        progress.warning(f"number {number}")
    assert "… 71 earlier messages" in cell.text
    assert "Warning: number 99" in cell.text


def test_rows_do_not_draw_more_often_than_people_look(
    cell: Cell, progress: ShownProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = now = time.monotonic() + 10
    monkeypatch.setattr("paceline.run.notebook_display.time.monotonic", lambda: now)
    before = len(cell.shown)
    for number in range(1, 1001):
        now = begin + number / 100
        progress.row({"loss": 1.0, "training_iteration": number})
        progress.tick()
    assert 30 <= len(cell.shown) - before <= 10 / notebook_display.DRAW_INTERVAL_S + 2
    before = len(cell.shown)
    for number in range(1000):  # nothing but time passes
        now = begin + 20 + number / 100
        progress.tick()
    assert len(cell.shown) - before <= 10 / notebook_display.IDLE_INTERVAL_S + 2


def test_the_end_stays(cell: Cell, progress: ShownProgress) -> None:
    progress.row({"loss": 0.5, "training_iteration": 1})
    progress.finished(Result(metrics={"loss": 0.25, "training_iteration": 2}))
    progress.close()
    count = len(cell.shown)
    progress.close()
    progress.tick()
    assert cell.text.startswith("Trainer_4913f_00000 · finished · 2 workers")
    assert cell.shown[-1]["text/plain"].startswith("Trainer_4913f_00000 finished after 2 iterations, ")
    assert len(cell.shown) == count, "nothing is drawn after the end"


def test_an_attempt_that_fails(cell: Cell, progress: ShownProgress) -> None:
    progress.attempt_failed("rank 1: killed", retry=True, charged=True)
    progress.row({"loss": 0.5, "training_iteration": 1})
    progress.attempt_failed("rank 1: killed again", retry=False, charged=True)
    assert "attempt 1 failed: rank 1: killed Starting the next attempt." in cell.text
    assert "· attempt 2 ·" in cell.text


def test_a_front_end_that_is_gone_changes_nothing(cell: Cell, progress: ShownProgress) -> None:
    cell.broken = True
    progress.row({"loss": 0.5, "training_iteration": 1})
    progress.warning("w")
    progress.finished(Result(metrics={}))
    progress.close()


def test_a_run_that_had_finished(cell: Cell) -> None:
    progress = ShownProgress(NotebookDisplay())
    progress.reopened(TRIAL, "/results/exp/run")
    progress.finished(Result(metrics={"loss": 0.25, "training_iteration": 1}))
    progress.close()
    assert "had finished already: 1 iteration" in cell.text


def test_nothing_to_show(cell: Cell) -> None:
    NotebookDisplay().close()
    assert cell.shown == []
