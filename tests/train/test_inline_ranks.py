"""engine="inline" with several workers: ranks are threads of this process, for trainers without a process group."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline import data, train
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.run.backend import Backend, BackendConfig
from paceline.testing import chaos
from paceline.testing.invariants import check_run
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)

THREE = ScalingConfig(num_workers=3)


def trainer(loop: Any, storage: Path, **settings: Any) -> DataParallelTrainer:
    names = ("datasets", "backend_config", "train_loop_config", "resume_from_checkpoint")
    given = {name: settings.pop(name) for name in names if name in settings}
    config = RunConfig(storage_path=str(storage), verbose=0, engine="inline", **settings)
    return DataParallelTrainer(loop, scaling_config=THREE, run_config=config, **given)


def fit(loop: Any, storage: Path, **settings: Any) -> Result:
    return trainer(loop, storage, **settings).fit()


def test_each_rank_knows_itself_and_its_part_of_the_data(tmp_path: Path) -> None:
    def loop() -> None:
        context = train.get_context()
        rows = [row["id"] for row in train.get_dataset_shard("train").iter_rows()]
        for epoch in range(2):
            checkpoint = Checkpoint.from_dict({"epoch": epoch, "rank": context.get_world_rank()})
            mean = train.report(
                {"rank": context.get_world_rank(), "rows": len(rows), "first": rows[0], "value": float(sum(rows))},
                checkpoint=checkpoint,
                reduce={"value": "sum"},
            )
            assert mean == {"value": float(sum(range(30)))}
        facts = (context.get_world_size(), context.get_local_rank(), context.get_local_world_size())
        assert facts == (3, context.get_world_rank(), 3)
        assert threading.current_thread().name == f"paceline-rank-{context.get_world_rank()}"

    before = os.getcwd(), dict(os.environ)
    result = fit(loop, tmp_path, datasets={"train": data.range(30)})
    assert [metrics["rank"] for metrics in result.rank_metrics.values()] == [0, 1, 2]
    assert sum(metrics["rows"] for metrics in result.rank_metrics.values()) == 30
    assert len({metrics["first"] for metrics in result.rank_metrics.values()}) == 3
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict().items() >= {"epoch": 1, "rank": 0}.items()
    assert (os.getcwd(), dict(os.environ)) == before
    check_run(result.path, result=result, iterations=2, attempts=1)


def test_the_rank_that_raises_is_named_and_the_run_is_retried(tmp_path: Path) -> None:
    def loop() -> None:
        checkpoint = train.get_checkpoint()
        start = 0 if checkpoint is None else checkpoint.to_dict()["epoch"] + 1
        for epoch in range(start, 3):
            if epoch == 1 and start == 0 and train.get_context().get_world_rank() == 2:
                raise ValueError("only rank 2")
            train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    result = fit(loop, tmp_path / "retried", failure_config=FailureConfig(max_failures=1))
    assert result.metrics["epoch"] == 2
    check_run(result.path, result=result, iterations=3, attempts=2)
    with pytest.raises(TrainingFailedError, match="only rank 2") as failed:
        fit(loop, tmp_path / "failed")
    check_run(failed.value.result.path, error=failed.value, cause={"rank": 2})
    assert not any(thread.name.startswith("paceline-rank-") for thread in threading.enumerate())


def test_a_fault_finds_its_rank(tmp_path: Path) -> None:
    def loop() -> None:
        for epoch in range(2):
            train.report({"epoch": epoch})

    with chaos(fail={"rank": 1, "step": 2}), pytest.raises(TrainingFailedError) as failed:
        fit(loop, tmp_path)
    assert failed.value.root_cause.rank == 1


def test_ranks_stop_after_the_same_report(tmp_path: Path) -> None:
    def loop() -> None:
        for epoch in range(1000):
            train.report({"epoch": epoch})

    result = fit(loop, tmp_path, stop={"training_iteration": 5})
    assert {metrics["epoch"] for metrics in result.rank_metrics.values()} == {4}
    check_run(result.path, result=result, iterations=5)


def test_files_of_every_rank_are_kept(tmp_path: Path) -> None:
    def loop() -> None:
        rank = train.get_context().get_world_rank()
        folder = tmp_path / f"made by {rank}"
        folder.mkdir()
        (folder / f"part {rank}").write_text(str(rank))
        train.report({"rank": rank}, checkpoint=Checkpoint.from_directory(folder))

    result = fit(loop, tmp_path, checkpoint_config=CheckpointConfig(keep_all_ranks=True))
    assert result.checkpoint is not None
    names = [path.name for path in Path(str(result.checkpoint.path)).iterdir()]
    assert {f"part {rank}" for rank in range(3)} <= set(names)


def test_tracing_sees_every_rank(tmp_path: Path) -> None:
    """What coverage and plain pdb are made of: code of ranks runs in threads of this process."""
    seen: list[tuple[str, str]] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "traced_function":
            seen.append((event, threading.current_thread().name))

    threading.settrace(trace)
    try:
        fit(traced_loop, tmp_path)
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert sorted(seen) == [("call", f"paceline-rank-{rank}") for rank in range(3)]


def traced_loop() -> None:
    traced_function()


def traced_function() -> None:
    train.report({"traced": sys.gettrace() is not None})


class ConnectingBackend(Backend):
    """One that may keep something for the whole process."""


class ThreadedBackend(Backend):
    in_threads = True


class Connecting(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return ConnectingBackend


class Threaded(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return ThreadedBackend


def test_backends_that_connect_processes_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ConnectingBackend.*num_workers=1.*engine='local'.*breakpoint\(\)"):
        fit(lambda: None, tmp_path, backend_config=Connecting())
    assert fit(lambda: train.report({"x": 1}), tmp_path, backend_config=Threaded()).metrics["x"] == 1


def test_a_process_group_is_rejected(tmp_path: Path) -> None:
    torch = pytest.importorskip("paceline.train.torch")
    config = RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline")
    with pytest.raises(ConfigError, match=r"threads of this process.*breakpoint\(\)"):
        torch.TorchTrainer(lambda: None, scaling_config=THREE, run_config=config).fit()
