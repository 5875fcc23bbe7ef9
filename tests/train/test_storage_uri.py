"""Results on remote storage: the same run, mirrored, retained, restored from there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig, Result, session
from paceline.air.errors import CheckpointNotFoundError, ConfigError, RestoreError, StorageError
from paceline.run.callbacks import Callback
from paceline.testing import invariants
from paceline.testing.invariants import listening_sockets
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from tests.storage.s3_server import s3_filesystem
from tests.train.counting import count
from tests.train.quick import quick_trainer
from tests.train.remote_runs import check, local_twin


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
