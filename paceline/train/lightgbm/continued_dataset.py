"""LightGBM's dataset, for a training that may be the continuation of another one. Imported by workers only."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np


class ContinuedDataset(lgb.Dataset):
    """Keeps the initial scores of its rows when training goes on from a model.

    LightGBM would put the model's predictions in their place, and train another model than without the break.
    """

    def __init__(self, data: Any, *, init_score: np.ndarray | None = None, **settings: Any) -> None:
        super().__init__(data, init_score=init_score, **settings)
        self._given_init_score = init_score

    def _set_init_score_by_predictor(self, predictor: Any, data: Any, used_indices: Any) -> ContinuedDataset:
        predicted = predictor.predict(data=data, raw_score=True)
        given = self._given_init_score
        self.set_init_score(predicted if given is None else predicted + given)
        return self
