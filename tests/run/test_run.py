"""The phases of a run, stepped by hand."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, session
from paceline.engine.choose import choose_engine
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.decisions import CONTINUE, Change, Decider, Decision, Donor, Restart, Stop, Wait
from paceline.run.opening import Embedding
from paceline.run.phases import Phase
from paceline.run.run import Run
from tests.train.quick import quick_trainer


@dataclass
class AfterFirstRow(Decider):
    """Decides once."""

    decision: Decision

    @property
    def may_decide(self) -> bool:
        return True

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        return self.decision if index == 1 else CONTINUE


def save_twice() -> None:
    for step in range(2):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_stop_while_a_donors_checkpoint_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The donor keeps the checkpoint until the copy is complete."""
    events: list[str] = []
    given = Checkpoint.from_directory(Checkpoint.from_dict({"step": 9}).to_directory(tmp_path / "given"))
    donor = Donor("donor", given, {"step": 9}, release=lambda: events.append("released"))
    spec = quick_trainer(save_twice, inline=True).to_run_spec()
    run = Run.open(spec, choose_engine("inline"), Embedding(decider=AfterFirstRow(Restart(Change(donor=donor)))))
    adopt = CheckpointKeeper.adopt

    def stop_and_adopt(keeper: CheckpointKeeper, *arguments: Any) -> Any:
        run.decided(Stop())  # as a search does whose time is up; the copy is made in another thread there
        commit = adopt(keeper, *arguments)
        events.append("copied")
        return commit

    monkeypatch.setattr(CheckpointKeeper, "adopt", stop_and_adopt)
    while not run.done:
        run.step()
    assert run.result is not None
    assert run.result.status == "finished"
    assert events == ["copied", "released"]


def test_a_run_that_ends_instead_of_taking_over_lets_the_donor_go(tmp_path: Path) -> None:
    released: list[str] = []
    donor = Donor("donor", Checkpoint.from_dict({"step": 9}), {"step": 9}, release=lambda: released.append("donor"))
    spec = quick_trainer(save_twice, inline=True).to_run_spec()
    run = Run.open(spec, choose_engine("inline"), Embedding(decider=AfterFirstRow(Restart(Change(donor=donor)))))
    while not isinstance(run.step(), Restart):
        assert not run.done
    run.request_stop(signal.SIGTERM)
    while not run.done:
        run.step()
    assert released == ["donor"]


def save_and_hang() -> None:
    try:
        session.report({"step": 0}, checkpoint=Checkpoint.from_dict({"step": 0}))
    finally:
        if session.get_world_rank() == 1:
            signal.pause()


def test_failure_of_workers_that_end_because_the_run_shall_wait() -> None:
    """It is retried when somebody decides that the run continues, not before: others have its resources."""
    failures = FailureConfig(max_failures=-1, hang_timeout_s=4.0, stop_grace_s=600.0)
    spec = quick_trainer(save_and_hang, failure_config=failures).to_run_spec()
    run = Run.open(spec, choose_engine("local"), Embedding(decider=AfterFirstRow(Wait(keeps_workers=False))))
    try:
        while not isinstance(run.step(), Wait):
            pass
        while run.phase in (Phase.RUNNING, Phase.ENDING):
            run.step()
        assert run.phase is Phase.SUSPENDED
        run.decided(CONTINUE)
        assert run.phase is Phase.STARTING
    finally:
        run.break_off("interrupted")
