"""Boosting on several workers when one of them, the driver, the data or the machine lets it down."""

from __future__ import annotations

import itertools
import os
import signal
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from paceline.air import CheckpointConfig, FailureConfig, Result, faults, session
from paceline.air.errors import DataError, TrainingFailedError
from paceline.testing.invariants import check_run, committed_checkpoints, journal_records, listening_sockets
from paceline.testing.processes import Driver, Marks
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory
from tests.train.trees.libraries import (
    LIGHTGBM,
    XGBOOST,
    Library,
    Notes,
    Task,
    binary,
    both_libraries,
    killed,
    regression,
)

FOREVER = 1_000_000
INTERRUPTED = (-signal.SIGINT, 130)
ONE_RETRY = FailureConfig(max_failures=1)


# -- a worker -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "rank"),
    mostly_slow(itertools.product([XGBOOST, LIGHTGBM], [0, 1]), everyday=[(LIGHTGBM, 1)]),
    ids=str,
)
def test_a_killed_worker_is_the_cause_whatever_its_peer_says(lab: Laboratory, library: Library, rank: int) -> None:
    """The other one is inside the library, which loses a connection and says so in its own words."""
    notes = Notes(str(lab.marks.directory), at=3, rank=rank, do=killed)
    trainer = library.trainer(binary(), storage_path=str(lab.storage), callbacks=[library.before_rounds(notes)])
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    cause = {"rank": rank, "kind": "signal", "signal": signal.SIGKILL}
    check_run(lab.trial_dir, error=caught.value, cause=cause, iterations=2, attempts=1)


def raise_on_rank_1(predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared error, which rank 1 gets enough of; rank 0 goes on into the exchange of histograms."""
    if session.get_world_rank() == 1 and predictions.std() > 0:
        raise ZeroDivisionError("rank 1 has had enough")
    return predictions - labels, np.ones_like(labels)


@pytest.mark.parametrize("library", mostly_slow([XGBOOST, LIGHTGBM], everyday=[XGBOOST]), ids=str)
def test_an_exception_in_an_objective_is_the_cause_while_the_peer_waits(lab: Laboratory, library: Library) -> None:
    trainer = library.trainer(regression(), storage_path=str(lab.storage), **library.objective(raise_on_rank_1))
    with pytest.raises(TrainingFailedError, match="rank 1 has had enough") as caught:
        trainer.fit()
    cause = {"rank": 1, "kind": "exception", "exception_type": "builtins.ZeroDivisionError"}
    check_run(lab.trial_dir, error=caught.value, cause=cause, attempts=1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# -- the start ----------------------------------------------------------------------------


def kill_while_connecting(library: Library, rank: int, marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first attempt, `rank` dies when the other one is about to connect with it."""
    module = library.connecting.__name__

    def join_or_die(*arguments: Any, **keywords: Any) -> None:
        marks.say("connecting")
        if faults.role["rank"] == str(rank) and marks.claim("death"):
            marks.wait("connecting", 2)
            os.kill(os.getpid(), signal.SIGKILL)
        import_module(module).join(*arguments, **keywords)

    monkeypatch.setattr(library.connecting, "join", join_or_die)


@pytest.mark.parametrize(
    ("library", "rank"),
    mostly_slow(itertools.product([XGBOOST, LIGHTGBM], [0, 1]), everyday=[(XGBOOST, 1)]),
    ids=str,
)
def test_a_worker_killed_while_the_workers_connect_is_the_cause(
    lab: Laboratory, library: Library, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one does not wait for it; the run is retried like after any other death."""
    kill_while_connecting(library, rank, lab.marks, monkeypatch)
    trainer = library.trainer(binary(), storage_path=str(lab.storage), failure_config=ONE_RETRY)
    result = trainer.fit()
    check_run(result.path, result=result, iterations=10)
    assert result.attempts == 2
    (failure,) = [record for record in journal_records(lab.trial_dir) if record["kind"] == "failure"]
    assert (failure["rank"], failure["cause"]) == (rank, "signal")


# -- the driver ---------------------------------------------------------------------------


def drive(lab: Laboratory, library: Library, **arguments: Any) -> Driver:
    """A driver that boosts for ever, or until it is told otherwise; its workers note their rounds."""
    script = lab.root / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from paceline.air import CheckpointConfig
            from paceline.testing.invariants import worker_descendants
            from tests.train.trees.libraries import LIGHTGBM, XGBOOST, Notes, regression

            library = {library.name.upper()}
            notes = Notes({str(lab.marks.directory)!r})
            trainer = library.trainer(
                regression(),
                storage_path={str(lab.storage)!r},
                num_boost_round={FOREVER},
                callbacks=[library.before_rounds(notes)],
                checkpoint_config=CheckpointConfig(num_to_keep=2, **{arguments!r}),
            )
            try:
                trainer.fit()
            except KeyboardInterrupt:
                assert not worker_descendants()
                raise
        """)
    )
    return Driver([str(script)], output=lab.root / "driver.txt")


