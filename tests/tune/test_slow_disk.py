"""A disk that is slow holds up the trial that waits for it, and no other."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, session
from paceline.run.callbacks import Callback
from paceline.run.spec import Trial
from tests.tune.searching import search

pytestmark = pytest.mark.usefixtures("two_cpus")

ROWS = 20
LONGEST_WAIT_S = 20.0


def test_a_commit_that_waits_for_the_disk_does_not_hold_up_other_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = os.open(pipe, os.O_RDWR)
    others_served = threading.Event()
    was_served: list[bool] = []
    really = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        journal = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if list(journal.parent.glob("checkpoint_*")):  # a trial's, and its checkpoint has just been renamed
            os.write(line, b"x")
            was_served.append(others_served.wait(LONGEST_WAIT_S))
        really(descriptor)

    class Serving(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Trial, result: Any, **info: Any) -> None:
            if not trial.config["saves"] and iteration == ROWS:
                others_served.set()

    def train(config: dict[str, Any]) -> None:
        if config["saves"]:
            session.report({"n": 1}, checkpoint=Checkpoint.from_dict({"n": 1}))
            return
        with open(pipe, "rb", buffering=0) as file:
            file.read(1)
        for n in range(ROWS):
            session.report({"n": n})

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    grid = search(train, {"saves": tune.grid_search([True, False])}, callbacks=[Serving()])
    os.close(line)
    assert was_served
    assert all(was_served)
    saving, other = grid
    assert saving.checkpoint is not None
    assert saving.checkpoint.to_dict()["n"] == 1
    assert other.metrics["training_iteration"] == ROWS
