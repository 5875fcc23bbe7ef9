"""Runs on remote storage that continue: on another machine, from their URI, and never in two places at once."""

from __future__ import annotations

import json
import shutil
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, Result, RunConfig, session
from paceline.air.errors import RestoreError, RunLockedError, StorageError
from paceline.run.callbacks import Callback
from paceline.run.history import load_result
from paceline.storage import lease, lock
from paceline.storage.filesystem import FsspecFilesystem
from paceline.testing.invariants import whole_records
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.train import DataParallelTrainer
from tests.storage.s3_server import s3_filesystem
from tests.train.counting import count
from tests.train.quick import quick_trainer
from tests.train.remote_runs import check, local_twin

PROJECT = Path(__file__).parents[2]


def test_restored_from_the_uri_on_another_machine(bucket: str, tmp_path: Path, results_dir: Path) -> None:
    """The driver is killed, and nothing of the local directory is left."""
    storage, marks = f"s3://{bucket}/results", Marks(tmp_path / "marks")
    settings = {"steps": 8, "wait_at": 6, "marks": str(marks.directory)}
    arguments = ["-m", "tests.train.counting", storage, json.dumps(settings), "{}"]
    with Driver(arguments, output=tmp_path / "driver.txt", cwd=PROJECT) as driver:
        marks.wait("waiting", 2)
        driver.kill()
    trial = local_twin(results_dir)
    uri = f"{storage}/experiment/{trial.name}"
    shutil.rmtree(results_dir)
    assert DataParallelTrainer.can_restore(uri)
    assert DataParallelTrainer.can_restore(f"{storage}/experiment")
    assert not DataParallelTrainer.can_restore(f"{storage}/other")
    trainer = DataParallelTrainer.restore(
        f"{storage}/experiment", train_loop_per_worker=count, train_loop_config={"steps": 8}
    )
    result = trainer.fit()
    check(result, iterations=8)
    assert result.metrics_dataframe["step"].tolist() == list(range(1, 9))
    assert result.metrics_dataframe["iterations_since_restore"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == [0, 1, 2, 3]
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [2, 4, 6, 8]
    assert result.path == uri


CONTINUE = """
import json, sys
from paceline.train import DataParallelTrainer
from tests.train.counting import count
DataParallelTrainer.restore(sys.argv[1], count, train_loop_config=json.loads(sys.argv[2])).fit()
"""


@pytest.mark.slow
def test_an_attempt_that_was_lost_with_its_machine_keeps_its_number(
    bucket: str, s3_endpoint: str, tmp_path: Path, results_dir: Path
) -> None:
    """It had no checkpoint, but trackers may have its rows: those of the next attempt must not be taken for them."""
    storage, marks = f"s3://{bucket}/results", Marks(tmp_path / "marks")
    settings = json.dumps({"steps": 8, "wait_at": 6, "marks": str(marks.directory)})
    first = ["-m", "tests.train.counting", storage, settings, "{}"]
    second = ["-c", CONTINUE, f"{storage}/experiment", settings]
    for number, arguments in enumerate((first, second)):
        with Driver(arguments, output=tmp_path / "driver.txt", cwd=PROJECT) as driver:
            marks.wait("waiting", 2 * (number + 1))
            journal = f"{bucket}/results/experiment/{local_twin(results_dir).name}/journal.jsonl"
            wait_for(partial(has_attempt, s3_endpoint, journal, number), f"attempt {number} in the store")
            driver.kill()
        shutil.rmtree(results_dir)
    trainer = DataParallelTrainer.restore(
        f"{storage}/experiment", train_loop_per_worker=count, train_loop_config={"steps": 8}
    )
    result = trainer.fit()
    check(result, iterations=8)
    assert result.attempts == 3
    assert attempts_in(s3_endpoint, journal) == [0, 1, 2]


def has_attempt(s3_endpoint: str, journal: str, number: int) -> bool:
    return number in attempts_in(s3_endpoint, journal)


def attempts_in(s3_endpoint: str, journal: str) -> list[int]:
    store = s3_filesystem(s3_endpoint)
    store.invalidate_cache()
    return [record["attempt"] for record in whole_records(store.cat(journal)) if record["kind"] == "attempt"]


def test_the_local_copy_of_a_remote_run_is_not_restored_by_itself(
    bucket: str, results_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What follows would stay on this machine, and the journal at the URI would name checkpoints that are not there."""

    def fail(config: dict[str, Any]) -> None:
        count({"steps": 2})
        raise ValueError("not finished")

    storage = f"s3://{bucket}/results"
    settings = {"name": "experiment", "storage_path": storage}
    failed = quick_trainer(fail, inline=True, **settings).fit(raise_on_error=False)
    with pytest.raises(RestoreError, match=f"local copy.*{failed.path}"):
        DataParallelTrainer.restore(str(failed.log_dir), train_loop_per_worker=count).fit()
    quick_trainer(fail, inline=True, **settings, verbose=1).fit(raise_on_error=False)
    assert f"restore({failed.path!r}" in "".join(capfd.readouterr())


@pytest.mark.faults
def test_a_spot_instance_is_lost_and_another_machine_goes_on(
    bucket: str, tmp_path: Path, results_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is known there of the first driver's process: its lease has to expire."""
    storage, marks = f"s3://{bucket}/results", Marks(tmp_path / "marks")
    settings = {"steps": 8, "wait_at": 6, "marks": str(marks.directory)}
    arguments = ["-m", "tests.train.counting", storage, json.dumps(settings), "{}", "1"]
    with Driver(arguments, output=tmp_path / "driver.txt", cwd=PROJECT) as driver:
        marks.wait("waiting", 2)
        driver.kill()
    shutil.rmtree(results_dir)
    monkeypatch.setattr(lock, "boot_id", lambda: "another machine")
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(FsspecFilesystem, "age", lambda self, name: 0.0)  # as if it had just been renewed
    trainer = DataParallelTrainer.restore(
        f"{storage}/experiment", train_loop_per_worker=count, train_loop_config={"steps": 8}
    )
    result = trainer.fit()
    check(result, iterations=8)
    assert result.metrics_dataframe["step"].tolist() == list(range(1, 9))
    assert capfd.readouterr().err.count(f"s for pid {driver.pid} on host") == 1


@pytest.mark.slow
def test_copies_in_two_places_are_continued_apart(bucket: str, s3_endpoint: str, results_dir: Path) -> None:
    """Somebody copied an unfinished run and continues both."""

    def until_stopped(config: dict[str, Any]) -> None:
        count({"steps": config["steps"]})
        if config["steps"] == 4:
            raise ValueError("not finished")

    storage = f"s3://{bucket}/a"
    failed = quick_trainer(
        until_stopped, inline=True, config={"steps": 4}, name="experiment", storage_path=storage
    ).fit(raise_on_error=False)
    store = s3_filesystem(s3_endpoint)
    for name in store.find(f"{bucket}/a"):
        store.copy(name, name.replace(f"{bucket}/a", f"{bucket}/b"))
    results = []
    for uri, steps in ((failed.path, 10), (failed.path.replace("/a/", "/b/"), 6)):
        trainer = DataParallelTrainer.restore(
            uri,
            train_loop_per_worker=until_stopped,
            train_loop_config={"steps": steps},
            run_config=RunConfig(verbose=0, engine="inline"),
        )
        results.append(trainer.fit())
    assert [result.metrics["step"] for result in results] == [10, 6]
    assert results[0].log_dir == failed.log_dir
    assert results[1].log_dir != failed.log_dir
    assert Result.from_path(results[1].path).metrics["step"] == 6


def test_a_driver_that_was_replaced_commits_no_more(
    bucket: str, listing: Any, s3_endpoint: str, results_dir: Path
) -> None:
    class Replacing(Callback):
        def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
            place = f"{bucket}/results/experiment/{Path(trial.local_path).name}"
            s3_filesystem(s3_endpoint).pipe_file(f"{place}/lease/000002", b'{"pid": 7, "host": "elsewhere"}')

    trainer = quick_trainer(
        count,
        inline=True,
        config={"steps": 8},
        name="experiment",
        storage_path=f"s3://{bucket}/results",
        callbacks=[Replacing()],
        failure_config=FailureConfig(max_failures=3),
    )
    with pytest.raises(StorageError, match=r"s3://.*pid 7 on host elsewhere"):
        trainer.fit()
    names = listing()
    assert [name for name in names if name.endswith("MANIFEST.json")] == ["checkpoint_000000/MANIFEST.json"]
    assert "error.txt" not in names
    assert (local_twin(results_dir) / "error.txt").exists()


@pytest.mark.slow
def test_a_driver_that_cannot_renew_its_lease_ends(
    bucket: str, results_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint, too: it must not find out at its very end."""

    def rows_only(config: dict[str, Any]) -> None:
        for step in range(50):
            session.report({"step": step})

    class Jumping(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            monkeypatch.setattr(lease, "GIVE_UP_SECONDS", -1.0)

    with pytest.raises(StorageError, match=r"lease.*renewed"):
        quick_trainer(rows_only, inline=True, storage_path=f"s3://{bucket}/results", callbacks=[Jumping()]).fit()


def test_a_run_on_a_filesystem_of_the_user_can_be_read_and_restored(
    s3_endpoint: str, results_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment says nothing of the store: only the filesystem reaches it."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    own = s3_filesystem(s3_endpoint)
    storage = f"s3://bucket/{uuid.uuid4().hex}"
    result = quick_trainer(
        count, config={"steps": 2}, name="experiment", storage_path=storage, storage_filesystem=own
    ).fit()
    shutil.rmtree(results_dir)
    read = load_result(result.path, own)
    assert (read.metrics, read.filesystem) == (result.metrics, own)
    assert read.checkpoint is not None
    assert read.checkpoint.to_dict()["step"] == 2
    assert DataParallelTrainer.can_restore(result.path, own)
    again = DataParallelTrainer.restore(
        result.path,
        train_loop_per_worker=count,
        train_loop_config={"steps": 4},
        run_config=RunConfig(storage_filesystem=own, verbose=0),
    ).fit()
    assert again.metrics["step"] == 2  # it had finished
    assert again.checkpoint is not None
    assert again.checkpoint.to_dict()["step"] == 2


def test_a_run_with_parameters_in_its_name_is_restored_from_its_uri(bucket: str, results_dir: Path) -> None:
    name, storage = "lr=0.1 bs=(8):50%?", f"s3://{bucket}"
    first = quick_trainer(count, inline=True, config={"steps": 2}, name=name, storage_path=storage).fit()
    assert first.path.startswith(f"{storage}/lr=0.1%20bs=(8)%3A50%25%3F/")
    assert first.checkpoint is not None
    assert Checkpoint.from_uri(first.checkpoint.uri).to_dict()["step"] == 2
    assert local_twin(results_dir).parent.name == name
    again = DataParallelTrainer.restore(first.path, train_loop_per_worker=count, train_loop_config={"steps": 2})
    assert again.run_config.name == name
    assert again.fit().metrics_dataframe["step"].tolist() == [1, 2]
    assert local_twin(results_dir).parent.name == name


def test_a_checkpoint_on_remote_storage_can_be_resumed_from(bucket: str) -> None:
    first = quick_trainer(count, inline=True, config={"steps": 2}).fit()
    assert first.checkpoint is not None
    uri = first.checkpoint.to_uri(f"s3://{bucket}/kept")
    result = quick_trainer(count, config={"steps": 4}, resume=Checkpoint.from_uri(uri)).fit()
    assert result.metrics_dataframe["step"].tolist() == [3, 4]
    assert result.checkpoint is not None
    assert result.checkpoint.number == 1


def test_a_second_driver_is_refused(bucket: str, results_dir: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    class Restoring(Callback):
        def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
            path = f"s3://{bucket}/results/experiment/{Path(trial.local_path).name}"
            with pytest.MonkeyPatch.context() as elsewhere:
                # Another machine: nothing of the first driver's directory is there.
                elsewhere.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "elsewhere"))
                second = DataParallelTrainer.restore(path, train_loop_per_worker=count)
                with pytest.raises(RunLockedError) as caught:
                    second.fit()
            refused.append(str(caught.value))

    settings = {"name": "experiment", "storage_path": f"s3://{bucket}/results"}
    quick_trainer(count, inline=True, config={"steps": 2}, **settings, callbacks=[Restoring()]).fit()
    assert len(refused) == 1
