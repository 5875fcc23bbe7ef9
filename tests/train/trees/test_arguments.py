"""What a tree trainer refuses, where it was written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from paceline import data
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import ConfigError, DataError
from tests.train.trees.counting import CountingTrainer, rows

GOOD: dict[str, Any] = {
    "params": {"depth": 2},
    "label_column": "label",
    "scaling_config": ScalingConfig(num_workers=2),
    "run_config": RunConfig(verbose=0),
}


def trainer(**changes: Any) -> CountingTrainer:
    return CountingTrainer(**{**GOOD, "datasets": {"train": rows(), "valid": rows()}, **changes})


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"datasets": {"valid": rows()}}, KeyError, "'train'"),
        ({"datasets": None}, KeyError, "datasets="),
        ({"dmatrix_params": {"test": {}}}, KeyError, "dmatrix_params.*'test'"),
        ({"dmatrix_params": {"weight": "id"}}, KeyError, "dmatrix_params.*dict"),
        ({"dmatrix_params": {"train": {"wieght": "id"}}}, ConfigError, "'wieght'.*'weight'"),
        ({"dmatrix_params": {"train": {"weight": [1, 2]}}}, ConfigError, "weight.*column"),
        ({"dmatrix_params": {"train": "weight"}}, ConfigError, "dmatrix_params.*dict"),
        ({"params": None}, ConfigError, "params="),
        ({"params": ["depth"]}, ConfigError, "params="),
        ({"label_column": None}, ConfigError, "label_column="),
        ({"label_column": None, "label_colum": "label"}, TypeError, "'label_colum'.*label_column"),
        ({"label_column": ["label"]}, ConfigError, r"label_column.*\['label'\]"),
        ({"num_boost_round": 0}, ConfigError, "num_boost_round"),
        ({"num_boost_round": 2.5}, ConfigError, "num_boost_round"),
        ({"callback": []}, TypeError, "'callback'.*callbacks"),
        ({"num_boost_rounds": 9}, TypeError, "'num_boost_rounds'.*num_boost_round"),
        ({"evals": []}, ConfigError, "evals"),
        ({"train_loop_config": {}}, ConfigError, "train_loop_config"),
        ({"train_loop_per_worker": print}, ConfigError, "function.*params="),
        ({"dataset_config": {"train": DatasetConfig(split=False)}}, ConfigError, "'train'.*split"),
        ({"dataset_config": {"trian": DatasetConfig()}}, ConfigError, "'trian'.*'train'"),
    ],
)
def test_refused_at_construction(changes: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        trainer(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"label_column": "target"}, r"label_column='target'.*'train'.*id, label"),
        ({"dmatrix_params": {"valid": {"weight": "w"}}}, "weight='w'.*'valid'"),
        ({"scaling_config": ScalingConfig()}, "num_workers"),
    ],
)
def test_refused_before_workers_start(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        trainer(**changes).to_run_spec()


def test_checkpoint_settings_do_not_go_with_a_function() -> None:
    config = RunConfig(verbose=0, checkpoint_config=CheckpointConfig(checkpoint_frequency=2))
    with pytest.raises(ConfigError, match="ReportCallback"):
        CountingTrainer(print, scaling_config=ScalingConfig(num_workers=1), run_config=config)


@pytest.mark.parametrize(
    ("in_parts", "config", "split"),
    [
        (True, None, True),
        (False, None, False),
        (True, {"valid": DatasetConfig(split=False)}, False),
        (False, {"valid": DatasetConfig(split=True)}, True),
        (True, DataConfig(datasets_to_split=["train"]), False),
        (False, DataConfig(datasets_to_split="all"), True),
        (True, DataConfig(shuffle="rows"), True),
    ],
)
def test_evaluation_sets_are_dealt_where_their_metrics_allow_it(in_parts: bool, config: Any, split: bool) -> None:
    configs = trainer(params={"in_parts": in_parts}, dataset_config=config).get_dataset_config()
    assert configs["train"].split is True
    assert configs["valid"].split is split
    assert {config.uneven for config in configs.values()} == {"all"}


def test_a_function_gets_datasets_as_everywhere_else() -> None:
    made = CountingTrainer(print, scaling_config=ScalingConfig(num_workers=1), datasets={"train": data.range(3)})
    assert made.get_dataset_config()["train"].uneven == "equal"


@pytest.mark.parametrize(
    ("row", "entries", "told"),
    [
        ({"id": 1, "label": "yes"}, {}, r"'label' \(label_column\).*string.*LabelEncoder"),
        ({"id": 1, "label": datetime(2020, 1, 1)}, {}, r"'label' \(label_column\).*timestamp"),
        ({"id": 1, "label": 1, "when": datetime(2020, 1, 1)}, {}, "'when'.*timestamp.*'ignore'"),
        ({"label": 1}, {}, "features.*label"),
        ({"id": 1, "label": 1}, {"weight": "id"}, "features.*id, label"),
    ],
)
def test_what_the_types_show_is_told_before_workers_start(
    row: dict[str, Any], entries: dict[str, Any], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        trainer(datasets={"train": data.from_items([row] * 4)}, dmatrix_params={"train": entries}).to_run_spec()
