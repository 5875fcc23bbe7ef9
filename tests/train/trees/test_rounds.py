"""Rounds of boosting as iterations: their rows, and when there is a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.air import FailureConfig, Result
from paceline.air.errors import RestoreError, TrainingFailedError
from paceline.data.preprocessors import MinMaxScaler, StandardScaler
from paceline.testing.invariants import check_run
from tests.train.trees.counting import CountingTrainer, counting_trainer, rows


def checkpoint_names(result: Result) -> list[str]:
    return sorted(path.name for path in Path(result.path).glob("checkpoint_*"))


def rounds_of(result: Result) -> list[int]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe["round"])


def kept_rounds(result: Result) -> int:
    assert result.checkpoint is not None
    return int(result.checkpoint.to_dict()["rounds"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of a run that nothing happened to."""
    trainer = counting_trainer({"depth": 3, "warns": "trees are few"}, storage_path=str(tmp_path_factory.mktemp("run")))
    return trainer.fit()


def test_a_round_is_an_iteration_and_the_last_one_has_the_model(finished: Result) -> None:
    assert rounds_of(finished) == [1, 2, 3, 4, 5, 6]
    assert finished.metrics["training_iteration"] == 6
    assert checkpoint_names(finished) == ["checkpoint_000006"]
    assert kept_rounds(finished) == 6
    check_run(finished.path)


def test_values_are_combined_by_the_number_of_rows(finished: Result) -> None:
    assert finished.metrics["train-error"] == pytest.approx(3 / 7)  # rank 0 has 4 of the 7 rows


@pytest.mark.parametrize(
    ("checkpoints", "names"),
    [
        ({"checkpoint_frequency": 2}, ["checkpoint_000002", "checkpoint_000004", "checkpoint_000006"]),
        ({"checkpoint_frequency": 4}, ["checkpoint_000004", "checkpoint_000006"]),
        ({"checkpoint_frequency": 4, "checkpoint_at_end": False}, ["checkpoint_000004"]),
        ({"checkpoint_at_end": False}, []),
        ({"checkpoint_frequency": 1, "num_to_keep": 2}, ["checkpoint_000005", "checkpoint_000006"]),
        ({"checkpoint_frequency": 4, "async_save": True}, ["checkpoint_000004", "checkpoint_000006"]),
        ({"checkpoint_frequency": 4, "keep_all_ranks": True}, ["checkpoint_000004", "checkpoint_000006"]),
    ],
)
def test_checkpoints_are_named_after_their_iteration(checkpoints: dict[str, Any], names: list[str]) -> None:
    result = counting_trainer(inline=True, checkpoints=checkpoints).fit()
    assert checkpoint_names(result) == names
    check_run(result.path)


def test_without_files_the_model_is_in_the_result() -> None:
    result = counting_trainer(inline=True, checkpoints={"num_to_keep": 0}).fit()
    assert checkpoint_names(result) == []
    assert kept_rounds(result) == 6


@pytest.mark.parametrize(
    ("checkpoints", "inline"),
    [({}, False), ({"async_save": True}, True), ({"num_to_keep": 0}, True)],
)
def test_a_run_that_is_stopped_keeps_the_model_of_its_last_row(checkpoints: dict[str, Any], inline: bool) -> None:
    settings = {"checkpoints": checkpoints, "stop": {"training_iteration": 3}}
    result = counting_trainer(inline=inline, rounds=1_000_000, **settings).fit()
    assert rounds_of(result) == [1, 2, 3]
    assert kept_rounds(result) == 3
    assert checkpoint_names(result) == ([] if checkpoints.get("num_to_keep") == 0 else ["checkpoint_000003"])


def test_a_library_that_stops_early_leaves_the_model_with_its_last_row() -> None:
    result = counting_trainer({"stop_early_at": 4}, inline=True).fit()
    assert rounds_of(result) == [1, 2, 3, 4]
    assert checkpoint_names(result) == ["checkpoint_000004"]


