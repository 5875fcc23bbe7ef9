"""What cannot be pickled is named as the user knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression  # here, because it changes variables of the process

from paceline.air import ScalingConfig
from paceline.air.errors import SerializationError
from paceline.data import from_items
from paceline.run.attempt import pickled_task
from paceline.train import BaseTrainer, DataParallelTrainer
from paceline.train.huggingface import TransformersTrainer
from paceline.train.lightgbm import LightGBMTrainer
from paceline.train.sklearn import SklearnTrainer
from paceline.train.xgboost import XGBoostTrainer

ONE = ScalingConfig(num_workers=1)


def train_func(config: dict[str, Any]) -> None: ...


def with_closure() -> Callable[[], None]:
    lock = threading.Lock()

    def loop() -> None:
        lock.acquire()

    return loop


class Own(BaseTrainer):
    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.gate = gate


def table() -> dict[str, Any]:
    return {"label_column": "y", "datasets": {"train": from_items([{"a": 1.0, "y": 0}])}, "scaling_config": ONE}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: DataParallelTrainer(
                train_func, train_loop_config={"model": {"l": threading.Lock()}}, scaling_config=ONE
            ),
            r"^train_loop_config\['model'\]\['l'\] \(_thread.lock\)",
        ),
        (
            lambda: DataParallelTrainer(with_closure(), scaling_config=ONE),
            r"^train_loop_per_worker: closure variable 'lock' of loop\(\)",
        ),
        (
            lambda: TransformersTrainer(
                lambda train_dataset, eval_dataset, l: None,  # noqa: E741
                trainer_init_config={"l": threading.Lock()},
                scaling_config=ONE,
            ),
            r"^trainer_init_config\['l'\]",
        ),
        (lambda: XGBoostTrainer(params={"l": threading.Lock()}, **table()), r"^params\['l'\]"),
        (lambda: LightGBMTrainer(params={"l": threading.Lock()}, **table()), r"^params\['l'\]"),
        (
            lambda: SklearnTrainer(
                estimator=LogisticRegression(), scoring=with_closure(), **{**table(), "scaling_config": None}
            ),
            r"^SklearnTrainer\.scoring: closure variable 'lock'",
        ),
        (lambda: Own(threading.Lock()), r"^Own\.gate \(_thread.lock\)"),
    ],
    ids=["config", "closure", "transformers", "xgboost", "lightgbm", "sklearn", "own"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_travel_is_named_as_the_user_knows_it(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(SerializationError, match=told):
        pickled_task(make().to_run_spec())
