"""resume_from_checkpoint: a new run that begins with the checkpoint of another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, Result, session
from paceline.air.errors import CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks, wait_for
from tests.air.damage import committed
from tests.train.quick import quick_trainer


def train_epochs(config: dict[str, Any]) -> None:
    """One epoch per report, from where the checkpoint says."""
    newest = session.get_checkpoint()
    start = newest.to_dict()["epoch"] + 1 if newest else 0
    for epoch in range(start, config["epochs"]):
        session.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Result:
    storage = str(tmp_path_factory.mktemp("first"))
    return quick_trainer(train_epochs, inline=True, config={"epochs": 2}, storage_path=storage).fit()


def given(checkpoint: Checkpoint | None) -> Checkpoint:
    assert checkpoint is not None
    return checkpoint


FORMS: dict[str, Callable[[Checkpoint, Path], Checkpoint | str]] = {
    "the result's checkpoint": lambda checkpoint, _: checkpoint,
    "its path": lambda checkpoint, _: str(checkpoint.path),
    "its uri": lambda checkpoint, _: str(checkpoint.uri),
    "a copy elsewhere": lambda checkpoint, path: checkpoint.to_directory(path / "copy"),
    "bytes": lambda checkpoint, _: Checkpoint.from_bytes(checkpoint.to_bytes()),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_begins_at_iteration_one_and_numbers_its_checkpoints_on(
    two_epochs: Result, tmp_path: Path, form: str
) -> None:
    resume = FORMS[form](given(two_epochs.checkpoint), tmp_path)
    inline = form != "the result's checkpoint"
    result = quick_trainer(train_epochs, inline=inline, config={"epochs": 4}, name="second", resume=resume).fit()
    assert result.metrics_dataframe["epoch"].tolist() == [2, 3]
    assert result.metrics_dataframe["training_iteration"].tolist() == [1, 2]
    assert result.metrics_dataframe["iterations_since_restore"].tolist() == [1, 2]
    assert [Path(str(checkpoint.path)).name for checkpoint, _ in result.best_checkpoints] == [
        "checkpoint_000002", "checkpoint_000003",
    ]  # fmt: skip
    newest = given(result.checkpoint).to_dict()
    assert (newest["epoch"], newest["_current_checkpoint_id"]) == (3, 3)
    assert result.path != two_epochs.path
    check_run(result.path, result=result, iterations=2, attempts=1)
    check_run(two_epochs.path, result=two_epochs, iterations=2, attempts=1)


def test_a_dict_of_the_users_own_has_no_number() -> None:
    own = Checkpoint.from_dict({"epoch": 2})
    result = quick_trainer(train_epochs, inline=True, config={"epochs": 4}, resume=own).fit()
    assert result.metrics_dataframe["epoch"].tolist() == [3]
    assert given(result.checkpoint).number == 0


def test_a_directory_of_the_users_own(tmp_path: Path) -> None:
    def loop() -> None:
        with given(session.get_checkpoint()).as_directory() as directory:
            session.report({"text": Path(directory, "weights.txt").read_text()})

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights.txt").write_text("pretrained")
    result = quick_trainer(loop, resume=str(tmp_path / "mine")).fit()
    assert [metrics["text"] for metrics in result.rank_metrics.values()] == ["pretrained"] * 2


@pytest.mark.parametrize("form", ["dict", pytest.param("path", marks=pytest.mark.slow)])
def test_a_retry_before_the_first_own_checkpoint_begins_there_again(tmp_path: Path, form: str) -> None:
    def loop(config: dict[str, Any]) -> None:
        found = given(session.get_checkpoint()).to_dict()["epoch"]
        session.report({"found": found})
        if session.get_world_rank() == 0 and Marks(config["marks"]).claim("failure"):
            raise ValueError("once")

    checkpoint = Checkpoint.from_dict({"epoch": 7})
    result = quick_trainer(
        loop,
        config={"marks": str(tmp_path / "marks")},
        resume=checkpoint if form == "dict" else checkpoint.to_directory(tmp_path / "checkpoint"),
        failure_config=FailureConfig(max_failures=1),
    ).fit()
    check_run(result.path, result=result, iterations=1, attempts=2)
    assert [metrics["found"] for metrics in result.rank_metrics.values()] == [7, 7]


def test_a_new_checkpoint_takes_the_place_of_the_given_one() -> None:
    def loop() -> None:
        assert given(session.get_checkpoint()).to_dict()["n"] == 1
        session.report({}, checkpoint=Checkpoint.from_dict({"n": 2}))
        assert given(session.get_checkpoint()).to_dict()["n"] == 2

    quick_trainer(loop, workers=1, resume=Checkpoint.from_dict({"n": 1})).fit()


@pytest.mark.parametrize("value", [7, {"epoch": 1}, b"bytes"])
def test_what_is_no_checkpoint(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint.*Checkpoint"):
        quick_trainer(train_epochs, resume=value)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nowhere"):
        quick_trainer(train_epochs, config={}, resume=str(tmp_path / "nowhere"))


def test_a_checkpoint_that_vanished_since_is_refused_before_a_worker_starts(tmp_path: Path, results_dir: Path) -> None:
    Checkpoint.from_dict({"epoch": 0}).to_directory(tmp_path / "checkpoint")
    trainer = quick_trainer(train_epochs, config={"epochs": 1}, resume=str(tmp_path / "checkpoint"))
    os.rename(tmp_path / "checkpoint", tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=str(tmp_path / "checkpoint")):
        trainer.fit()
    assert list(results_dir.glob("*/*/logs/*")) == []


def hashed_files() -> None:
    """Reports which files this rank hashes to read the checkpoint."""
    from paceline.air import manifest

    names: list[str] = []
    hash_file = manifest.hash_file

    def noting(path: Path) -> tuple[int, str]:
        names.append(path.name)
        return hash_file(path)

    manifest.hash_file = noting
    checkpoint = given(session.get_checkpoint())
    assert checkpoint.to_dict()["weights"] == b"w" * 1000
    with checkpoint.as_directory():
        pass
    session.report({"hashed": names})


def test_workers_do_not_hash_what_the_driver_has_verified(tmp_path: Path) -> None:
    path = committed(Checkpoint.from_dict({"weights": b"w" * 1000}), tmp_path / "checkpoint")
    changed = max(file.stat().st_ctime for file in path.iterdir())
    wait_for(lambda: time.time() > changed + 0.1, "files that are old enough not to change within a tick of the clock")
    result = quick_trainer(hashed_files, resume=Checkpoint.from_directory(path)).fit()
    assert {rank: row["hashed"] for rank, row in result.rank_metrics.items()} == {0: [], 1: []}