@pytest.mark.slow
@both_libraries
def test_ctrl_c_keeps_the_model_of_the_last_round(lab: Laboratory, library: Library) -> None:
    with drive(lab, library) as driver:
        lab.marks.wait("round", 2, number=5)
        driver.family()
        driver.send(signal.SIGINT)
        assert driver.wait() in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    result = Result.from_path(str(lab.trial_dir))
    rounds = len(result.metrics_dataframe)
    assert rounds >= 5
    assert library.rounds(result.checkpoint) == rounds
    assert [path.name for path in committed_checkpoints(lab.trial_dir)] == [f"checkpoint_{rounds:06}"]

    restored = library.trainer_class.restore(
        str(lab.trial_dir),
        datasets=regression().datasets(),
        num_boost_round=rounds + 5,
        callbacks=[library.before_rounds(Notes(str(lab.root / "again")))],
    )
    result = restored.fit()
    check_run(lab.trial_dir, result=result, iterations=rounds + 5)
    assert [mark["number"] for mark in Marks(lab.root / "again").read("round", rank=0)] == list(
        range(rounds + 1, rounds + 6)
    )


def open_ports() -> set[str]:
    """Every TCP port of the machine on which somebody waits for connections."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"tcp {fields[1]}" for fields in lines if fields[3] == "0A"}


@pytest.mark.parametrize("library", mostly_slow([XGBOOST, LIGHTGBM], everyday=[LIGHTGBM]), ids=str)
def test_a_killed_driver_leaves_no_process_and_no_port(lab: Laboratory, library: Library) -> None:
    """The workers are in the midst of exchanging histograms, and one of them hosts the meeting point."""
    with drive(lab, library, checkpoint_frequency=5) as driver:
        lab.marks.wait("round", 2, number=12)
        opened = {socket for member in driver.family() for socket in listening_sockets(member.pid)}
        driver.kill()
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    assert not {socket for socket in opened if socket.startswith("tcp")} & open_ports()
    assert library.trainer_class.can_restore(str(lab.trial_dir))
    assert committed_checkpoints(lab.trial_dir)


# -- the machine and the data ---------------------------------------------------------------


@pytest.mark.faults
@both_libraries
def test_four_workers_on_two_cores_and_one_of_them_dies(lab: Laboratory, library: Library) -> None:
    notes = Notes(str(lab.marks.directory), at=6, rank=3, do=killed)
    trainer = library.trainer(
        binary(),
        workers=4,
        storage_path=str(lab.storage),
        callbacks=[library.before_rounds(notes)],
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        failure_config=ONE_RETRY,
    )
    result = trainer.fit()
    check_run(result.path, result=result, iterations=10, attempts=2)
    assert {mark["rank"] for mark in lab.marks.read("round", number=10)} == {0, 1, 2, 3}
    undisturbed = trainer.fit()  # a worker dies once per test
    assert undisturbed.attempts == 1
    assert library.model_text(result.checkpoint) == library.model_text(undisturbed.checkpoint)


def few_rows(train: int, valid: int) -> Task:
    """The first rows of a table."""
    full = binary()
    frames = {"train": full.frames["train"][:train], "valid": full.frames["valid"][:valid]}
    return Task("few", frames, full.params, full.metric)


@pytest.mark.parametrize("rows", mostly_slow([1, 2, 3], everyday=[1]))
def test_xgboost_trains_on_fewer_rows_than_workers(lab: Laboratory, rows: int) -> None:
    assert_metrics_count_every_row(lab, XGBOOST, few_rows(rows, 1))


@pytest.mark.parametrize("rows", mostly_slow([1, 2, 3], everyday=[3]))
def test_lightgbm_says_that_it_cannot_train_on_fewer_rows_than_workers(lab: Laboratory, rows: int) -> None:
    with pytest.raises(TrainingFailedError, match=rf"'train'.*\b{rows} rows?\b.*\b4 workers") as caught:
        LIGHTGBM.trainer(few_rows(rows, 1), workers=4, storage_path=str(lab.storage)).fit()
    assert isinstance(caught.value.__cause__, DataError)
    check_run(lab.trial_dir, error=caught.value, iterations=0, attempts=1)


@pytest.mark.slow
@both_libraries
@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_to_evaluate_than_workers(lab: Laboratory, library: Library, rows: int) -> None:
    assert_metrics_count_every_row(lab, library, few_rows(400, rows))


def assert_metrics_count_every_row(lab: Laboratory, library: Library, task: Task) -> None:
    """With four workers; those that have no row neither fail nor count."""
    result = library.trainer(task, workers=4, storage_path=str(lab.storage)).fit()
    check_run(result.path, result=result, iterations=10, attempts=1)
    predictor = library.predictor_class.from_checkpoint(result.checkpoint)
    for name in task.frames:
        predicted = predictor.predict(task.features(name))["predictions"]
        expected = log_loss(task.labels(name), predicted, labels=[0, 1])
        assert result.metrics[library.key(task, name)] == pytest.approx(expected, rel=1e-5)
