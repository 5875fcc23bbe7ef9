"""One function on every worker: what it finds there, and what becomes of its reports."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline import data, train
from paceline.air import Checkpoint, CheckpointConfig, DatasetConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, MetricError, SerializationError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer
from tests.train.quick import quick_trainer


def rank_rows(result: train.Result, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of what every rank reported, in the order of iterations and ranks."""
    frame = result.rank_dataframe
    return list(frame[list(columns)].itertuples(index=False, name=None))


# -- what a worker finds ------------------------------------------------------------------


def test_three_generations_of_the_session_in_one_loop() -> None:
    def loop(config: dict[str, Any]) -> None:
        context = train.get_context()
        assert train.world_size() == session.get_world_size() == context.get_world_size() == 2
        assert train.world_rank() == session.get_world_rank() == context.get_world_rank()
        assert train.local_rank() == session.get_local_rank() == context.get_local_rank()
        assert session.get_local_world_size() == context.get_local_world_size() == 2
        assert [train.load_checkpoint(), session.get_checkpoint(), train.get_checkpoint()] == [None] * 3
        train.save_checkpoint(epoch=0, of="2.0")
        assert (train.load_checkpoint() or {})["of"] == "2.0"
        session.report({"epoch": 1}, checkpoint=Checkpoint.from_dict({"epoch": 1, "of": "AIR"}))
        newest = train.get_checkpoint()
        assert newest is not None
        assert newest.to_dict()["of"] == "AIR"
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "of.txt").write_text("2.7")
            train.report({"epoch": 2}, checkpoint=train.Checkpoint.from_directory(directory))
        newest = session.get_checkpoint()
        assert newest is not None
        with newest.as_directory() as directory:
            assert Path(directory, "of.txt").read_text() == "2.7"
        train.report(epoch=3, loss=0.5)
        assert session.get_dataset_shard("train") is train.get_dataset_shard() is None

    result = quick_trainer(loop, config={}).fit()
    check_run(result.path, result=result, iterations=4, attempts=1)
    assert (result.metrics["epoch"], result.metrics["loss"]) == (3, 0.5)
    assert [Path(str(checkpoint.path)).name for checkpoint, _ in result.best_checkpoints] == [
        f"checkpoint_00000{number}" for number in range(3)
    ]


def test_a_report_takes_a_dict_or_keywords_not_both() -> None:
    def loop() -> None:
        with pytest.raises(MetricError, match=r"dict.*keywords"):
            train.report({"a": 1}, b=2)
        train.report({"a": 1})

    assert quick_trainer(loop, inline=True).fit().rank_metrics == {0: {"a": 1}}


def test_what_a_worker_knows_of_itself_and_its_run() -> None:
    def loop() -> None:
        resources = session.get_trial_resources()
        assert resources is not None
        session.report(
            {
                "cwd": os.getcwd(),
                "trial_dir": session.get_trial_dir(),
                "names": [session.get_experiment_name(), session.get_trial_name(), session.get_trial_id()],
                "bundles": len(resources.bundles),
                "node": [session.get_node_rank(), session.get_local_rank()],
                "metadata": session.get_metadata(),
                "main_thread": threading.current_thread() is threading.main_thread(),
                "run_id": os.environ["PACELINE_RUN_ID"],
            }
        )

    result = quick_trainer(loop, name="experiment", metadata={"owner": "me"}).fit()
    trial_id = result.metrics["trial_id"]
    for rank, found in result.rank_metrics.items():
        assert found["cwd"] == str(Path(result.path) / f"rank_{rank}")
        assert found["trial_dir"] == result.path
        assert found["names"] == ["experiment", f"DataParallelTrainer_{trial_id}", trial_id]
        assert found["bundles"] == 3  # the trainer's own and one per worker
        assert found["node"] == [0, rank]
        assert found["metadata"] == {"owner": "me"}
        assert found["main_thread"]
        assert found["run_id"] == result.metrics["experiment_id"]
    assert trial_id == f"{result.metrics['experiment_id'][:5]}_00000"


def test_files_with_relative_names_do_not_clash() -> None:
    def loop() -> None:
        Path("notes.txt").write_text(str(session.get_world_rank()))
        session.report({})

    result = quick_trainer(loop).fit()
    assert [Path(result.path, f"rank_{rank}", "notes.txt").read_text() for rank in (0, 1)] == ["0", "1"]


def test_the_function_gets_a_copy_of_the_config() -> None:
    def loop(config: dict[str, Any]) -> None:
        config["changed"] = True
        session.report({"got": config["lr"]})

    given = {"lr": 0.1}
    result = quick_trainer(loop, workers=1, config=given).fit()
    assert result.metrics["got"] == 0.1
    assert result.metrics["config"] == result.config == {"train_loop_config": {"lr": 0.1}}
    assert given == {"lr": 0.1}


