"""What the tests of XGBoostTrainer share: quick trainers, and XGBoost alone to compare with."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xgboost

from paceline import data
from paceline.air import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.xgboost import XGBoostTrainer

FEW_VALUES = {"tree_method": "hist", "max_bin": 256, "nthread": 1}
"""Where no feature has more values than bins, every split is considered, whoever holds the rows."""


def quick_trainer(
    frames: dict[str, Any],
    label: str = "y",
    *,
    workers: int = 2,
    inline: bool = False,
    checkpoints: Any = None,
    **arguments: Any,
) -> XGBoostTrainer:
    """A quiet trainer on these frames, in this process with `inline`; other arguments are XGBoostTrainer's."""
    settings = {
        "params": {"objective": "reg:squarederror"},
        "num_boost_round": 5,
        "run_config": RunConfig(
            verbose=0, engine="inline" if inline else None, checkpoint_config=checkpoints or CheckpointConfig()
        ),
        **arguments,
    }
    return XGBoostTrainer(
        label_column=label,
        datasets={
            name: data.from_pandas(rows) if isinstance(rows, pd.DataFrame) else rows for name, rows in frames.items()
        },
        scaling_config=ScalingConfig(num_workers=1 if inline else workers),
        **settings,
    )


def rows_of(result: Result, key: str) -> list[float]:
    """A metric round by round."""
    assert result.metrics_dataframe is not None
    return [float(value) for value in result.metrics_dataframe[key]]


def alone(
    frames: dict[str, pd.DataFrame], label: str, params: dict[str, Any], rounds: int, **keywords: Any
) -> tuple[xgboost.Booster, dict[str, Any]]:
    """XGBoost without us, in this process: the booster and its metrics by round."""
    train = _matrix(frames["train"], label)
    evals = [(train, "train")]
    evals += [(_matrix(rows, label, train), name) for name, rows in frames.items() if name != "train"]
    history: dict[str, Any] = {}
    booster = xgboost.train(params, train, rounds, evals=evals, evals_result=history, verbose_eval=False, **keywords)
    return booster, history


def _matrix(frame: pd.DataFrame, label: str, ref: Any = None) -> xgboost.QuantileDMatrix:
    return xgboost.QuantileDMatrix(frame.drop(columns=label), frame[label], ref=ref, nthread=1)


def trees(booster: xgboost.Booster) -> str:
    """All splits and leaves, as text."""
    return "\n".join(booster.get_dump(with_stats=True))
