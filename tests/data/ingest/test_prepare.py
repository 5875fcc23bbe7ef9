"""Datasets of a run before its workers start: made, counted, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import paceline.data
from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.train import DataParallelTrainer
from paceline.train.datasets import check_datasets


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