def test_a_config_that_the_function_does_not_take_is_warned_about() -> None:
    def loop() -> None:
        session.report({"got": None})

    with pytest.warns(UserWarning, match=r"loop\(\).*argument") as caught:
        trainer = DataParallelTrainer(
            loop,
            train_loop_config={"lr": 0.1},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=train.RunConfig(verbose=0, engine="inline"),
        )
    assert [warning.filename for warning in caught] == [__file__]
    result = trainer.fit()
    assert result.metrics["got"] is None
    assert result.config == {"train_loop_config": {"lr": 0.1}}


def test_a_config_may_hold_what_is_no_plain_data() -> None:
    def loop(config: dict[str, Any]) -> None:
        for step in range(2):
            value = config["function"](step)
            session.report({"value": value}, checkpoint=Checkpoint.from_dict({"value": value}))

    result = quick_trainer(loop, workers=1, config={"function": lambda step: step + 0.5, "kind": Path}).fit()
    check_run(result.path, result=result, iterations=2)
    assert result.metrics["value"] == 1.5
    assert result.config is not None
    assert result.config["train_loop_config"]["kind"] is Path
    read = train.Result.from_path(result.path)
    assert [row["value"] for _, row in read.best_checkpoints] == [0.5, 1.5]


def test_without_a_config_there_is_an_empty_one() -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"keys": len(config)})

    result = quick_trainer(loop, inline=True).fit()
    assert (result.metrics["keys"], result.metrics["config"]) == (0, {})


def test_what_the_function_returns_is_dropped() -> None:
    def loop() -> Any:
        session.report({})
        return threading.Lock()  # cannot be pickled

    assert quick_trainer(loop, workers=1).fit().error is None


def test_a_function_that_never_reports() -> None:
    result = quick_trainer(lambda: None, inline=True).fit()
    assert result.error is None
    assert result.checkpoint is None
    assert result.metrics_dataframe.empty
    assert result.metrics["done"] is True


# -- reports of several ranks -------------------------------------------------------------


def test_rank_zero_is_the_row_and_all_ranks_are_kept() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(3):
            session.report({"step": step, "loss": 10 * rank + step})

    result = quick_trainer(loop, workers=3).fit()
    assert result.metrics_dataframe["loss"].tolist() == [0, 1, 2]
    assert result.rank_metrics == {rank: {"step": 2, "loss": 10 * rank + 2} for rank in range(3)}
    assert rank_rows(result, "training_iteration", "rank", "loss") == [
        (step + 1, rank, 10 * rank + step) for step in range(3) for rank in range(3)
    ]


def test_values_reduced_over_ranks() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(2):
            reduced = session.report(
                {"loss": float(rank + step), "n": 10, "rank": rank}, reduce={"loss": "mean", "n": "sum"}
            )
            assert reduced == {"loss": 1.0 + step, "n": 30}
        assert session.report({"plain": rank}) is None

    result = quick_trainer(loop, workers=3).fit()
    rows = result.metrics_dataframe
    assert rows["loss"].tolist()[:2] == [1.0, 2.0]
    assert rows["n"].tolist()[:2] == [30, 30]
    assert rows["rank"].tolist()[:2] == [0, 0]  # what is not reduced is rank 0's
    own = result.rank_dataframe
    assert own[own["training_iteration"] == 1]["loss"].tolist() == [0.0, 1.0, 2.0]


def test_a_reduction_goes_with_a_checkpoint_and_decides_about_the_stop() -> None:
    def loop() -> None:
        for step in range(10):
            value = float(step + session.get_world_rank())
            session.report({"mean": value}, checkpoint=Checkpoint.from_dict({"step": step}), reduce={"mean": "mean"})

    result = quick_trainer(loop, stop={"mean": 2.5}).fit()
    check_run(result.path, result=result, iterations=3)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 2
    assert result.best_checkpoints[-1][1]["mean"] == 2.5


@pytest.mark.parametrize("missing", ["other keys", "no reduction", "no report"])
@pytest.mark.parametrize("lonely", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_reduction_that_a_rank_does_not_take_part_in_fails_at_once(missing: str, lonely: int) -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"loss": 1.0})
        if session.get_world_rank() != config["lonely"]:
            session.report({"loss": 1.0}, reduce={"loss": "mean"})
        elif config["missing"] == "other keys":
            session.report({"loss": 1.0, "n": 1}, reduce={"n": "sum"})
        elif config["missing"] == "no reduction":
            session.report({"loss": 1.0})

    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(loop, config={"missing": missing, "lonely": lonely}).fit()
    assert ("unequally often" if missing == "no report" else "reduce") in str(caught.value)
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)


def test_only_rank_zero_may_report_and_save() -> None:
    def loop() -> None:
        if session.get_world_rank() == 0:
            for step in range(2):
                session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=2)
    assert [warning for warning in result.warnings if "nly rank 0" in warning]
    assert list(result.rank_metrics) == [0]


# -- what cannot work ---------------------------------------------------------------------


def two_arguments(config: dict[str, Any], other: int) -> None:
    raise AssertionError


