"""XGBoost and LightGBM side by side: what tests of both need, under the same names.

Neither library is imported before it is used: a worker of one shall not load the other.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn  # noqa: F401  (sets variables when it is imported, which no test shall be blamed for)

from paceline import data
from paceline.air import Checkpoint, Result, RunConfig, ScalingConfig, session
from paceline.testing.processes import Marks

_RUN_CONFIG = ("name", "storage_path", "checkpoint_config", "failure_config", "stop", "engine", "verbose")


@dataclass(frozen=True)
class Task:
    """Something to learn; parameters and metrics are named as the libraries name them."""

    name: str
    frames: Mapping[str, pd.DataFrame]
    params: Mapping[str, Mapping[str, Any]]
    metric: Mapping[str, str]
    query: str | None = None
    """The column that says to which query a row belongs."""

    def __str__(self) -> str:
        return self.name

    def datasets(self) -> dict[str, data.Dataset]:
        return {name: data.from_pandas(frame) for name, frame in self.frames.items()}

    def features(self, name: str) -> pd.DataFrame:
        return self.frames[name].drop(columns=["target", *filter(None, [self.query])])

    def labels(self, name: str) -> pd.Series:
        return self.frames[name]["target"]


class Library(ABC):
    """What a test asks of either library."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    @abstractmethod
    def trainer_class(self) -> Any: ...

    @property
    @abstractmethod
    def predictor_class(self) -> Any: ...

    @property
    @abstractmethod
    def connecting(self) -> ModuleType:
        """The module whose `join` connects a worker with the others."""

    @abstractmethod
    def before_rounds(self, action: Callable[[int], None]) -> Any:
        """A callback that calls `action` before each round, with its number from 1."""

    @abstractmethod
    def objective(self, gradient: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        """The trainer's arguments for an objective of predictions and labels."""

    @abstractmethod
    def early_stopping(self, rounds: int) -> dict[str, Any]:
        """The trainer's arguments for it."""

    @abstractmethod
    def rounds(self, checkpoint: Checkpoint | None) -> int:
        """How many rounds the model of a checkpoint has."""

    @abstractmethod
    def model_text(self, checkpoint: Checkpoint | None) -> str:
        """All splits and leaves of its model."""

    @abstractmethod
    def alone(self, task: Task, rounds: int, **params: Any) -> tuple[list[float], np.ndarray]:
        """The library without us, in this process: the metric of "valid" by round, and predictions for "valid"."""

    def params(self, task: Task) -> dict[str, Any]:
        return dict(task.params[self.name])

    def key(self, task: Task, dataset: str = "valid") -> str:
        """The task's metric as rows have it."""
        return f"{dataset}-{task.metric[self.name]}"

    def trainer(self, task: Task, *, workers: int = 2, **arguments: Any) -> Any:
        """A quiet trainer; what is not given follows from the task, and some entries of RunConfig may be given too."""
        run_config = {name: arguments.pop(name) for name in _RUN_CONFIG if name in arguments}
        workers = 1 if run_config.get("engine") == "inline" else workers
        matrix_params = {name: {"qid": task.query} for name in task.frames} if task.query else None
        settings = {
            "params": self.params(task),
            "label_column": "target",
            "num_boost_round": 10,
            "datasets": task.datasets(),
            "dmatrix_params": matrix_params,
            "scaling_config": ScalingConfig(num_workers=workers),
            "run_config": RunConfig(**{"verbose": 0, **run_config}),
        }
        return self.trainer_class(**{**settings, **arguments})


class XGBoost(Library):
    name = "xgboost"

    @property
    def trainer_class(self) -> Any:
        return import_module("paceline.train.xgboost").XGBoostTrainer

    @property
    def predictor_class(self) -> Any:
        return import_module("paceline.train.xgboost").XGBoostPredictor

    @property
    def connecting(self) -> ModuleType:
        return import_module("paceline.train.xgboost.backend")

    def before_rounds(self, action: Callable[[int], None]) -> Any:
        from xgboost.callback import TrainingCallback

        class Before(TrainingCallback):
            def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                action(epoch + 1)
                return False

        return Before()

    def objective(self, gradient: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        return {"obj": lambda predictions, matrix: gradient(predictions, matrix.get_label())}

    def early_stopping(self, rounds: int) -> dict[str, Any]:
        return {"early_stopping_rounds": rounds}

    def rounds(self, checkpoint: Checkpoint | None) -> int:
        return int(_model(checkpoint).num_boosted_rounds())

    def model_text(self, checkpoint: Checkpoint | None) -> str:
        return "\n".join(_model(checkpoint).get_dump(with_stats=True))

    def alone(self, task: Task, rounds: int, **params: Any) -> tuple[list[float], np.ndarray]:
        import xgboost

        def matrix(name: str, ref: Any = None) -> xgboost.QuantileDMatrix:
            queries = task.frames[name][task.query] if task.query else None
            bins = params.get("max_bin", 256)
            return xgboost.QuantileDMatrix(
                task.features(name), task.labels(name), qid=queries, ref=ref, max_bin=bins, nthread=1
            )

        train = matrix("train")
        valid = matrix("valid", train)
        history: dict[str, Any] = {}
        booster = xgboost.train(
            {**self.params(task), "nthread": 1, **params},
            train,
            rounds,
            evals=[(train, "train"), (valid, "valid")],
            evals_result=history,
            verbose_eval=False,
        )
        return history["valid"][task.metric[self.name]], booster.inplace_predict(task.features("valid"))


class LightGBM(Library):
    name = "lightgbm"

    @property
    def trainer_class(self) -> Any:
        return import_module("paceline.train.lightgbm").LightGBMTrainer

    @property
    def predictor_class(self) -> Any:
        return import_module("paceline.train.lightgbm").LightGBMPredictor

    @property
    def connecting(self) -> ModuleType:
        return import_module("paceline.train.lightgbm.backend")

    def before_rounds(self, action: Callable[[int], None]) -> Any:
        class Before:
            before_iteration = True
            order = 0

            def __call__(self, env: Any) -> None:
                action(env.iteration + 1)

        return Before()

    def objective(self, gradient: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        return {
            "params": {
                "objective": lambda predictions, dataset: gradient(predictions, dataset.get_label()),
                "metric": "l2",
            }
        }

    def early_stopping(self, rounds: int) -> dict[str, Any]:
        import lightgbm

        return {"callbacks": [lightgbm.early_stopping(rounds, verbose=False)]}

    def rounds(self, checkpoint: Checkpoint | None) -> int:
        return int(_model(checkpoint).current_iteration())

    def model_text(self, checkpoint: Checkpoint | None) -> str:
        text = str(_model(checkpoint).model_to_string(num_iteration=-1))
        return text[text.index("Tree=0") : text.index("end of trees")]

    def alone(self, task: Task, rounds: int, **params: Any) -> tuple[list[float], np.ndarray]:
        import lightgbm

        def dataset(name: str, reference: Any = None) -> lightgbm.Dataset:
            groups = None
            if task.query:
                groups = task.frames[name].groupby(task.query, sort=False).size().to_numpy()
            return lightgbm.Dataset(task.features(name), task.labels(name), group=groups, reference=reference)

        train = dataset("train")
        history: dict[str, Any] = {}
        booster = lightgbm.train(
            {**self.params(task), "num_threads": 1, "verbosity": -1, **params},
            train,
            rounds,
            valid_sets=[train, dataset("valid", train)],
            valid_names=["train", "valid"],
            callbacks=[lightgbm.record_evaluation(history)],
        )
        return history["valid"][task.metric[self.name]], np.asarray(booster.predict(task.features("valid")))


XGBOOST, LIGHTGBM = XGBoost(), LightGBM()
both_libraries = pytest.mark.parametrize("library", [XGBOOST, LIGHTGBM], ids=str)
one_library = pytest.mark.parametrize("library", [XGBOOST, pytest.param(LIGHTGBM, marks=pytest.mark.slow)], ids=str)
other_library = pytest.mark.parametrize("library", [pytest.param(XGBOOST, marks=pytest.mark.slow), LIGHTGBM], ids=str)
"""For behaviour that hardly depends on the library: `make test-all` runs the other one too."""


def _model(checkpoint: Any) -> Any:
    assert checkpoint is not None
    return checkpoint.get_model()


def rows_of(result: Result, key: str) -> list[float]:
    """A metric round by round."""
    assert result.metrics_dataframe is not None
    return [float(value) for value in result.metrics_dataframe[key]]


# -- what to learn ------------------------------------------------------------------------


def _halves(frame: pd.DataFrame, rows: int) -> dict[str, pd.DataFrame]:
    return {"train": frame[:rows].reset_index(drop=True), "valid": frame[rows:].reset_index(drop=True)}


def _mixed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sample(frac=1.0, random_state=0)


def binary() -> Task:
    """Benign or malignant tumours."""
    from sklearn.datasets import load_breast_cancer

    return Task(
        "binary",
        _halves(_mixed(load_breast_cancer(as_frame=True).frame), 400),
        {
            "xgboost": {"objective": "binary:logistic", "eval_metric": ["error", "logloss"]},
            "lightgbm": {"objective": "binary", "metric": ["binary_error", "binary_logloss"]},
        },
        {"xgboost": "logloss", "lightgbm": "binary_logloss"},
    )


def multiclass() -> Task:
    """Which digit an image of 8 x 8 pixels shows."""
    from sklearn.datasets import load_digits

    return Task(
        "multiclass",
        _halves(_mixed(load_digits(as_frame=True).frame), 1200),
        {
            "xgboost": {"objective": "multi:softprob", "num_class": 10, "eval_metric": "mlogloss"},
            "lightgbm": {"objective": "multiclass", "num_class": 10, "metric": "multi_logloss"},
        },
        {"xgboost": "mlogloss", "lightgbm": "multi_logloss"},
    )


def regression() -> Task:
    """How far diabetes went within a year."""
    from sklearn.datasets import load_diabetes

    return Task(
        "regression",
        _halves(_mixed(load_diabetes(as_frame=True, scaled=False).frame), 300),
        {
            "xgboost": {"objective": "reg:squarederror", "max_depth": 3, "eta": 0.1},
            "lightgbm": {"objective": "regression", "metric": "rmse", "num_leaves": 8},
        },
        {"xgboost": "rmse", "lightgbm": "rmse"},
    )


def ranking() -> Task:
    """Each query has 20 images of digits; the larger the digit, the more relevant."""
    from sklearn.datasets import load_digits

    frame = _mixed(load_digits(as_frame=True).frame)
    frame["target"] //= 2
    frame["query"] = np.arange(len(frame)) // 20
    return Task(
        "ranking",
        _halves(frame, 1200),
        {
            "xgboost": {"objective": "rank:ndcg", "eval_metric": "ndcg@5"},
            "lightgbm": {"objective": "lambdarank", "metric": "ndcg", "eval_at": [5]},
        },
        {"xgboost": "ndcg@5", "lightgbm": "ndcg@5"},
        query="query",
    )


# -- what happens in a round ----------------------------------------------------------------


@dataclass(frozen=True)
class Notes:
    """Notes every round that a rank begins; before one of them it does something, once per rank and test."""

    marks: str
    at: int = 0
    rank: int | None = None
    """None: every rank."""
    do: Callable[[Notes], None] | None = None

    def __call__(self, number: int) -> None:
        rank = session.get_world_rank()
        marks = Marks(self.marks)
        marks.say("round", rank=rank, number=number, pid=os.getpid())
        if self.do is not None and number == self.at and self.rank in (None, rank) and marks.claim(f"rank {rank}"):
            self.do(self)


def killed(notes: Notes) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def held(notes: Notes) -> None:
    """Wait for the test."""
    marks = Marks(notes.marks)
    marks.say("held", rank=session.get_world_rank())
    marks.pass_gate("worker")
