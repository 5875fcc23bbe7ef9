"""LightGBM on two workers: columns of text, missing values, weights, and which features the trees used.

The table is made up: prices of flats by city, size and year.
"""

from __future__ import annotations

import lightgbm
import numpy as np
import pandas as pd

from paceline import data
from paceline.train import Result, RunConfig, ScalingConfig
from paceline.train.lightgbm import LightGBMPredictor, LightGBMTrainer

PRICE_PER_METER = {"Berlin": 5200.0, "Leipzig": 2900.0, "Munich": 8800.0}


def flats(rows: int) -> pd.DataFrame:
    """Prices with some noise; the year of building is often not known."""
    random = np.random.default_rng(0)
    city = random.choice(list(PRICE_PER_METER), rows)
    size = random.uniform(25, 160, rows)
    year = random.integers(1900, 2025, rows).astype(float)
    price = size * np.array([PRICE_PER_METER[name] for name in city]) * (0.7 + (year - 1900) / 400)
    year[random.random(rows) < 0.3] = np.nan
    return pd.DataFrame(
        {
            "city": city,
            "size": size,
            "year": year,
            "trust": np.where(np.isnan(year), 0.5, 1.0),  # rows with a gap count half
            "price": price * random.normal(1, 0.05, rows),
        }
    )


def fit(frame: pd.DataFrame) -> Result:
    train_rows, valid_rows = data.from_pandas(frame).train_test_split(0.25, shuffle=True, seed=0)
    weighted = {"weight": "trust"}
    return LightGBMTrainer(
        params={"objective": "regression", "metric": ["mape"], "learning_rate": 0.1},
        label_column="price",
        num_boost_round=300,
        callbacks=[lightgbm.early_stopping(10, verbose=False)],
        datasets={"train": train_rows, "valid": valid_rows},
        dmatrix_params={"train": weighted, "valid": weighted},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="flats"),
    ).fit()


def main() -> None:
    result = fit(flats(8000))
    booster = result.checkpoint.get_model()
    best = result.metrics_dataframe["valid-mape"].min()
    print(f"{result.metrics['training_iteration']} rounds, mean error {best:.1%} in round {booster.best_iteration}")

    gain = booster.feature_importance("gain")
    for name, share in zip(booster.feature_name(), gain / gain.sum(), strict=True):
        print(f"{name}: {share:.0%} of the gain")

    # Cities are text here too: the checkpoint knows the numbers that they had in training.
    asked = pd.DataFrame({"city": ["Munich", "Leipzig"], "size": [80.0, 80.0], "year": [2000.0, None]})
    prices = LightGBMPredictor.from_checkpoint(result.checkpoint).predict(asked)
    print(asked.assign(price=prices["predictions"].round(-3)))


if __name__ == "__main__":
    main()
