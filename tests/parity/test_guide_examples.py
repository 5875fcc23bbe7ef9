"""The framework-neutral examples of the guides, ported by replacing the package's name.

They run on DataParallelTrainer: what a framework adds is tested in its own folder. Where this
library decided otherwise than the printed output, the test says so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.train.base_trainer import TrainingFailedError
from paceline.tune.logger import LoggerCallback

TWO = ScalingConfig(num_workers=2)

DATE = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"

LAST_ROW: dict[str, Any] = {
    "epoch": 1,
    "training_iteration": 2,
    "_training_iteration": 2,
    "iterations_since_restore": 2,
    "done": True,
    "config": {},
    "experiment_tag": "0",
    "timesteps_since_restore": 0,
    "timesteps_total": None,
    "episodes_total": None,
    "date": re.compile(DATE),
    "experiment_id": re.compile(r"[0-9a-f]{32}"),
    "trial_id": re.compile(r"[0-9a-f]{5}_00000"),
    "hostname": re.compile(r".+"),
    "node_ip": re.compile(r"[0-9.]+"),
    "pid": int,
    "timestamp": int,
    "_timestamp": int,
    "time_this_iter_s": float,
    "_time_this_iter_s": float,
    "time_since_restore": float,
    "time_total_s": float,
    "warmup_time": float,
}
"""What the guides show of the last of two rows: values, patterns, or kinds of values."""


def quiet(**settings: Any) -> RunConfig:
    return RunConfig(verbose=0, **settings)


def fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, re.Pattern):
        return isinstance(value, str) and wanted.fullmatch(value) is not None
    return type(value) is wanted if isinstance(wanted, type) else value == wanted


# -- configuring training -----------------------------------------------------------------


def report_by_session(config: dict[str, Any]) -> None:
    for i in range(config["num_epochs"]):
        session.report({"epoch": i})


def report_by_train(config: dict[str, Any]) -> None:
    for i in range(config["num_epochs"]):
        train.report({"epoch": i})


def report_by_keywords(config: dict[str, Any]) -> None:
    for i in range(config["num_epochs"]):
        train.report(epoch=i)


@pytest.mark.parametrize("train_func", [report_by_session, report_by_train, report_by_keywords])
def test_a_config_is_passed_to_the_function(train_func: Any) -> None:
    trainer = DataParallelTrainer(
        train_func, train_loop_config={"num_epochs": 2}, scaling_config=TWO, run_config=quiet()
    )
    result = trainer.fit()
    # The guides print result.metrics["num_epochs"], which the loop never reports: they mean "epoch".
    assert result.metrics["epoch"] == 1
    assert result.metrics["config"] == {"train_loop_config": {"num_epochs": 2}}


def test_the_keys_of_the_last_row() -> None:
    def train_func() -> None:
        for i in range(2):
            session.report({"epoch": i})

    result = DataParallelTrainer(train_func, scaling_config=TWO, run_config=quiet()).fit()
    assert set(result.metrics) == set(LAST_ROW)
    assert [key for key, wanted in LAST_ROW.items() if not fits(result.metrics[key], wanted)] == []
    assert result.metrics["trial_id"].startswith(result.metrics["experiment_id"][:5])
    frame = result.metrics_dataframe
    assert frame["epoch"].tolist() == [0, 1]
    assert set(frame.columns) >= set(result.metrics) - {"config"}


def test_accessing_the_result(tmp_path: Path) -> None:
    def train_func() -> None:
        for epoch in range(4):
            session.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    result = DataParallelTrainer(train_func, scaling_config=TWO, run_config=quiet(storage_path=str(tmp_path))).fit()
    assert result.checkpoint is not None
    assert len(result.best_checkpoints) == 4
    assert result.error is None
    # The guides print a checkpoint's directory for log_dir; it is the trial's, as in the releases.
    assert result.log_dir is not None
    assert re.fullmatch(f"DataParallelTrainer_{DATE}", result.log_dir.parent.name)
    kind, path = result.checkpoint.get_internal_representation()
    assert kind == "local_path"
    assert Path(path) == result.log_dir / "checkpoint_000003"


# -- checkpoints --------------------------------------------------------------------------


def test_saving_checkpoints() -> None:
    def train_func(config: dict[str, Any]) -> None:
        weights = 1.0
        for epoch in range(config["num_epochs"]):
            weights /= 2
            checkpoint = Checkpoint.from_dict({"epoch": epoch, "model_weights": {"weight": weights}})
            session.report({}, checkpoint=checkpoint)

    trainer = DataParallelTrainer(
        train_func, train_loop_config={"num_epochs": 5}, scaling_config=TWO, run_config=quiet()
    )
    result = trainer.fit()
    assert result.checkpoint is not None
    found = result.checkpoint.to_dict()
    assert list(found) == ["epoch", "model_weights", "_timestamp", "_preprocessor", "_current_checkpoint_id"]
    assert (found["epoch"], found["_preprocessor"], found["_current_checkpoint_id"]) == (4, None, 4)
    assert found["model_weights"] == {"weight": 1 / 32}


def test_no_checkpoints_on_disk() -> None:
    def train_func() -> None:
        for epoch in range(3):
            train.save_checkpoint(epoch=epoch)

    checkpoint_config = CheckpointConfig(num_to_keep=0)
    trainer = DataParallelTrainer(train_func, scaling_config=TWO, run_config=quiet(checkpoint_config=checkpoint_config))
    result = trainer.fit()
    check_run(result.path, result=result, iterations=3)
    assert list(Path(result.path).glob("checkpoint_*")) == []
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 2


def test_the_two_best_checkpoints() -> None:
    def train_func() -> None:
        for loss in (2, 4, 1, 3):  # the rows are all alike: what the checkpoints hold decides
            session.report({"loss": 2}, checkpoint=Checkpoint.from_dict({"loss": loss}))

    checkpoint_config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    trainer = DataParallelTrainer(train_func, scaling_config=TWO, run_config=quiet(checkpoint_config=checkpoint_config))
    result = trainer.fit()
    check_run(result.path, result=result, iterations=4)
    assert result.best_checkpoints[0][0].get_internal_representation() == (
        "local_path", f"{result.path}/checkpoint_000000",
    )  # fmt: skip
    assert result.best_checkpoints[1][0].get_internal_representation() == (
        "local_path", f"{result.path}/checkpoint_000002",
    )  # fmt: skip
    # The newest one stays beside them, for a retry or a restore.
    assert result.checkpoint is not None
    assert result.checkpoint.path == f"{result.path}/checkpoint_000003"


@pytest.mark.parametrize(("then", "number"), [pytest.param(4, 3, marks=pytest.mark.slow), (5, 4)])
def test_loading_checkpoints(then: int, number: int) -> None:
    """The guides print the numbers 2 and 3: here a new run goes on after the loaded one, so 3 and 4."""

    def train_func(config: dict[str, Any]) -> None:
        start_epoch, weights = 0, 1.0
        checkpoint = session.get_checkpoint()
        if checkpoint:
            saved = checkpoint.to_dict()
            weights, start_epoch = saved["model_weights"], saved["epoch"] + 1
        for epoch in range(start_epoch, config["num_epochs"]):
            weights /= 2
            session.report({}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "model_weights": weights}))

    def trainer(num_epochs: int, **arguments: Any) -> DataParallelTrainer:
        config = {"num_epochs": num_epochs}
        return DataParallelTrainer(
            train_func, train_loop_config=config, scaling_config=TWO, run_config=quiet(), **arguments
        )

    first = trainer(2).fit()
    result = trainer(then, resume_from_checkpoint=first.checkpoint).fit()
    assert result.checkpoint is not None
    found = result.checkpoint.to_dict()
    assert (found["epoch"], found["_current_checkpoint_id"]) == (then - 1, number)
    assert found["model_weights"] == 0.5**then


def test_the_oldest_spelling_saves_and_loads() -> None:
    def train_func() -> None:
        state = train.load_checkpoint() or {"epoch": -1}
        for epoch in range(state["epoch"] + 1, 3):
            train.save_checkpoint(epoch=epoch)
            train.report(epoch=epoch, rank=train.world_rank(), of=train.world_size(), local=train.local_rank())

    first = DataParallelTrainer(train_func, scaling_config=TWO, run_config=quiet()).fit()
    # Saving is a report too: it counts as an iteration.
    assert first.metrics_dataframe["epoch"].dropna().tolist() == [0, 1, 2]
    assert first.metrics["training_iteration"] == 6
    assert [(each["rank"], each["of"], each["local"]) for each in first.rank_metrics.values()] == [(0, 2, 0), (1, 2, 1)]


# -- callbacks ----------------------------------------------------------------------------

PRINTED_BY_CALLBACK = [
    ["trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"],
    *(
        [
            "epoch", "_timestamp", "_time_this_iter_s", "_training_iteration", "time_this_iter_s", "done",
            "timesteps_total", "episodes_total", "training_iteration", "trial_id", "experiment_id", "date",
            "timestamp", "time_total_s", "pid", "hostname", "node_ip", "config", "time_since_restore",
            "timesteps_since_restore", "iterations_since_restore", "warmup_time", "experiment_tag",
        ],
    )
    * 2,
]  # fmt: skip


def test_a_custom_callback() -> None:
    class Collecting(LoggerCallback):
        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            self.rows.append(trial.last_result)

    def train_func() -> None:
        for i in range(3):
            session.report({"epoch": i})

    callback = Collecting()
    DataParallelTrainer(train_func, run_config=quiet(callbacks=[callback]), scaling_config=TWO).fit()
    # The keys come in the order in which the guide prints them, one row late, as there.
    assert [list(row) for row in callback.rows] == PRINTED_BY_CALLBACK
    assert [row.get("epoch") for row in callback.rows] == [None, 0, 1]
    assert [row.get("done") for row in callback.rows] == [None, False, False]
    assert [row.get("training_iteration") for row in callback.rows] == [None, 1, 2]


# -- fault tolerance ----------------------------------------------------------------------


def fail_twice(config: dict[str, Any]) -> None:
    """Saves and loads, as the guide demands of a function that wants to keep its progress."""
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(start, 4):
        if session.get_world_rank() == 0 and epoch in (1, 3) and Marks(config["marks"]).claim(str(epoch)):
            os._exit(1)
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


@pytest.mark.parametrize("max_failures", [-1, pytest.param(2, marks=pytest.mark.slow)])
def test_worker_failures_are_retried(tmp_path: Path, max_failures: int) -> None:
    result = DataParallelTrainer(
        fail_twice,
        train_loop_config={"marks": str(tmp_path / "marks")},
        scaling_config=TWO,
        run_config=quiet(failure_config=FailureConfig(max_failures=max_failures)),
    ).fit()
    check_run(result.path, result=result, iterations=4, attempts=3)
    assert result.metrics_dataframe["epoch"].tolist() == [0, 1, 2, 3]


def test_too_many_failures(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        fail_twice,
        train_loop_config={"marks": str(tmp_path / "marks")},
        scaling_config=TWO,
        run_config=quiet(failure_config=FailureConfig(max_failures=1)),
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    assert caught.value.result is not None
    assert caught.value.result.metrics["epoch"] == 2
    assert len(caught.value.failures) == 2


# -- every generation's names are one thing -----------------------------------------------


def test_one_class_under_all_its_names() -> None:
    import paceline
    import paceline.air.checkpoint
    import paceline.air.config
    import paceline.train.data_parallel_trainer

    for name in ("ScalingConfig", "RunConfig", "CheckpointConfig", "FailureConfig", "Checkpoint", "Result"):
        assert getattr(paceline.air, name) is getattr(paceline.train, name)
    assert paceline.air.config.ScalingConfig is ScalingConfig
    assert paceline.air.checkpoint.Checkpoint is Checkpoint
    assert paceline.train.data_parallel_trainer.DataParallelTrainer is DataParallelTrainer
    assert train.get_checkpoint is session.get_checkpoint
    assert train.get_dataset_shard is session.get_dataset_shard
