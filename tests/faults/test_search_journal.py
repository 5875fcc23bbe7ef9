"""The journal of an experiment ends anywhere, as a kill or a power cut may leave it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, session
from paceline.air.errors import RestoreError
from paceline.testing.invariants import check_no_processes, whole_records
from paceline.testing.processes import Marks
from paceline.tune import TuneConfig, Tuner
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.restoring import Restoration
from paceline.tune.experiment.settling import ResumeRules
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.trainable.kinds import kind_of
from tests.faults.cases import long_run, mostly_slow, rounds
from tests.tune.search_invariants import experiment_journal

FAILS, ENDS, IS_STOPPED = 0, 1, 2
"""What becomes of the trials, by number."""


def count(config: dict[str, Any], marks: Marks) -> None:
    marks.say("started", trial=session.get_trial_id())
    for iteration in (1, 2):
        if config["x"] == 0 and iteration == 2 and marks.claim("failure"):
            raise ValueError("enough")
        session.report({"score": config["x"] + iteration})


def one_experiment(place: Path) -> tuple[Any, Path]:
    trainable = tune.with_parameters(count, marks=Marks(place / "marks"))
    tuner = Tuner(
        trainable,
        param_space={"x": tune.grid_search([0, 2, 0.5])},
        tune_config=TuneConfig(
            metric="score",
            mode="max",
            scheduler=ASHAScheduler(max_t=2, grace_period=1, reduction_factor=2),
            max_concurrent_trials=1,
        ),
        run_config=RunConfig(name="torn", storage_path=str(place / "storage"), verbose=0),
    )
    grid = tuner.fit()
    assert [outcome.metrics["training_iteration"] for outcome in grid.outcomes] == [1, 2, 1]
    assert [outcome.status for outcome in grid.outcomes] == ["failed", "finished", "finished"]
    return trainable, Path(grid.experiment_path)


@pytest.mark.parametrize("step", [64, long_run(max(1, 4 // rounds(1)), seconds=300)])
def test_journal_cut_at_any_byte_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """H3: At every `step`-th byte, and at the end of every record."""
    trainable, root = one_experiment(tmp_path)
    journal = experiment_journal(root)
    whole = journal.read_bytes()
    final = ends_in(whole)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)  # thousands of restores, and none of the power cuts
    for cut in range(len(whole) + 1):
        if cut % step and not whole[:cut].endswith(b"\n"):
            continue
        journal.write_bytes(whole[:cut])
        records = list(whole_records(whole[:cut]))
        assert Tuner.can_restore(root) == bool(records)
        if not records:
            with pytest.raises(RestoreError):
                Tuner.restore(root, trainable)
            continue
        experiment = replayed(root, trainable)
        try:
            check_state(experiment, records, final)
        except BaseException as error:
            error.add_note(f"cut at byte {cut} of {len(whole)}")
            raise
        finally:
            experiment.close()


def replayed(root: Path, trainable: Any) -> Experiment:
    """What a restore makes of the journal before it starts anything."""
    return Restoration.of(root, kind_of(trainable), ResumeRules(), None, None, None, None).experiment()


def ends_in(journal: bytes) -> dict[int, dict[str, Any]]:
    return {record["n"]: record for record in whole_records(journal) if record["kind"] == "end"}


def check_state(experiment: Experiment, records: list[dict[str, Any]], final: dict[int, dict[str, Any]]) -> None:
    """Every trial that is written down is there, and has ended: by the journal or by its own files."""
    outcomes = experiment.grid().outcomes
    assert len(outcomes) == sum(record["kind"] == "trial" for record in records)
    for number, outcome in enumerate(outcomes):
        assert outcome.status == final[number]["status"]
        assert outcome.metrics["score"] == final[number]["metrics"]["score"]
        assert (outcome.error is not None) == (number == FAILS)
        assert outcome.trial.is_finished


@pytest.mark.parametrize("known", mostly_slow([0, 1, 2, 3], everyday=[1]))
def test_experiment_goes_on_from_a_torn_journal(tmp_path: Path, known: int) -> None:
    """Trials of which nothing is written down run again, beside what they left; all others are as they were."""
    trainable, root = one_experiment(tmp_path)
    marks = Marks(tmp_path / "marks")
    journal = experiment_journal(root)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: end_of_trials(whole, known) + 20])
    before = len(marks.read("started"))
    left = {path: path.read_bytes() for path in root.glob("*/journal.jsonl")}
    grid = Tuner.restore(root, trainable).fit()
    assert len(grid) == 3
    assert [outcome.status for outcome in grid.outcomes] == ["failed" if known else "finished", "finished", "finished"]
    again = [mark["trial"] for mark in marks.read("started")[before:]]
    assert again == [outcome.trial.trial_id for outcome in grid.outcomes[known:]]
    assert {path: path.read_bytes() for path in left} == left, "the files of a trial were written over"
    check_no_processes(root)


def end_of_trials(journal: bytes, known: int) -> int:
    """The offset behind the record of the creation of so many trials; behind the first record for none."""
    place = journal.index(b"\n") + 1
    for line in journal.splitlines(keepends=True)[1:]:
        if known == 0:
            break
        place += len(line)
        known -= b'"kind":"trial"' in line
    return place
