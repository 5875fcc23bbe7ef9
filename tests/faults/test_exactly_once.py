"""Each row exactly once per epoch, though workers are killed and their number changes."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, DatasetConfig, FailureConfig, ScalingConfig
from paceline.testing.invariants import check_run, run_processes
from paceline.train import DataParallelTrainer
from paceline.tune.callback import Callback
from tests.data.ingest_runs import (
    ROWS,
    assert_each_row_once,
    ids_by_rank,
    surviving,
    tell_rows,
    told_trainer,
    write_parquet,
)
from tests.storage.s3_server import s3_filesystem, s3_server

ALL = {"train": DatasetConfig(split=True, uneven="all", randomize_block_order=False)}


def random_kills(seed: int, steps: range, workers: int, count: int = 3) -> list[tuple[int, int, str]]:
    """Kills at random steps, not two in the same attempt: (rank, step, before or after its report)."""
    rng = random.Random(seed)
    chosen = sorted(rng.sample(steps[::2], count))
    return [(rng.randrange(workers), step, rng.choice(["before", "after"])) for step in chosen]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket that driver and workers reach by the environment alone."""
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="rows")
        settings = {"ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
        for name, value in {**settings, "DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield "rows"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_parquet(tmp_path_factory.mktemp("rows"))


def test_each_row_once_through_kills_and_two_one_three_workers(parquet: str, tmp_path: Path) -> None:
    """G5: An epoch of 10,007 rows takes 13 reports of two workers. The first two runs stop within epoch 0."""
    dataset = paceline.data.read_parquet(parquet)
    settings: dict[str, Any] = {"dataset_config": ALL, "root": tmp_path, "batch_size": 200}
    first = told_trainer(dataset, workers=2, stop_at=7, kills=random_kills(1, range(2, 7), 2), **settings).fit()
    assert first.attempts == 4
    second = told_trainer(dataset, workers=1, stop_at=11, resume=first.checkpoint, **settings).fit()
    third = told_trainer(dataset, workers=3, resume=second.checkpoint, **settings).fit()
    for result in (first, second, third):
        check_run(result.path, result=result)
    rows = surviving(first, second, third)
    assert {row["rank"] for row in rows if row["epoch"] == 0} == {0, 1, 2}
    assert_each_row_once(rows, range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("in_step", [True, False])
def test_killed_run_gives_each_rank_the_rows_of_an_uninterrupted_one(
    parquet: str, tmp_path: Path, in_step: bool
) -> None:
    """With the same number of workers the order is the same too. Without steps ranks run ahead of each other."""
    dataset = paceline.data.read_parquet(parquet)
    settings: dict[str, Any] = {
        "workers": 2,
        "batch_size": 400,
        "in_step": in_step,
        "dataset_config": {"train": DatasetConfig(split=True, uneven="all" if in_step else "equal", seed=6)},
    }
    calm = told_trainer(dataset, tmp_path / "calm", **settings).fit()
    kills = random_kills(3, range(2, 13), 2, count=2)
    killed = told_trainer(dataset, tmp_path / "killed", kills=kills, **settings).fit()
    assert killed.attempts >= 2
    check_run(killed.path, result=killed)
    assert ids_by_rank(surviving(killed)) == ids_by_rank(surviving(calm))
    assert_each_row_once(surviving(killed), range(ROWS))
    assert ids_by_rank(surviving(calm))[0, 0] != sorted(ids_by_rank(surviving(calm))[0, 0])  # blocks are shuffled


@pytest.mark.slow
def test_equal_shares_give_every_row_once_but_those_announced(tmp_path: Path) -> None:
    """No barrier at all: one report per batch, the other rank may be far ahead or behind."""
    dataset = paceline.data.from_items([{"id": number, "name": str(number)} for number in range(ROWS)])
    settings: dict[str, Any] = {
        "batch_size": 300,
        "in_step": False,
        "dataset_config": {"train": DatasetConfig(split=True, uneven="equal", seed=1)},
        "root": tmp_path,
    }
    first = told_trainer(dataset, workers=2, stop_at=10, kills=random_kills(4, range(2, 10), 2, 1), **settings).fit()
    assert first.attempts == 2
    assert "leaves out 1 row" in " ".join(first.warnings)
    restored = told_trainer(dataset, workers=3, resume=first.checkpoint, **settings).fit()
    rows = surviving(first, restored)
    assert_each_row_once(rows, range(ROWS))
    left_out = {row["epoch"]: row["left_out"] for row in rows}
    assert all(left_out.values())
    assert left_out[0] != left_out[1]
    for result in (first, restored):
        check_run(result.path, result=result)


WAYS: dict[str, dict[str, Any]] = {
    "local shuffle": {"batches": {"local_shuffle_buffer_size": 1000, "local_shuffle_seed": 9}},
    "global shuffle": {"dataset_config": {"train": DatasetConfig(uneven="all", global_shuffle=True, seed=2)}},
    "block order, in the background": {
        "dataset_config": {"train": DatasetConfig(uneven="all", randomize_block_order=True)},
        "checkpoint_config": CheckpointConfig(async_save=True),
    },
    "in memory": {"checkpoint_config": CheckpointConfig(num_to_keep=0)},
    "rank 0 only": {"rank_0_only": True, "checkpoint_config": CheckpointConfig(num_to_keep=1)},
    "all ranks": {"checkpoint_config": CheckpointConfig(keep_all_ranks=True)},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_each_row_once_in_every_way_to_shuffle_and_to_keep_checkpoints(way: str, parquet: str, tmp_path: Path) -> None:
    dataset = paceline.data.read_parquet(parquet)
    settings = {"dataset_config": ALL, "batch_size": 200, **WAYS[way]}
    kills = random_kills(len(way), range(4, 15), 2, count=1)
    result = told_trainer(dataset, tmp_path, workers=2, kills=kills, **settings).fit()
    assert result.attempts == 2
    check_run(result.path, result=result)
    assert_each_row_once(surviving(result), range(ROWS))


def keep_two_thirds(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 3)


def test_each_row_once_when_restored_with_more_workers_within_an_epoch(parquet: str, tmp_path: Path) -> None:
    """The driver gives up at a kill, and restore() goes on with other workers; rows of a filter are counted first."""
    dataset = paceline.data.read_parquet(parquet).filter(keep_two_thirds)
    settings: dict[str, Any] = {"dataset_config": ALL, "batch_size": 150}
    trainer = told_trainer(dataset, tmp_path, workers=2, kills=[(1, 8, "before")], **settings)
    trainer.run_config.failure_config = FailureConfig(max_failures=0)
    failed = trainer.fit(raise_on_error=False)
    assert failed.status == "failed"
    assert failed.checkpoint is not None
    restored = DataParallelTrainer.restore(
        failed.path,
        train_loop_per_worker=tell_rows,
        datasets={"train": dataset},
        scaling_config=ScalingConfig(num_workers=3),
    ).fit()  # dataset_config is that of the run
    check_run(restored.path, result=restored)
    rows = surviving(restored)
    assert {row["rank"] for row in rows if row["epoch"] == 0} == {0, 1, 2}
    assert_each_row_once(rows, [number for number in range(ROWS) if number % 3])


@pytest.mark.slow
def test_each_row_once_when_resumed_from_remote_storage(parquet: str, tmp_path: Path, bucket: str) -> None:
    dataset = paceline.data.read_parquet(parquet)
    settings: dict[str, Any] = {"dataset_config": ALL, "batch_size": 300, "storage": f"s3://{bucket}/runs"}
    first = told_trainer(dataset, tmp_path, workers=2, every=2, stop_at=5, kills=[(1, 4, "before")], **settings).fit()
    assert first.attempts == 2
    assert first.path.startswith("s3://")
    assert first.checkpoint is not None
    assert first.checkpoint.path is not None
    there = Checkpoint.from_uri(f"{first.path}/{Path(first.checkpoint.path).name}")
    second = told_trainer(dataset, tmp_path, workers=3, resume=there, **settings).fit()
    assert_each_row_once(surviving(first, second), range(ROWS))


class KillsAtAnyMoment(Callback):
    """Kills a worker from outside, a random while after a random report: within a batch, a report or a commit."""

    def __init__(self, seed: str, kills: int) -> None:
        self._rng = random.Random(seed)
        self._left = kills
        self._next = 2
        self.killed = 0

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        if self._left and result["training_iteration"] >= self._next:
            self._left -= 1
            self._next = result["training_iteration"] + self._rng.randrange(4)
            threading.Timer(self._rng.random() * 0.03, self._kill, [Path(trial.local_path)]).start()

    def _kill(self, trial_dir: Path) -> None:
        alive = [process for process in run_processes(trial_dir) if process.alive]
        if alive:
            os.kill(self._rng.choice(alive).pid, signal.SIGKILL)
            self.killed += 1


@pytest.mark.faults
@pytest.mark.parametrize("uneven", ["all", "equal"])
@pytest.mark.parametrize("shuffle", ["none", "blocks", "rows"])
def test_each_row_once_though_any_worker_dies_at_any_moment(
    parquet: str, tmp_path: Path, uneven: Any, shuffle: str
) -> None:
    """G5."""
    dataset = paceline.data.read_parquet(parquet)
    config = DatasetConfig(
        split=True,
        uneven=uneven,
        global_shuffle=shuffle == "rows",
        randomize_block_order=shuffle == "blocks",
    )
    results = []
    resume, stop_at = None, 12
    for number, workers in enumerate((2, 1, 3)):
        killer = KillsAtAnyMoment(f"{uneven} {shuffle} {number}", kills=4)
        trainer = told_trainer(
            dataset,
            tmp_path,
            workers=workers,
            batch_size=100,
            every=2,
            in_step=uneven == "all",
            stop_at=None if workers == 3 else stop_at,
            resume=resume,
            dataset_config={"train": config},
            callbacks=[killer],
        )
        trainer.run_config.failure_config = FailureConfig(max_failures=-1, max_attempts_without_progress=None)
        result = trainer.fit()
        assert killer.killed > 0
        check_run(result.path, result=result)
        results.append(result)
        resume, stop_at = result.checkpoint, stop_at + 12
    assert sum(result.attempts for result in results) > 3
    assert_each_row_once(surviving(*results), range(ROWS))
