"""datasets=, dataset_config= and preprocessor= of trainers: who gets which rows, and what is refused."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import Checkpoint, DataConfig, DatasetConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, DataError, RestoreError, SerializationError, TrainingFailedError
from paceline.data.preprocessors import BatchMapper, StandardScaler
from paceline.testing.invariants import check_run
from paceline.testing.processes import wait_for
from paceline.train import DataParallelTrainer

pytestmark = pytest.mark.filterwarnings("ignore:get_dataset_shard:UserWarning")  # loops ask for all that there may be

TRAIN = paceline.data.from_items([{"id": number, "x": float(number)} for number in range(10)])
OTHER = paceline.data.from_items([{"id": 100 + number, "x": float(number)} for number in range(3)])


def trainer(loop: Any, datasets: Any, *, workers: int = 2, **arguments: Any) -> DataParallelTrainer:
    """A quiet trainer; a single worker is this process."""
    return DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, engine="inline" if workers == 1 else None),
        datasets=datasets,
        **arguments,
    )


def tell_all() -> None:
    """Two epochs of every dataset there is, as ids; and the sum of x in the first."""
    row: dict[str, Any] = {}
    for name in ("train", "valid", "test"):
        shard = session.get_dataset_shard(name)
        if shard is not None:
            row[name] = [[int(each) for batch in shard.iter_batches(batch_size=2) for each in batch["id"]]]
            row[name].append([int(each) for batch in shard.iter_batches(batch_size=2) for each in batch["id"]])
            row[f"{name}_x"] = sorted(float(each["x"]) for each in shard.take_all())
    session.report(row, checkpoint=Checkpoint.from_dict({}))


def told(*arguments: Any, **settings: Any) -> dict[int, dict[str, Any]]:
    """What each rank said of its datasets."""
    result = trainer(tell_all, *arguments, **settings).fit()
    check_run(result.path, result=result)
    return result.rank_metrics


# -- who gets what ------------------------------------------------------------------------


def test_train_is_split_and_the_others_are_whole() -> None:
    first, second = told({"train": TRAIN, "valid": OTHER}).values()
    assert first["train"] == [[0, 1, 2, 3, 4]] * 2  # not shuffled unless asked for
    assert second["train"] == [[5, 6, 7, 8, 9]] * 2
    assert first["valid"] == second["valid"] == [[100, 101, 102]] * 2


def test_data_config_says_which_datasets_are_split() -> None:
    config = DataConfig(datasets_to_split=["valid"])
    first, second = told({"train": TRAIN, "valid": OTHER}, dataset_config=config).values()
    assert first["train"] == second["train"] == [list(range(10))] * 2
    assert (first["valid"], second["valid"]) == ([[100, 101]] * 2, [[102]] * 2)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_data_config_shuffles_anew_in_each_epoch(workers: int) -> None:
    config = DataConfig(shuffle="rows", seed=4)
    runs = [told({"train": TRAIN, "valid": OTHER}, dataset_config=config, workers=workers) for _ in range(2)]
    assert [run[0]["train"] for run in runs] == [runs[0][0]["train"]] * 2  # the seed makes it the same
    epochs = [[row for rank in range(workers) for row in runs[0][rank]["train"][epoch]] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert runs[0][0]["valid"] == [[100, 101, 102]] * 2


BY_NAME = {
    "train": DatasetConfig(split=False, randomize_block_order=False),
    "*": DatasetConfig(split=True, randomize_block_order=False),
}


@pytest.mark.slow
def test_dataset_configs_by_name_and_for_the_rest() -> None:
    first, second = told({"train": TRAIN, "valid": OTHER, "test": OTHER}, dataset_config=BY_NAME).values()
    assert first["train"] == second["train"] == [list(range(10))] * 2
    for name in ("valid", "test"):
        assert (first[name], second[name]) == ([[100, 101]] * 2, [[102]] * 2)


def test_the_config_that_a_trainer_uses_can_be_asked_for() -> None:
    configs = trainer(tell_all, {"train": TRAIN, "valid": OTHER}).get_dataset_config()
    assert (configs["train"].split, configs["train"].fit, configs["train"].uneven) == (True, True, "equal")
    assert (configs["valid"].split, configs["valid"].fit, configs["valid"].uneven) == (False, False, "all")
    named = trainer(tell_all, {"train": TRAIN, "valid": OTHER, "test": OTHER}, dataset_config=BY_NAME)
    assert {name: config.split for name, config in named.get_dataset_config().items()} == {
        "train": False,
        "valid": True,
        "test": True,
    }


def test_functions_without_arguments_make_datasets_in_fit_only() -> None:
    calls = []

    def make() -> paceline.data.Dataset:
        calls.append(os.getpid())
        return TRAIN

    lazy = trainer(tell_all, {"train": make}, workers=1)
    assert calls == []
    assert lazy.fit().rank_metrics[0]["train"][0] == list(range(10))
    assert calls == [os.getpid()]


def ask_for_shards() -> None:
    session.report(
        {
            "only": str(session.get_dataset_shard()),
            "named": str(session.get_dataset_shard("train")),
            "unknown": session.get_dataset_shard("valid") is None,
        }
    )


def test_the_only_dataset_needs_no_name() -> None:
    metrics = trainer(ask_for_shards, {"train": TRAIN}, workers=1).fit().metrics
    assert metrics["only"] == metrics["named"]
    assert metrics["only"].startswith("DataIterator(train (rank 0 of 1)")
    assert metrics["unknown"] is True


def ask_without_a_name() -> None:
    session.get_dataset_shard()


def test_one_of_several_datasets_needs_its_name() -> None:
    with pytest.raises(TrainingFailedError, match="train, valid"):
        trainer(ask_without_a_name, {"train": TRAIN, "valid": OTHER}, workers=1).fit()


# -- preprocessors ------------------------------------------------------------------------


def test_a_preprocessor_is_fitted_once_on_train_applied_to_all_and_in_the_checkpoint() -> None:
    scaler = StandardScaler(columns=["x"])
    result = trainer(tell_all, {"train": TRAIN, "valid": OTHER}, preprocessor=scaler).fit()
    assert scaler.stats_["mean(x)"] == 4.5
    first, second = result.rank_metrics.values()
    assert first["valid_x"] == second["valid_x"] == pytest.approx([(x - 4.5) / 8.25**0.5 for x in range(3)])
    assert sum(first["train_x"]) + sum(second["train_x"]) == pytest.approx(0)
    assert result.checkpoint is not None
    stored = result.checkpoint.get_preprocessor()
    assert isinstance(stored, StandardScaler)
    assert stored.stats_ == scaler.stats_


def test_a_fitted_preprocessor_is_not_fitted_again() -> None:
    scaler = StandardScaler(columns=["x"]).fit(OTHER)
    assert told({"train": TRAIN}, preprocessor=scaler, workers=1)[0]["train_x"][0] == pytest.approx(-1 / (2 / 3) ** 0.5)
    assert scaler.stats_["mean(x)"] == 1.0


def test_transform_and_fit_can_be_chosen_per_dataset() -> None:
    scaler = StandardScaler(columns=["x"])
    config = {"train": DatasetConfig(fit=False, transform=False), "valid": DatasetConfig(fit=True)}
    metrics = told({"train": TRAIN, "valid": OTHER}, preprocessor=scaler, dataset_config=config, workers=1)[0]
    assert scaler.stats_["mean(x)"] == 1.0
    assert metrics["train_x"] == [float(number) for number in range(10)]
    assert metrics["valid_x"][1] == 0.0


def test_a_preprocessor_that_cannot_tell_its_dataset_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"fitted.*'train'"):
        trainer(tell_all, {"valid": OTHER, "test": OTHER}, preprocessor=StandardScaler(columns=["x"])).fit()


def negated(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": -batch["x"]}


def test_a_preprocessor_per_epoch_comes_after_the_one_that_is_stored() -> None:
    scaler = StandardScaler(columns=["x"])
    config = {"train": DatasetConfig(per_epoch_preprocessor=BatchMapper(negated, batch_format="numpy"))}
    result = trainer(tell_all, {"train": TRAIN}, preprocessor=scaler, dataset_config=config, workers=1).fit()
    assert result.metrics["train_x"] == pytest.approx(sorted(-(x - 4.5) / 8.25**0.5 for x in range(10)))
    assert result.checkpoint is not None
    assert isinstance(result.checkpoint.get_preprocessor(), StandardScaler)


# -- what is refused ----------------------------------------------------------------------


def ray_dataset() -> Any:
    made = type("Dataset", (), {"__module__": "ray.data.dataset"})
    return made()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": [1, 2]}, "datasets.*dict"),
        ({"datasets": {"train": [1, 2]}}, r"datasets\['train'\].*Dataset.*\blist\b"),
        ({"datasets": {3: TRAIN}}, r"datasets.*\b3\b"),
        ({"datasets": {"train": ray_dataset()}}, "Ray"),
        ({"datasets": {"train": TRAIN}, "preprocessor": "scale"}, r"preprocessor.*Preprocessor.*\bstr\b"),
        ({"datasets": {"train": TRAIN}, "dataset_config": 3}, "dataset_config.*DataConfig"),
        ({"datasets": {"train": TRAIN}, "dataset_config": {"train": 3}}, r"DatasetConfig.*\bint\b"),
        (
            {"datasets": {"train": TRAIN}, "dataset_config": {"valid": DatasetConfig(required=True)}},
            "'valid'.*required",
        ),
        (
            {"datasets": {"train": TRAIN}, "dataset_config": DataConfig(datasets_to_split=["valid"])},
            r"'valid'.*'train'",
        ),
        (
            {"datasets": {"train": TRAIN, "valid": OTHER}, "dataset_config": {"valid": DatasetConfig(fit=True)}},
            "fit=True",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        DataParallelTrainer(tell_all, scaling_config=ScalingConfig(num_workers=2), **arguments)


def make_nothing() -> None:
    return None


def test_a_function_that_makes_no_dataset_is_told(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"datasets\['train'\].*NoneType"):
        trainer(tell_all, {"train": make_nothing}).fit()
    assert not list(results_dir.glob("*/*")), "a run that could not start left a directory"


def test_a_function_that_cannot_travel_is_told_before_workers_start(results_dir: Path) -> None:
    lock = threading.Lock()

    def with_lock(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    with pytest.raises(
        SerializationError, match=r"datasets\['train'\]: map\(with_lock\): closure variable 'lock' of with_lock\(\)"
    ):
        trainer(tell_all, {"train": TRAIN.map(with_lock)}).fit()
    assert not list(results_dir.glob("*/*"))


def test_restore_asks_for_the_datasets_again() -> None:
    result = trainer(tell_all, {"train": TRAIN, "valid": OTHER}, workers=1).fit()
    for given in (None, {"train": TRAIN}, {"train": TRAIN, "test": OTHER}):
        with pytest.raises(RestoreError, match=r"'train', 'valid'.*datasets="):
            DataParallelTrainer.restore(result.path, train_loop_per_worker=tell_all, datasets=given)
    again = DataParallelTrainer.restore(
        result.path, train_loop_per_worker=tell_all, datasets={"train": TRAIN, "valid": OTHER}
    ).fit()
    assert again.metrics["train"] == result.metrics["train"]


def one_epoch_in_two_reports() -> None:
    shard = session.get_dataset_shard("train")
    session.report({"ids": [row["id"] for row in shard.take_all()], "epoch": shard.epoch})
    batches = iter(shard.iter_batches(batch_size=2))
    session.report({"ids": next(batches)["id"].tolist()}, checkpoint=Checkpoint.from_dict({}))


def test_a_position_in_another_dataset_is_told_and_not_used() -> None:
    first = trainer(one_epoch_in_two_reports, {"train": TRAIN}, workers=1).fit()
    second = trainer(
        one_epoch_in_two_reports, {"train": OTHER}, workers=1, resume_from_checkpoint=first.checkpoint
    ).fit()
    assert second.metrics_dataframe["ids"][0] == [100, 101, 102]
    (told,) = [warning for warning in second.warnings if "10 rows" in warning]
    assert "start" in told
    third = trainer(
        one_epoch_in_two_reports, {"train": TRAIN}, workers=1, resume_from_checkpoint=first.checkpoint
    ).fit()
    assert third.metrics_dataframe["ids"][0] == list(range(2, 10))


@pytest.mark.slow
def test_nothing_is_left_open_after_fit() -> None:
    """Rows in memory travel as files without a name: after the run the driver holds none of them."""
    rows = paceline.data.from_items([{"id": number, "x": 1.0, "text": "abc" * 10} for number in range(5000)])

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def run() -> None:
        trainer(tell_all, {"train": rows}, dataset_config=DataConfig(shuffle="rows")).fit()

    run()  # what is opened once and kept (an engine, a log) is open now
    before, threads = descriptors(), threading.active_count()
    run()
    wait_for(lambda: descriptors() <= before and threading.active_count() <= threads, "descriptors and threads to go")


def test_a_misspelt_name_in_dataset_config_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"'trian'.*'train'"):
        DataParallelTrainer(
            lambda: None,
            datasets={"train": paceline.data.range(4)},
            dataset_config={"trian": DatasetConfig(uneven="all")},
            scaling_config=ScalingConfig(num_workers=2),
        )


def fit_once(loop: Any, tmp_path: Path, **arguments: Any) -> Any:
    return DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline"),
        **arguments,
    ).fit()


def first_value() -> None:
    (batch,) = session.get_dataset_shard("train").iter_batches(batch_size=None)
    session.report({"first": float(batch["id"][0])}, checkpoint=Checkpoint.from_dict({}))


def test_a_resumed_run_preprocesses_as_the_one_before(tmp_path: Path) -> None:
    datasets = {"train": paceline.data.range(5)}
    first = fit_once(first_value, tmp_path, datasets=datasets, preprocessor=StandardScaler(["id"]))
    again = fit_once(first_value, tmp_path, datasets=datasets, resume_from_checkpoint=first.checkpoint)
    assert again.metrics["first"] == first.metrics["first"] < 0
    assert any("preprocess" in warning for warning in again.warnings)
    assert again.checkpoint.get_preprocessor().stats_ == first.checkpoint.get_preprocessor().stats_


def only_report() -> None:
    session.report({}, checkpoint=Checkpoint.from_dict({}))


def test_a_fitted_preprocessor_without_datasets_goes_into_the_checkpoints(tmp_path: Path) -> None:
    scaler = StandardScaler(["id"]).fit(paceline.data.range(5))
    result = fit_once(only_report, tmp_path, preprocessor=scaler)
    assert result.checkpoint.get_preprocessor().stats_ == scaler.stats_


def two_passes() -> None:
    shard = session.get_dataset_shard("train")
    passes = []
    for epoch in range(shard.epoch, 2):
        rows = 0
        for batch in shard.iter_batches(batch_size=5):
            rows += len(batch["id"])
            if rows == 10 and epoch == 0:  # the last batch of the epoch, before the loop knows
                session.report({"passes": passes}, checkpoint=Checkpoint.from_dict({}))
                mark = Path(str(session.get_trial_dir()), "failed")
                if session.get_checkpoint() is not None and not mark.exists():
                    mark.touch()
                    raise RuntimeError("once")
        passes.append([epoch, rows])
    session.report({"passes": passes})


def test_a_checkpoint_after_the_last_batch_is_one_of_the_next_epoch(tmp_path: Path) -> None:
    result = DataParallelTrainer(
        two_passes,
        datasets={"train": paceline.data.range(10)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=str(tmp_path), verbose=0, engine="inline", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    assert result.attempts == 2
    assert result.metrics["passes"] == [[1, 10]]


def look_for_others() -> None:
    with pytest.warns(UserWarning, match=r"get_dataset_shard\('trian'\).*'train'"):
        assert session.get_dataset_shard("trian") is None
    with pytest.warns(UserWarning, match=r"whole.*every worker"):
        assert paceline.data.range(3).take(1) == [{"id": 0}]


def test_what_was_probably_meant_otherwise_is_warned_about(tmp_path: Path) -> None:
    result = DataParallelTrainer(
        look_for_others,
        datasets={"train": paceline.data.range(11)},
        dataset_config=DataConfig(uneven="all"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert any("uneven" in warning for warning in result.warnings)  # a collective could hang