@pytest.mark.parametrize(
    "checkpoints",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"async_save": True},
        pytest.param({"num_to_keep": 0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_killed_worker_costs_no_round(tmp_path: Path, checkpoints: dict[str, Any]) -> None:
    result = counting_trainer(
        {"dies_at": 5, "once": str(tmp_path / "died")},
        rounds=10,
        checkpoints={"checkpoint_frequency": 2, **checkpoints},
        failure_config=FailureConfig(max_failures=1),
    ).fit()
    assert result.attempts == 2
    assert rounds_of(result) == list(range(1, 11))
    assert kept_rounds(result) == 10
    if checkpoints.get("num_to_keep") != 0:
        assert checkpoint_names(result) == [f"checkpoint_{number:06}" for number in (2, 4, 6, 8, 10)]
        check_run(result.path)


def test_resuming_trains_what_is_missing_and_numbers_on() -> None:
    first = counting_trainer(rounds=4, inline=True).fit()
    second = counting_trainer(rounds=6, inline=True, resume=first.checkpoint).fit()
    assert rounds_of(second) == [5, 6]
    assert second.metrics["training_iteration"] == 2
    assert checkpoint_names(second) == ["checkpoint_000006"]


def test_a_restored_run_goes_on_with_its_own_arguments(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError) as caught:
        counting_trainer(
            {"dies_at": 5, "once": str(tmp_path / "died")}, rounds=8, checkpoints={"checkpoint_frequency": 2}
        ).fit()
    result = CountingTrainer.restore(caught.value.result.path, datasets={"train": rows()}).fit()
    assert rounds_of(result) == list(range(1, 9))
    assert checkpoint_names(result) == [f"checkpoint_{number:06}" for number in (2, 4, 6, 8)]
    check_run(result.path)


def test_a_finished_run_is_not_made_longer_by_restoring_it() -> None:
    result = counting_trainer(rounds=4, inline=True).fit()
    with pytest.raises(RestoreError, match="resume_from_checkpoint"):
        CountingTrainer.restore(result.path, datasets={"train": rows()}, num_boost_round=6)
    assert rounds_of(CountingTrainer.restore(result.path, datasets={"train": rows()}).fit()) == [1, 2, 3, 4]


def test_a_damaged_checkpoint_is_made_again_under_its_number(tmp_path: Path) -> None:
    """The journal has given the number up once; the new one of that name must stay."""
    with pytest.raises(TrainingFailedError) as caught:
        counting_trainer(
            {"dies_at": 5, "once": str(tmp_path / "died")}, rounds=8, checkpoints={"checkpoint_frequency": 2}
        ).fit()
    path = Path(caught.value.result.path)
    for file in (path / "checkpoint_000004").iterdir():
        if file.suffix == ".pkl":
            file.write_bytes(b"x" + file.read_bytes()[1:])
    result = CountingTrainer.restore(path, datasets={"train": rows()}).fit()
    assert any("checkpoint_000004" in warning and "damaged" in warning for warning in result.warnings)
    assert rounds_of(result) == list(range(1, 9))
    assert "checkpoint_000004" in checkpoint_names(result)
    again = CountingTrainer.restore(path, datasets={"train": rows()}).fit()  # finished: nothing to do
    assert kept_rounds(again) == 8
    assert (path / "checkpoint_000004").exists()


def test_a_restored_run_keeps_its_preprocessor_and_its_objective(tmp_path: Path) -> None:
    trainer = counting_trainer(
        {"dies_at": 5, "once": str(tmp_path / "died"), "objective": "a"}, checkpoints={"checkpoint_frequency": 2}
    )
    trainer.preprocessor = StandardScaler(["id"])
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    path = caught.value.result.path
    with pytest.raises(RestoreError, match="preprocessor="):
        CountingTrainer.restore(path, datasets={"train": rows()}, preprocessor=MinMaxScaler(["id"]))
    with pytest.raises(RestoreError, match="objective='a'"):
        CountingTrainer.restore(path, datasets={"train": rows()}, params={"objective": "b"})
    result = CountingTrainer.restore(path, datasets={"train": rows(100)}, preprocessor=StandardScaler(["id"])).fit()
    assert result.checkpoint is not None
    assert result.checkpoint.get_preprocessor().stats_ == {
        "mean(id)": 3.0,
        "std(id)": 2.0,
    }  # of the 7 rows it began with


def test_the_result_shows_the_parameters(finished: Result) -> None:
    assert finished.config == {"params": {"depth": 3, "warns": "trees are few"}}
    assert json.loads((Path(finished.path) / "params.json").read_text()) == finished.config


def test_what_a_worker_warns_about_is_in_the_result(finished: Result) -> None:
    assert finished.warnings == ["trees are few"]


def test_code_among_the_arguments_is_asked_for_again(tmp_path: Path) -> None:
    trainer = counting_trainer({"dies_at": 2, "once": str(tmp_path / "died")}, checkpoints={"checkpoint_frequency": 1})
    trainer.train_kwargs = {"callbacks": [print], "verbose_eval": 7}
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    with pytest.raises(RestoreError, match="callbacks="):
        CountingTrainer.restore(caught.value.result.path, datasets={"train": rows()})
    again = CountingTrainer.restore(caught.value.result.path, datasets={"train": rows()}, callbacks=[repr])
    assert again.train_kwargs == {"callbacks": [repr], "verbose_eval": 7}