def keyword_only(*, lr: float) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"train_loop_per_worker": two_arguments}, "two_arguments"),
        ({"train_loop_per_worker": keyword_only}, "keyword_only"),
        ({"train_loop_per_worker": 7}, r"train_loop_per_worker.*\bint\b"),
        ({"train_loop_per_worker": None}, "train_loop_per_worker.*None"),
        ({"train_loop_config": [1]}, "train_loop_config.*dict"),
        ({"backend_config": "torch"}, "backend_config.*BackendConfig"),
        ({"scaling_config": {"num_workers": 2}}, "scaling_config.*ScalingConfig"),
        ({"run_config": "name"}, "run_config.*RunConfig"),
        ({"datasets": [1]}, "datasets.*dict"),
        ({"resume_from_checkpoint": {"epoch": 1}}, "resume_from_checkpoint.*Checkpoint"),
        (
            {"run_config": train.RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=2))},
            "checkpoint_frequency=2",
        ),
        (
            {"run_config": train.RunConfig(checkpoint_config=CheckpointConfig(checkpoint_at_end=True))},
            "checkpoint_at_end=True",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_construction(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        DataParallelTrainer(**{"train_loop_per_worker": lambda: None, **arguments})


def test_how_many_workers_must_be_known_by_the_time_of_fit(results_dir: Path) -> None:
    trainer = DataParallelTrainer(lambda: None)
    with pytest.raises(ConfigError, match=r"num_workers=2"):
        trainer.fit()
    assert not results_dir.exists()


def test_a_run_that_can_never_start_offers_no_restore(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.engine.local.engine.usable_cores", lambda: 1)
    trainer = DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=300))
    with pytest.raises(ConfigError, match=r"num_workers=300 is more than") as raised:
        trainer.fit()
    assert vars(raised.value)["result"].how_to_continue == ""
    assert "To continue" not in capsys.readouterr().out


def test_what_cannot_travel_is_refused_before_anything_is_written(results_dir: Path) -> None:
    lock = threading.Lock()

    def loop() -> None:
        with lock:
            pass

    with pytest.raises(SerializationError, match="lock"):
        quick_trainer(loop).fit()
    assert not results_dir.exists()


def test_training_loop_is_not_for_this_trainer() -> None:
    class Confused(DataParallelTrainer):
        def training_loop(self) -> None:
            raise AssertionError

    with pytest.raises(ConfigError, match=r"training_loop.*BaseTrainer"):
        Confused(lambda: None, scaling_config=ScalingConfig(num_workers=1))


class WithMethod(DataParallelTrainer):
    """Has a method of the name of the argument, and how datasets reach the workers, in its class."""

    _dataset_config = {"train": DatasetConfig(split=False), "extra": DatasetConfig(split=True)}
    _scaling_config_allowed_keys = DataParallelTrainer._scaling_config_allowed_keys + ["num_workers"]  # noqa: RUF005

    def __init__(self, **arguments: Any) -> None:
        super().__init__(lambda: session.report({"from": "argument"}), **arguments)

    def train_loop_per_worker(self) -> str:
        return "method"


def test_a_method_of_the_name_of_the_argument_stays_a_method() -> None:
    trainer = WithMethod(scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(engine="inline", verbose=0))
    assert trainer.train_loop_per_worker() == "method"
    assert trainer.fit().metrics["from"] == "argument"


def test_a_class_may_say_how_datasets_reach_the_workers() -> None:
    datasets = {"train": data.range(4), "extra": data.range(4)}
    whole = WithMethod(datasets=datasets).get_dataset_config()
    assert {name: config.split for name, config in whole.items()} == {"train": False, "extra": True}
    given = WithMethod(datasets=datasets, dataset_config={"train": DatasetConfig(split=True)}).get_dataset_config()
    assert {name: config.split for name, config in given.items()} == {"train": True, "extra": True}


def reports_and_looks() -> None:
    storage = train.get_context().get_storage()
    seen: list[Any] = [len(train.get_all_reported_checkpoints())]
    for step in range(3):
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        reported = train.get_all_reported_checkpoints()
        seen.append([[each.checkpoint.to_dict()["step"], each.metrics["step"]] for each in reported])
    paths = [storage.trial_fs_path, storage.experiment_fs_path, storage.storage_fs_path]
    there = storage.storage_filesystem.get_file_info(storage.trial_fs_path).type.name
    train.report({"seen": seen, "paths": paths, "name": storage.experiment_dir_name, "there": there})


def test_a_worker_knows_the_storage_and_the_checkpoints_of_its_run() -> None:
    result = quick_trainer(reports_and_looks, inline=True, name="mine").fit()
    assert result.metrics["seen"] == [0, [[0, 0]], [[0, 0], [1, 1]], [[0, 0], [1, 1], [2, 2]]]
    assert result.metrics["there"] == "Directory"
    trial = Path(result.path)
    assert result.metrics["paths"] == [str(trial), str(trial.parent), str(trial.parent.parent)]
    assert result.metrics["name"] == "mine"


def test_a_name_for_the_checkpoint_directory_is_rejected_with_advice() -> None:
    def loop() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name="best")

    with pytest.raises(TrainingFailedError, match=r"checkpoint_dir_name='best'.*checkpoint_000000.*set_metadata"):
        quick_trainer(loop, inline=True).fit()
