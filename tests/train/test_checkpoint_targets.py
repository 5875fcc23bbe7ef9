"""The same runs, wherever the ranks put their checkpoints: on a shared disk, in memory, in a bucket, or by relay.

The engine of these tests only says that its workers do not see the driver's disk. tests/hosts runs them where that
is true.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.local.engine import LocalEngine
from paceline.run.checkpoint_target import InMemory, Relayed, RemotePrefix, SharedPath, choose_target
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import RunDir
from paceline.testing.invariants import check_checkpoints
from paceline.train import DataParallelTrainer, ValidationConfig
from tests.train.quick import quick_trainer
from tests.train.saving import SIZE, STEPS, check, saving


class Elsewhere(LocalEngine):
    """Its workers do not see the driver's disk, so it says."""

    def start_group(self, placement: Placement) -> WorkerGroup:
        group = super().start_group(placement)
        group.shares_directory = False
        return group


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    engine = Elsewhere()
    yield engine
    engine.close()


@pytest.fixture(params=["relayed", "prefix"])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Settings of a run whose workers are elsewhere."""
    settings = {"engine": request.getfixturevalue("elsewhere"), "storage_path": str(tmp_path / "results")}
    monkeypatch.setenv("ODD_NAMES", "" if request.param == "prefix" else "yes")  # no bucket takes them
    if request.param == "prefix":
        for name, value in {
            "AWS_ENDPOINT_URL": request.getfixturevalue("s3_endpoint"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        settings["storage_path"] = f"s3://bucket/{uuid.uuid4().hex}"
    return settings


def test_saved_seen_kept_and_continued(away: dict[str, Any]) -> None:
    trainer = quick_trainer(
        saving,
        config={"fails_at": 3},
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        failure_config=FailureConfig(max_failures=1),
        **away,
    )
    result = trainer.fit()
    check(result)
    assert result.attempts == 2
    assert [row["step"] for _, row in result.best_checkpoints] == [STEPS]
    assert result.log_dir is not None
    here = RunDir(Path(result.log_dir))
    assert not [path for path in here.root.iterdir() if path.name.startswith((".checkpoint", ".trash"))]
    if "://" in away["storage_path"]:
        store = FsspecFilesystem(result.path)
        assert Mirror(store, here).checkpoint_numbers() == [3]
        assert not store.list(".staging")
    else:
        check_checkpoints(here.root, result)


def test_saved_in_the_background(away: dict[str, Any]) -> None:
    config = CheckpointConfig(async_save=True)
    check(quick_trainer(saving, config={"in_background": True}, checkpoint_config=config, **away).fit())


def test_the_files_of_all_ranks(away: dict[str, Any]) -> None:
    config = CheckpointConfig(keep_all_ranks=True)
    result = quick_trainer(saving, config={"all_ranks": True}, checkpoint_config=config, **away).fit()
    check(result)
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        assert {name for name in os.listdir(folder) if name.startswith("of-")} == {"of-rank-0", "of-rank-1"}


@pytest.mark.parametrize("async_save", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_parts_of_a_sharded_model(away: dict[str, Any], async_save: bool) -> None:
    """Each rank sends its own, and any number of ranks continues."""
    pytest.importorskip("torch")
    from paceline.train.torch import TorchCheckpoint, load_sharded
    from tests.train.torch.sharded_loops import fit, losses, network, train_network

    def run(num_workers: int, **arguments: Any) -> Any:
        settings = {**away, "failure_config": FailureConfig(max_failures=1)}
        kept = {"num_to_keep": 1, "async_save": async_save}
        return fit(train_network, num_workers, kept, run_config=settings, **arguments)

    first = run(2, train_loop_config={"steps": 3, "fail_at": 2})
    assert first.attempts == 2
    second = run(3, train_loop_config={"steps": 5}, resume_from_checkpoint=first.checkpoint)
    assert len(losses(second)) == 2
    checkpoint = TorchCheckpoint.from_checkpoint(second.checkpoint)
    if "://" in away["storage_path"]:
        checkpoint = TorchCheckpoint.from_uri(f"{second.path}/checkpoint_000004")
        with checkpoint._directory(lambda name: name == "__1_0.distcp") as folder:
            assert os.listdir(folder) == ["__1_0.distcp"], "more was fetched than is needed"
    whole = fit(train_network, 1, train_loop_config={"steps": 5}).checkpoint
    expected = TorchCheckpoint.from_checkpoint(whole).get_weights()
    assert load_sharded(checkpoint, network())["step"] == 4
    for name, value in checkpoint.get_weights().items():
        assert value.numpy() == pytest.approx(expected[name].numpy(), abs=1e-5)


def test_a_checkpoint_of_the_drivers_disk_travels_to_the_ranks(away: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "deep" / "empty").mkdir(parents=True)
    (given / "step").write_text(str(STEPS - 1))
    (given / "deep" / "large").write_bytes(b"x" * SIZE)
    trainer = quick_trainer(saving, resume=Checkpoint.from_directory(given), **away)
    result = trainer.fit()
    check(result)
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == [STEPS]


def test_in_memory_and_started_from_the_drivers_disk(elsewhere: Elsewhere, tmp_path: Path) -> None:
    given = Checkpoint.from_dict({"step": 2}).to_directory(tmp_path / "given")

    def loop() -> None:
        start = session.get_checkpoint()
        assert start is not None
        for step in range(start.to_dict()["step"] + 1, STEPS + 1):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            seen = session.get_checkpoint()
            assert seen is not None
            assert seen.to_dict()["step"] >= step  # rank 0 may be ahead

    config = CheckpointConfig(num_to_keep=0)
    result = quick_trainer(
        loop, resume=Checkpoint.from_directory(given), engine=elsewhere, checkpoint_config=config
    ).fit()
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == STEPS


def test_what_is_chosen(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    mirror = Mirror(FsspecFilesystem("memory://place"), run_dir)
    chosen = {
        (in_memory, shares_files, with_store): type(
            choose_target(run_dir, mirror if with_store else None, in_memory=in_memory, shares_files=shares_files)
        )
        for in_memory in (False, True)
        for shares_files in (True, False)
        for with_store in (False, True)
    }
    assert chosen[False, True, False] is chosen[False, True, True] is SharedPath
    assert chosen[False, False, False] is Relayed
    assert chosen[False, False, True] is RemotePrefix
    assert all(issubclass(kind, InMemory) for (in_memory, *_), kind in chosen.items() if in_memory)


def test_checkpoints_are_validated_elsewhere(away: dict[str, Any]) -> None:
    """The validation workers do not see the driver's disk either."""

    def loop() -> None:
        for step in (1, 2):
            session.report({"a": step}, checkpoint=Checkpoint.from_dict({"step": step}), validation=True)

    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        session.get_checkpoint()
        return {"step": checkpoint.to_dict()["step"]}

    result = DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, **away),
        validation_config=ValidationConfig(validate, scaling_config=ScalingConfig(num_workers=2)),
    ).fit()
    assert not result.warnings
    assert result.metrics_dataframe["validation/step"].tolist() == [1, 2]
