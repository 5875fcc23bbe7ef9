"""Datasets of a run before its workers start: made, counted, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import paceline.data
from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.data.preprocessors import MinMaxScaler
from paceline.train import DataParallelTrainer
from paceline.train.arguments import check_datasets


def test_a_dataset_of_another_library_is_named_with_the_way_to_bring_it() -> None:
    hugging_face = pytest.importorskip("datasets").Dataset.from_dict({"x": [1]})
    with pytest.raises(ConfigError, match=r"'train'.*datasets\.arrow_dataset\.Dataset\b.*from_huggingface\(\)"):
        check_datasets({"train": hugging_face}, None)
    with pytest.raises(ConfigError, match=r"'train'.*pandas.*\.DataFrame\b.*from_pandas\(\)"):
        check_datasets({"train": pd.DataFrame()}, None)


def test_rows_of_a_shuffled_union_are_counted_once_for_all_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.data import execution

    (tmp_path / "more.csv").write_text("id\n" + "\n".join(str(number) for number in range(100, 130)) + "\n")
    both = paceline.data.range(100).random_shuffle(seed=1).union(paceline.data.read_csv(str(tmp_path)))
    shard = DataIterator(prepared("train", both))

    def refused(plan: Any) -> Any:
        raise AssertionError(f"counted again: {plan.describe()}")

    monkeypatch.setattr(execution, "count_rows", refused)
    for _ in range(3):
        assert sorted(row["id"] for row in shard.iter_rows()) == list(range(130))


def report_values(config: dict[str, Any]) -> None:
    values = [row["x"] for row in session.get_dataset_shard("numbers").iter_rows()] if config["read"] else []
    session.report({"values": values}, checkpoint=Checkpoint.from_dict({}))


def test_a_preprocessor_is_fitted_on_the_only_dataset_or_ignored_without_one(tmp_path: Path) -> None:
    def fitted(datasets: dict[str, Any]) -> Any:
        trainer = DataParallelTrainer(
            report_values,
            train_loop_config={"read": bool(datasets)},
            datasets=datasets,
            preprocessor=MinMaxScaler(["x"]),
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline"),
        )
        return trainer.fit()

    numbers = paceline.data.from_items([{"x": 0.0}, {"x": 4.0}])
    result = fitted({"numbers": numbers})
    assert result.metrics["values"] == [0.0, 1.0]
    assert result.checkpoint.get_preprocessor().stats_ == {"min(x)": 0.0, "max(x)": 4.0}
    assert any("'numbers'" in warning for warning in result.warnings)
    result = fitted({})
    assert result.checkpoint.get_preprocessor() is None
    assert any("MinMaxScaler" in warning and "ignored" in warning for warning in result.warnings)
    with pytest.raises(ConfigError, match=r"'train'.*\['numbers', 'test'\].*fit=True"):
        fitted({"numbers": numbers, "test": numbers})


def test_an_error_of_a_function_that_makes_a_dataset_names_the_dataset(tmp_path: Path) -> None:
    def no_such_table() -> Any:
        raise KeyError("sales")

    trainer = DataParallelTrainer(
        lambda: None,
        datasets={"train": no_such_table},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(KeyError) as told:
        trainer.fit()
    assert "datasets['train']" in told.value.__notes__[0]
