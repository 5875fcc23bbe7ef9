"""assert_resume_equivalent(): a correct loop passes, and what a wrong one forgets is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig
from paceline.air.errors import ConfigError
from paceline.testing import NotComparableError, ResumeDifferenceError, assert_resume_equivalent
from paceline.tune import Tuner
from tests.testing.resume_loops import (
    dict_loop,
    importing_loop,
    loader_trainer,
    plain_trainer,
    shard_trainer,
    torch_trainer,
    trainer_of,
)


def test_a_correct_torch_loop_passes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert_resume_equivalent(torch_trainer("nothing", tmp_path))
    assert not list(tmp_path.iterdir()), "the trainer's own storage is not used"


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ("optimizer", r"SGD, created at /.+/resume_loops\.py:\d+"),
        ("scheduler", r"StepLR, created at /.+/resume_loops\.py:\d+"),
        pytest.param("random state", "generator torch", marks=pytest.mark.slow),
        pytest.param("model", r"torch\.nn\.Module", marks=pytest.mark.slow),
    ],
)
def test_what_a_torch_loop_forgets_is_named(tmp_path: Path, forget: str, said: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ResumeDifferenceError, match=said) as caught:
        assert_resume_equivalent(torch_trainer(forget, tmp_path))
    assert caught.value.forgot == [forget]
    assert "loss" in caught.value.first or "['scheduler']['last_epoch']" in caught.value.first


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"checkpoint_config": CheckpointConfig(async_save=True)}, marks=pytest.mark.slow),
        pytest.param({"checkpoint_config": CheckpointConfig(keep_all_ranks=True)}, marks=pytest.mark.slow),
    ],
)
def test_a_prepared_loader_continues_with_the_right_epoch(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The loop does not set it, and restores no random generator: the order of the rows depends on the epoch."""
    pytest.importorskip("torch")
    assert_resume_equivalent(loader_trainer("nothing", tmp_path, **settings))


def test_a_loader_in_another_epoch_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ResumeDifferenceError, match=r"prepared DataLoader.* epoch 1 instead of 3") as caught:
        assert_resume_equivalent(loader_trainer("loader epoch", tmp_path))
    assert caught.value.forgot[0] == "loader epoch"


def test_a_random_generator_is_only_a_possibility(tmp_path: Path) -> None:
    """A DataLoader takes a number from it for each pass, which decides nothing here."""
    pytest.importorskip("torch")
    with pytest.raises(ResumeDifferenceError, match=r"SGD, created at") as caught:
        assert_resume_equivalent(loader_trainer("optimizer", tmp_path))
    assert caught.value.forgot == ["optimizer"]


def test_a_loop_that_never_asks_for_its_checkpoint(tmp_path: Path) -> None:
    """It begins anew, and so makes too many rows."""
    pytest.importorskip("torch")
    with pytest.raises(ResumeDifferenceError, match=r"get_checkpoint\(\)") as caught:
        assert_resume_equivalent(torch_trainer("checkpoint", tmp_path))
    assert caught.value.forgot == ["checkpoint"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_position_in_a_dataset(tmp_path: Path, workers: int) -> None:
    assert_resume_equivalent(shard_trainer("nothing", tmp_path, workers))
    with pytest.raises(ResumeDifferenceError, match="'train'") as caught:
        assert_resume_equivalent(shard_trainer("shard position", tmp_path, workers), step=3)
    assert caught.value.forgot == ["shard position"]


def test_without_a_framework_the_first_difference_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResumeDifferenceError, match=r"step 3, rank 0: \['total'\]") as caught:
        assert_resume_equivalent(plain_trainer(tmp_path, hidden=True))
    assert caught.value.forgot == []


def test_the_copies_print_no_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = plain_trainer(tmp_path)
    trainer.run_config.verbose = 1
    assert_resume_equivalent(trainer)
    assert capfd.readouterr() == ("", "")
    assert trainer.run_config.verbose == 1


def test_a_run_can_continue_by_restore(tmp_path: Path) -> None:
    assert_resume_equivalent(plain_trainer(tmp_path), how="restore", step=3)
    with pytest.raises(ResumeDifferenceError):
        assert_resume_equivalent(plain_trainer(tmp_path, hidden=True), how="restore")


@pytest.mark.parametrize("spread", [False, True])
def test_a_state_that_goes_from_checkpoint_to_checkpoint(tmp_path: Path, spread: bool) -> None:
    """`to_dict()` adds the time and the number of the checkpoint, which the loop saves and reports again."""
    assert_resume_equivalent(trainer_of(dict_loop, tmp_path, config={"steps": 4, "spread": spread}))


@pytest.mark.parametrize(
    "failures",
    [
        FailureConfig(max_failures=2, retry_on=[ValueError]),
        FailureConfig(never_retry=["signal"]),
        FailureConfig(fail_fast=True),
        FailureConfig(max_failures=-1, max_attempts_without_progress=1),
    ],
    ids=["retry_on", "never_retry", "fail_fast", "without_progress"],
)
def test_what_the_trainer_retries_does_not_matter(tmp_path: Path, failures: FailureConfig) -> None:
    assert_resume_equivalent(trainer_of(dict_loop, tmp_path, config={"steps": 3}, failure_config=failures))


def test_a_loop_that_is_faster_than_its_checkpoints(tmp_path: Path) -> None:
    """Nothing was committed yet when it is killed, unless each report waits for its checkpoint."""
    saves = CheckpointConfig(async_save=True)
    assert_resume_equivalent(trainer_of(dict_loop, tmp_path, config={"steps": 4}, checkpoint_config=saves))


@pytest.mark.parametrize("module", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_module_that_the_loop_imports_is_seeded(tmp_path: Path, module: str) -> None:
    assert_resume_equivalent(trainer_of(importing_loop, tmp_path, config={"module": module}))


def test_a_generator_of_a_module_that_the_loop_imports_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResumeDifferenceError, match=r"default_rng\(\) made at .+resume_loops\.py") as caught:
        assert_resume_equivalent(trainer_of(importing_loop, tmp_path, config={"module": "numpy", "draws": True}))
    assert caught.value.forgot == ["random state"]


def test_what_is_not_a_trainer_is_rejected() -> None:
    with pytest.raises(ConfigError, match="a trainer, not function"):
        assert_resume_equivalent(dict_loop)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a trainer, not Tuner"):
        assert_resume_equivalent(Tuner(dict_loop))  # type: ignore[arg-type]


def test_runs_that_are_never_alike_are_not_comparable(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="'noise'"):
        assert_resume_equivalent(plain_trainer(tmp_path, noise=True))
    assert_resume_equivalent(plain_trainer(tmp_path, noise=True), ignore=["noise"])


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="5 report"):
        assert_resume_equivalent(plain_trainer(tmp_path, every=5))
    with pytest.raises(NotComparableError, match="later step"):
        assert_resume_equivalent(plain_trainer(tmp_path, every=3), step=2)


def test_the_environment_is_left_as_it_was(tmp_path: Path) -> None:
    before = dict(os.environ)
    assert_resume_equivalent(plain_trainer(tmp_path))
    assert dict(os.environ) == before
