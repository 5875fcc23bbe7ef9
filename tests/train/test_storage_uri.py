"""Results on remote storage: the same run, mirrored, retained, restored from there."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, session
from paceline.air.errors import CheckpointNotFoundError, ConfigError, RestoreError, RunLockedError, StorageError
from paceline.run.callbacks import Callback
from paceline.run.history import load_result
from paceline.storage import lease, lock
from paceline.storage.filesystem import FsspecFilesystem
from paceline.testing import invariants
from paceline.testing.invariants import check_checkpoints, check_clean, check_rows, listening_sockets
from paceline.testing.processes import Driver, Marks
from paceline.train import DataParallelTrainer
from tests.storage.s3_server import s3_filesystem, s3_server
from tests.train.counting import count
from tests.train.quick import quick_trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    import s3fs

    with s3_server() as endpoint:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        yield endpoint
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of this test's own in a bucket that driver and workers reach by the environment alone."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"bucket/{uuid.uuid4().hex}"


@pytest.fixture
def listing(s3_endpoint: str, bucket: str) -> Any:
    """What is there, as names below the trial's directory."""

    def look() -> list[str]:
        found = s3_filesystem(s3_endpoint).find(bucket)
        return sorted("/".join(name.split("/")[5:]) for name in found)

    return look


def check(result: Result, iterations: int) -> None:
    """The invariants of a run, but for those of the process: the S3 server of these tests lives in it."""
    assert result.log_dir is not None
    check_checkpoints(result.log_dir, result)
    check_rows(result.log_dir, result, iterations)
    check_clean(result.log_dir, result)


def local_twin(results_dir: Path) -> Path:
    (journal,) = results_dir.glob("*/*/journal.jsonl")
    return journal.parent


def test_a_run_is_mirrored_as_it_goes(bucket: str, listing: Any, results_dir: Path, s3_endpoint: str) -> None:
    seen: list[list[str]] = []

    class Looking(Callback):
        def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
            seen.append([name for name in listing() if name.endswith("MANIFEST.json")])

    result = quick_trainer(
        count, config={"steps": 4}, name="experiment", storage_path=f"s3://{bucket}/results", callbacks=[Looking()]
    ).fit()
    check(result, iterations=4)
    assert seen == [
        ["checkpoint_000000/MANIFEST.json"],
        ["checkpoint_000000/MANIFEST.json", "checkpoint_000001/MANIFEST.json"],
    ]
    names = listing()
    assert {"journal.jsonl", "result.json", "progress.csv", "params.json"} <= set(names)
    assert [name for name in names if name.startswith("lease/")] == ["lease/000001"]
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 4
    assert local_twin(results_dir) == result.log_dir
    port = f":{int(s3_endpoint.rpartition(':')[2]):04X}"
    opened = set(listening_sockets(os.getpid())) - invariants.sockets_before
    assert [socket for socket in opened if not socket.endswith(port)] == []


def test_retention_removes_remote_ones_too(bucket: str, listing: Any) -> None:
    result = quick_trainer(
        count,
        inline=True,
        config={"steps": 8},
        storage_path=f"s3://{bucket}/results",
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    ).fit()
    assert result.warnings == []
    check(result, iterations=8)
    assert {name.split("/")[0] for name in listing() if name.startswith("checkpoint_")} == {"checkpoint_000003"}


