"""Which datasets are split, and what may be said about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import ConfigError

DEFAULT = {"train": DatasetConfig(fit=True, split=True), "*": DatasetConfig()}


def test_defaults_are_filled_in() -> None:
    config = DatasetConfig().fill_defaults()
    assert (config.fit, config.split, config.required, config.transform) == (False, False, False, True)
    assert config.randomize_block_order is True
    assert config.max_object_store_memory_fraction == -1
    assert config.uneven == "equal"
    assert DatasetConfig(global_shuffle=True).fill_defaults().randomize_block_order is False


def test_what_the_user_says_wins() -> None:
    merged = DatasetConfig.merge(DEFAULT, {"train": DatasetConfig(split=False), "side": DatasetConfig(split=True)})
    assert merged["train"] == DatasetConfig(fit=True, split=False)
    assert merged["side"].split
    assert DatasetConfig.merge(DEFAULT, None) == DEFAULT
    with pytest.raises(ConfigError, match="side"):
        DatasetConfig.merge(DEFAULT, {"side": True})  # type: ignore[dict-item]


def test_one_complete_config_per_dataset() -> None:
    config = DatasetConfig.validated({**DEFAULT, "*": DatasetConfig(transform=False)}, {"train": 1, "valid": 2})
    assert set(config) == {"train", "valid"}
    assert config["train"].split
    assert config["train"].transform is False
    assert not config["valid"].split
    assert DatasetConfig.validated(DEFAULT, None) == {}


@pytest.mark.parametrize(
    ("config", "datasets", "message"),
    [
        ({"train": DatasetConfig(required=True)}, {}, "required"),
        ({"train": DatasetConfig()}, {"train": 1, "valid": 2}, "'valid'"),
        ({"*": DatasetConfig(fit=True)}, {"train": 1, "valid": 2}, "one dataset"),
    ],
)
def test_configs_that_do_not_fit_the_datasets(config: Any, datasets: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetConfig.validated(config, datasets)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "yes"}, "split"),
        ({"uneven": "drop"}, "uneven"),
        ({"max_object_store_memory_fraction": 2}, "memory_fraction"),
        ({"global_shuffle": True, "randomize_block_order": True}, "global_shuffle"),
    ],
)
def test_dataset_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**settings)


def test_train_alone_is_split_by_default() -> None:
    config = DataConfig()
    assert (config.splits("train"), config.splits("valid")) == (True, False)
    assert (config.uneven_for("train"), config.uneven_for("valid")) == ("equal", "all")
    assert DataConfig(datasets_to_split="all").splits("valid")
    assert DataConfig(datasets_to_split=["a"]).splits("train") is False
    assert DataConfig(uneven="error").uneven_for("train") == "error"
    for wrong in ("some", [1], {"train"}):
        with pytest.raises(ConfigError, match="datasets_to_split"):
            DataConfig(datasets_to_split=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="uneven"):
        DataConfig(uneven="no")  # type: ignore[arg-type]


def test_a_config_takes_a_seed_of_numpy() -> None:
    assert type(DataConfig(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"seed.*-1"):
        DatasetConfig(seed=-1)


def test_one_name_is_not_a_list_of_names() -> None:
    with pytest.raises(ConfigError, match=r"\['train'\].*'all'"):
        DataConfig(datasets_to_split="train")
