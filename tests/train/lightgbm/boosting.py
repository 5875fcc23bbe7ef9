"""What the tests of LightGBMTrainer share: quick trainers, and LightGBM alone to compare with."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest

from paceline import data
from paceline.air import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.lightgbm import LightGBMTrainer

QUIET = {"verbosity": -1, "num_threads": 1}
EXACT = {"min_data_in_leaf": 1, "num_leaves": 8}
"""Several workers estimate how many rows a leaf has from sums of hessians; with 1 nothing depends on it. Few leaves
have many rows: no two splits are equally good, and it does not matter in which order numbers were added up."""


def quick_trainer(
    frames: dict[str, Any],
    label: str = "y",
    *,
    workers: int = 2,
    inline: bool = False,
    checkpoints: CheckpointConfig | None = None,
    run_config: dict[str, Any] | None = None,
    **arguments: Any,
) -> LightGBMTrainer:
    """A quiet trainer on these frames, in this process with `inline`; other arguments are LightGBMTrainer's."""
    settings = {"params": {"objective": "regression"}, "num_boost_round": 5, **arguments}
    return LightGBMTrainer(
        label_column=label,
        datasets={
            name: data.from_pandas(rows) if isinstance(rows, pd.DataFrame) else rows for name, rows in frames.items()
        },
        scaling_config=ScalingConfig(num_workers=1 if inline else workers),
        run_config=RunConfig(
            **{
                "verbose": 0,
                "engine": "inline" if inline else None,
                "checkpoint_config": checkpoints or CheckpointConfig(),
                **(run_config or {}),
            }
        ),
        **settings,
    )


def alone(
    frames: dict[str, pd.DataFrame], label: str, params: dict[str, Any], rounds: int, **keywords: Any
) -> tuple[lightgbm.Booster, dict[str, Any]]:
    """LightGBM without us, in this process: the booster and its metrics by round."""
    settings = {**QUIET, **params}
    plain = {name: value for name, value in settings.items() if not callable(value)}
    train = lightgbm.Dataset(frames["train"].drop(columns=label), frames["train"][label], params=plain)
    others = [
        lightgbm.Dataset(rows.drop(columns=label), rows[label], reference=train)
        for name, rows in frames.items()
        if name != "train"
    ]
    history: dict[str, Any] = {}
    callbacks = [*keywords.pop("callbacks", []), lightgbm.record_evaluation(history)]
    booster = lightgbm.train(
        settings,
        train,
        rounds,
        valid_sets=[train, *others],
        valid_names=list(frames),
        callbacks=callbacks,
        keep_training_booster=True,
        **keywords,
    )
    return booster, history


def rows_of(result: Result, key: str) -> list[float]:
    """A metric round by round."""
    assert result.metrics_dataframe is not None
    return [float(value) for value in result.metrics_dataframe[key]]


def trees(booster: lightgbm.Booster) -> str:
    """All splits and leaves, as text."""
    text = str(booster.model_to_string(num_iteration=-1))
    return text[text.index("Tree=0") : text.index("end of trees")]


def assert_same_model(booster: lightgbm.Booster, expected: lightgbm.Booster) -> None:
    """The same splits, and leaves of the same values up to the order of additions."""
    kept = ("Tree=", "split_feature=", "threshold=", "decision_type=", "left_child=", "cat_threshold=")
    ours, theirs = trees(booster).splitlines(), trees(expected).splitlines()
    assert [line for line in ours if line.startswith(kept)] == [line for line in theirs if line.startswith(kept)]
    assert _leaves(ours) == pytest.approx(_leaves(theirs), rel=1e-9)


def _leaves(lines: list[str]) -> list[float]:
    values = [line.removeprefix("leaf_value=") for line in lines if line.startswith("leaf_value=")]
    return [float(value) for line in values for value in line.split()]


def numbers(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Sorted by a feature on which the label depends: each worker sees other values of it."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({f"f{index}": generator.normal(size=rows) for index in range(5)}).sort_values("f0")
    frame["y"] = frame.f0 + frame.f1**2 + 0.3 * frame.f2 * frame.f3 + generator.normal(0, 0.1, rows)
    return frame.reset_index(drop=True)


def classes(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    frame = numbers(rows, seed)
    return frame.assign(y=(frame.y > 1).astype(int))
