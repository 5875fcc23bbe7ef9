"""LightningTrainer with real workers."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from paceline import tune
from paceline.air import CheckpointConfig, DatasetConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointError, RestoreError, TrainingFailedError
from paceline.air.result import Result
from paceline.data.preprocessors import BatchMapper
from paceline.testing.invariants import check_run
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.lightning import LightningCheckpoint, LightningConfigBuilder, LightningPredictor, LightningTrainer
from tests.train.lightning.line import QUIET, ROWS, Line, dataset, loader, points


def config(epochs: int, **module: Any) -> LightningConfigBuilder:
    return LightningConfigBuilder().module(Line, **module).trainer(max_epochs=epochs, **QUIET)


def trainer(built: LightningConfigBuilder, workers: int = 2, **arguments: Any) -> LightningTrainer:
    return LightningTrainer(
        built.build(),
        **{
            "datasets": {"train": dataset(), "val": dataset()},
            "datasets_iter_config": {"batch_size": 16},
            "scaling_config": ScalingConfig(num_workers=workers),
            "run_config": RunConfig(verbose=0),
            **arguments,
        },
    )


def column(result: Result, name: str) -> list[Any]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe[name])


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory: pytest.TempPathFactory) -> Result:
    run_config = RunConfig(verbose=0, storage_path=str(tmp_path_factory.mktemp("results")))
    return trainer(config(3), run_config=run_config).fit()


def test_each_epoch_is_a_row_with_all_that_was_logged(three_epochs: Result) -> None:
    assert column(three_epochs, "epoch") == [0, 1, 2]
    assert column(three_epochs, "step") == [4, 8, 12]
    losses = column(three_epochs, "loss")
    assert losses[2] < losses[1] < losses[0]
    assert column(three_epochs, "val_loss")[2] < losses[2]
    assert [Path(str(each.path)).name for each, _ in three_epochs.best_checkpoints] == [
        "checkpoint_000000",
        "checkpoint_000001",
        "checkpoint_000002",
    ]


def test_ranks_share_the_rows_and_agree_about_the_weights(three_epochs: Result) -> None:
    rows = three_epochs.rank_dataframe
    assert list(rows["rows"]) == [ROWS / 2] * 6
    of_epoch = rows.groupby("training_iteration")["sum_of_rows"].sum()
    assert list(of_epoch) == [sum(range(ROWS))] * 3
    assert set(rows["disagreement"]) == {0.0}


def test_what_the_settings_were_is_in_the_result(three_epochs: Result) -> None:
    assert three_epochs.metrics is not None
    shown = three_epochs.metrics["config"]["lightning_config"]
    assert shown["module"] == "Line"
    assert shown["trainer_args"]["max_epochs"] == 3


def test_lightning_files_are_not_kept_twice(three_epochs: Result) -> None:
    assert three_epochs.path is not None
    assert sorted(path.parent.name for path in Path(three_epochs.path).rglob("*.ckpt")) == [
        "checkpoint_000000",
        "checkpoint_000001",
        "checkpoint_000002",
    ]
    assert os.listdir(Path(three_epochs.path, "rank_0")) == ["checkpoints"]
    assert os.listdir(Path(three_epochs.path, "rank_0", "checkpoints")) == ["mine.txt"]  # of the module itself


def test_what_nobody_can_do_anything_about_is_not_said(three_epochs: Result) -> None:
    said = Path(str(three_epochs.path), "logs", "rank_0.log").read_text()
    assert "max_epochs=3" in said
    assert "litlogger" not in said
    assert "LeafSpec" not in said


def test_a_dataset_is_predicted_with_the_checkpoint(three_epochs: Result) -> None:
    assert isinstance(three_epochs.checkpoint, LightningCheckpoint)
    x, y = points()
    predictor = LightningPredictor.from_checkpoint(three_epochs.checkpoint, Line)
    np.testing.assert_allclose(predictor.predict(x)["predictions"], y, atol=1.0)
    only_x = BatchMapper(lambda batch: {"x": batch["x"]}, batch_format="numpy")
    batch_predictor = BatchPredictor.from_checkpoint(
        three_epochs.checkpoint, LightningPredictor, model_class=Line, preprocessor=only_x
    )
    predicted = batch_predictor.predict(dataset(), keep_columns=["y"]).to_pandas()
    np.testing.assert_allclose(predicted["predictions"], predicted["y"], atol=1.0)


@pytest.mark.timeout(300)  # with the fixture, workers start and load Lightning three times
def test_training_goes_on_at_the_next_epoch_and_again_after_a_killed_rank(three_epochs: Result) -> None:
    short = config(6, fails_at=(4, 1)).trainer(limit_train_batches=3, limit_val_batches=2)
    result = trainer(
        short.checkpointing(monitor="val_loss", save_top_k=2),
        resume_from_checkpoint=three_epochs.checkpoint,
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert column(result, "epoch") == [3, 4, 5]
    assert column(result, "step") == [15, 18, 21]
    assert column(result, "rows") == [3 * 16] * 3  # the rows that an epoch leaves are not the next one's
    assert column(result, "val_rows") == [2 * 16] * 3
    assert column(result, "loss")[0] < column(three_epochs, "loss")[2]
    assert len(result.best_checkpoints) == 2  # of three: as many as Lightning was told to keep
    assert set(column(result, "disagreement")) == {0.0}


def test_a_run_that_goes_on_with_nothing_left_to_do_says_so(three_epochs: Result) -> None:
    result = trainer(
        config(3).checkpointing(monitor="val_loss"), workers=1, resume_from_checkpoint=three_epochs.checkpoint
    ).fit()
    assert result.metrics_dataframe is None or result.metrics_dataframe.empty
    assert any("3 epochs" in each and "Trainer(max_epochs=3)" in each for each in result.warnings)
    said = Path(str(result.path), "logs", "rank_0.log").read_text()
    assert "ReportingModelCheckpoint" not in said  # other rules for saving than in the run before


def test_a_save_within_an_epoch_goes_on_within_it_also_with_other_workers_and_after_a_killed_rank() -> None:
    often = {"every_n_train_steps": 3, "save_top_k": -1}
    alone = trainer(config(1).checkpointing(**often), workers=1).fit()
    assert column(alone, "step") == [3, 6, 8]
    assert column(alone, "lightnings_files")[-1] == 1  # the run has a copy of each
    result = trainer(
        config(2, fails_at=(1, 3)).checkpointing(**often),
        resume_from_checkpoint=alone.best_checkpoints[0][0],
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert column(result, "step") == [6, 9, 10]
    assert column(result, "val_rows") == [ROWS] * 3
    assert [each.iteration for each, _ in result.best_checkpoints] == [1, 2]
    assert max(column(result, "lightnings_files")) == 1
    ranks = result.rank_dataframe.groupby("training_iteration")
    # Of the first epoch the worker alone had trained on three batches.
    assert list(ranks.get_group(1)["rows"]) == [(ROWS - 3 * 16) / 2] * 2
    assert ranks.get_group(1)["sum_of_rows"].sum() == sum(range(3 * 16, ROWS))
    # Three of the four batches of the last epoch had been trained on when the checkpoint was made.
    assert list(ranks.get_group(3)["rows"]) == [16] * 2


class Ending(CSVLogger):
    """Writes down how Lightning says that the training ended."""

    def finalize(self, status: str) -> None:
        Path("..", "ending").write_text(status)


def test_a_stopped_run_ends_well_and_goes_on_from_memory_with_objects_of_its_own() -> None:
    built = config(50, lr=np.float64(0.2), fails_at=(1, 0)).fit_params(train_dataloaders=loader())
    result = trainer(
        built.trainer(limit_val_batches=0, min_epochs=50, logger=Ending(".")),
        datasets={"other": dataset()},
        datasets_iter_config=None,
        run_config=RunConfig(
            verbose=0,
            stop={"training_iteration": 2},
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=0),
        ),
    ).fit()
    assert result.error is None
    assert column(result, "epoch") == [0, 1]
    # Lightning deals the user's loader over the workers.
    of_epoch = result.rank_dataframe.groupby("training_iteration")["sum_of_rows"].sum()
    assert list(of_epoch) == [sum(range(ROWS))] * 2
    assert list(result.rank_dataframe["rows"]) == [ROWS / 2] * 4
    assert Path(str(result.path), "ending").read_text() == "success"


def test_a_run_that_failed_is_restored_with_the_module_given_again(results_dir: Path) -> None:
    built = config(2, fails_at=(1, 0), raises=True).trainer(val_check_interval=0.5)
    run_config = RunConfig(verbose=0, name="restored")
    with pytest.raises(TrainingFailedError, match="rank 1: ValueError"):
        trainer(built, run_config=run_config).fit()
    path = results_dir / "restored"
    datasets = {"train": dataset(), "val": dataset()}
    with pytest.raises(RestoreError, match="lightning_config="):
        LightningTrainer.restore(path, datasets=datasets)
    result = LightningTrainer.restore(path, lightning_config=built.build(), datasets=datasets).fit()
    assert column(result, "epoch") == [0, 0, 1, 1]  # a row when Lightning has saved in the middle, one at the end
    assert column(result, "step") == [2, 4, 6, 8]
    assert column(result, "rows")[1::2] == [ROWS / 2] * 2
    assert column(result, "val_rows") == [ROWS] * 4


def test_ranks_with_unequal_numbers_of_batches_are_refused_before_they_wait_for_each_other() -> None:
    odd = dataset().limit(ROWS - 31)
    with pytest.raises(TrainingFailedError, match=r"'train'.*uneven=\"equal\""):
        trainer(config(1), datasets={"train": odd}, dataset_config={"train": DatasetConfig(uneven="all")}).fit()


def test_a_search_changes_arguments_of_the_module_and_no_checkpoints_are_made_if_none_are_wanted() -> None:
    built = config(1).trainer(enable_checkpointing=False)
    results = tune.Tuner(
        trainer(built, workers=1),
        param_space={"lightning_config": LightningConfigBuilder().module(lr=tune.grid_search([1e-6, 0.2])).build()},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=RunConfig(verbose=0),
    ).fit()
    best = results.get_best_result()
    assert best.metrics is not None
    assert best.metrics["config"]["lightning_config"]["module_args"]["lr"] == 0.2
    assert best.checkpoint is None
    assert best.metrics["rows"] == ROWS


def test_a_checkpoint_from_elsewhere_that_could_run_code_is_not_loaded(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": {"lr": Path("a")}}, tmp_path / "foreign.ckpt")
    checkpoint = LightningCheckpoint.from_path(tmp_path / "foreign.ckpt")
    with pytest.raises(TrainingFailedError, match=r"fit_params\(weights_only=False\)") as raised:
        trainer(config(1), workers=1, resume_from_checkpoint=checkpoint).fit()
    assert isinstance(raised.value.__cause__, CheckpointError)


def test_a_restored_search_loads_no_checkpoint_that_could_run_code(results_dir: Path) -> None:
    built = config(2, fails_at=(1, 0), raises=Fraction(1))  # the file holds hyperparameters, and this one as a pickle
    tune.Tuner(trainer(built), run_config=RunConfig(verbose=0, name="search")).fit()
    restored = tune.Tuner.restore(results_dir / "search", trainer(built), resume_errored=True).fit()
    assert isinstance(restored[0].error, TrainingFailedError)
    assert isinstance(restored[0].error.__cause__, CheckpointError)
    assert "fit_params(weights_only=False)" in str(restored[0].error)


def test_a_preempted_run_saves_within_the_epoch(three_epochs: Result) -> None:
    """Lightning saves nothing by itself here. What follows is as if nothing had happened."""
    built = config(3, preempted_at=(1, 2)).checkpointing(save_top_k=0)
    result = trainer(built).fit()
    check_run(result.path, result=result, attempts=2)
    assert column(result, "step") == [4, 7, 8, 12], "the preempted step has a row of its own, with the checkpoint"
    assert column(result, "loss")[3] == pytest.approx(column(three_epochs, "loss")[2])
    assert column(result, "sum_of_rows")[3] == column(three_epochs, "sum_of_rows")[2]