def test_a_retry_goes_on_from_the_newest(bucket: str, tmp_path: Path) -> None:
    def flaky(config: dict[str, Any]) -> None:
        newest = session.get_checkpoint()
        if newest is not None and Marks(config["marks"]).claim("failure"):
            raise AssertionError("a first attempt has no checkpoint")
        count({"steps": 4 if newest is None else config["steps"]})
        if newest is None:
            Marks(config["marks"]).claim("failure")
            raise ValueError("once")

    result = quick_trainer(
        flaky,
        workers=1,
        config={"steps": 6, "marks": str(tmp_path / "marks")},
        storage_path=f"s3://{bucket}/results",
        failure_config=FailureConfig(max_failures=1),
    ).fit()
    assert result.metrics_dataframe["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert result.attempts == 2


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
    arguments = ["-m", "tests.train.counting", storage, json.dumps(settings), "{}"]
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


def test_a_result_can_be_read_from_the_uri(bucket: str, results_dir: Path) -> None:
    settings = {"name": "experiment", "storage_path": f"s3://{bucket}/results"}
    result = quick_trainer(count, inline=True, config={"steps": 4}, **settings).fit()
    again = quick_trainer(count, inline=True, config={"steps": 2}, **settings).fit()
    shutil.rmtree(results_dir)
    assert result.path == f"s3://{bucket}/results/experiment/{Path(str(result.log_dir)).name}"
    read = Result.from_path(result.path)
    assert (read.path, read.metrics, read.rank_metrics) == (result.path, result.metrics, result.rank_metrics)
    assert read.status == "finished"
    assert read.metrics_dataframe["step"].tolist() == [1, 2, 3, 4]
    assert [(checkpoint.uri, row["step"]) for checkpoint, row in read.best_checkpoints] == [
        (f"{result.path}/checkpoint_000000", 2),
        (f"{result.path}/checkpoint_000001", 4),
    ]
    assert read.checkpoint is not None
    assert read.checkpoint.to_dict()["step"] == 4
    assert Result.from_path(f"s3://{bucket}/results/experiment").path == again.path  # the newest of the experiment
    with pytest.raises(RestoreError, match=f"s3://{bucket}/elsewhere"):
        Result.from_path(f"s3://{bucket}/elsewhere")


@pytest.mark.slow
def test_a_damaged_sibling_does_not_block_the_others(bucket: str, s3_endpoint: str, results_dir: Path) -> None:
    storage = f"s3://{bucket}/results"
    result = quick_trainer(count, inline=True, config={"steps": 2}, name="experiment", storage_path=storage).fit()
    s3_filesystem(s3_endpoint).pipe_file(f"{bucket}/results/experiment/other/journal.jsonl", b"damage\n")
    with pytest.warns(UserWarning, match="experiment/other/journal.jsonl"):
        trainer = DataParallelTrainer.restore(f"{storage}/experiment", train_loop_per_worker=count)
    assert trainer.to_run_spec().restore_path == result.path
    assert Result.from_path(f"{storage}/experiment").metrics == result.metrics


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


def test_a_bucket_that_does_not_exist_is_refused_before_a_worker_starts(bucket: str, results_dir: Path) -> None:
    with pytest.raises(StorageError, match=f"no-{bucket.partition('/')[0]}"):
        quick_trainer(count, config={"steps": 1}, storage_path=f"s3://no-{bucket}/results").fit()
    assert list(results_dir.glob("*/*/journal.jsonl")) == []


def test_a_protocol_that_there_is_not(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        quick_trainer(count, config={"steps": 1}, storage_path="nowhere://bucket/results").fit()
    with pytest.raises((ConfigError, RestoreError)):
        DataParallelTrainer.restore("nowhere://bucket/results/experiment", train_loop_per_worker=count)


def test_a_checkpoint_that_is_not_at_its_uri_is_refused_before_anything_starts(bucket: str, results_dir: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"checkpoint.*s3://{bucket}/nowhere"):
        quick_trainer(count, config={"steps": 1}, resume=f"s3://{bucket}/nowhere").fit()
    assert not results_dir.exists() or not list(results_dir.iterdir())


def test_file_uris_are_directories(tmp_path: Path) -> None:
    storage = f"file://{tmp_path}/with%20space"
    result = quick_trainer(count, inline=True, config={"steps": 2}, storage_path=storage).fit()
    check(result, iterations=2)
    assert Path(result.path).parents[1] == tmp_path / "with space"
    assert Result.from_path(f"file://{result.path.replace(' ', '%20')}").metrics == result.metrics


# -- memory:// ----------------------------------------------------------------------------


@pytest.fixture
def memory_uri() -> Iterator[str]:
    import fsspec

    name = uuid.uuid4().hex
    yield f"memory://{name}"
    store = fsspec.filesystem("memory")
    if store.exists(name):
        store.rm(name, recursive=True)


def test_memory_lives_in_the_driver_and_so_does_the_inline_worker(memory_uri: str) -> None:
    import fsspec

    result = quick_trainer(count, inline=True, config={"steps": 4}, storage_path=memory_uri).fit()
    assert result.metrics["step"] == 4
    names = fsspec.filesystem("memory").find(memory_uri.removeprefix("memory://"))
    assert len([name for name in names if name.endswith("MANIFEST.json")]) == 2


def test_memory_is_refused_where_workers_are_processes(memory_uri: str, results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="inline"):
        quick_trainer(count, config={"steps": 1}, storage_path=memory_uri).fit()
    assert not results_dir.exists()
