"""The model from several workers, against XGBoost alone on the same rows."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from xgboost.callback import TrainingCallback

from paceline.air import session
from paceline.air.errors import TrainingFailedError
from tests.train.xgboost.boosting import FEW_VALUES, alone, quick_trainer, rows_of, trees


def tumours(seed: int = 0) -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer  # workers import this module, and need none of it

    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame.sample(frac=1.0, random_state=seed)


def few_values(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Features of a few dozen values each: XGBoost's bins hold every one of them."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 40, rows).astype(float) for index in range(6)})
    frame["y"] = frame.f0 * frame.f1 - 3.0 * frame.f2 + generator.integers(-3, 3, rows)
    return frame


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_trees_are_those_of_one_process(workers: int) -> None:
    frame = few_values()
    params = {**FEW_VALUES, "objective": "reg:squarederror", "max_depth": 4}
    expected, history = alone({"train": frame}, "y", params, 8)
    result = quick_trainer({"train": frame}, params=params, num_boost_round=8, workers=workers).fit()
    assert trees(result.checkpoint.get_model()) == trees(expected)
    assert rows_of(result, "train-rmse") == pytest.approx(history["train"]["rmse"], rel=1e-6)


@pytest.mark.slow
def test_binary_classification_reaches_the_scores_of_the_library() -> None:
    frame = tumours()
    frames = {"train": frame[:400], "valid": frame[400:]}
    params = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "nthread": 1}
    _, history = alone(frames, "target", params, 20)
    result = quick_trainer(frames, "target", params=params, num_boost_round=20).fit()
    assert len(result.metrics_dataframe) == 20
    for name in frames:
        for metric in ("logloss", "error"):
            assert rows_of(result, f"{name}-{metric}") == pytest.approx(history[name][metric], rel=1e-5, abs=1e-6)


def test_metrics_are_those_of_the_final_model_over_all_rows() -> None:
    frame = tumours(seed=1)
    frames = {"train": frame[:300], "valid": frame[300:]}
    params = {"objective": "binary:logistic", "eval_metric": "logloss"}
    result = quick_trainer(frames, "target", params=params).fit()
    model = result.checkpoint.get_model()
    for name, rows in frames.items():
        chances = model.inplace_predict(rows.drop(columns="target"))
        loss = -np.log(np.where(rows.target == 1, chances, 1 - chances)).mean()
        assert result.metrics[f"{name}-logloss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_multiclass_and_regression_reach_the_scores_of_the_library() -> None:
    from sklearn.datasets import load_diabetes, load_iris

    iris = load_iris(as_frame=True).frame.sample(frac=1.0, random_state=0)
    several = {"objective": "multi:softprob", "num_class": 3, "eval_metric": "mlogloss", "nthread": 1}
    _, expected = alone({"train": iris[:100], "valid": iris[100:]}, "target", several, 10)
    result = quick_trainer(
        {"train": iris[:100], "valid": iris[100:]}, "target", params=several, num_boost_round=10
    ).fit()
    assert rows_of(result, "valid-mlogloss") == pytest.approx(expected["valid"]["mlogloss"], rel=1e-5)

    diabetes = load_diabetes(as_frame=True).frame
    params = {"objective": "reg:squarederror", "max_depth": 3, "nthread": 1}
    _, expected = alone({"train": diabetes[:300], "valid": diabetes[300:]}, "target", params, 15)
    result = quick_trainer(
        {"train": diabetes[:300], "valid": diabetes[300:]}, "target", params=params, num_boost_round=15
    ).fit()
    assert rows_of(result, "valid-rmse") == pytest.approx(expected["valid"]["rmse"], rel=1e-3)


def test_auc_of_an_evaluation_set_is_exact_and_that_of_train_is_told_to_be_approximate() -> None:
    frame = tumours()
    frames = {"train": frame[:400], "valid": frame[400:]}
    params = {"objective": "binary:logistic", "eval_metric": "auc", "max_depth": 2, "nthread": 1}
    _, history = alone(frames, "target", params, 5)
    trainer = quick_trainer(frames, "target", params=params)
    with pytest.warns(UserWarning, match=r"auc.*'train'.*weighted mean"):
        result = trainer.fit()
    assert rows_of(result, "valid-auc") == pytest.approx(history["valid"]["auc"], rel=1e-6)
    assert result.metrics["train-auc"] == pytest.approx(history["train"]["auc"][-1], abs=0.02)


def test_a_worker_without_rows_takes_part() -> None:
    frame = few_values(rows=4)
    frame["y"] = [0, 1, 2, 1]
    frame["query"] = [1, 1, 1, 1]
    result = quick_trainer(
        {"train": frame}, params={"objective": "rank:ndcg"}, dmatrix_params={"train": {"qid": "query"}}
    ).fit()
    assert result.checkpoint.get_model().num_boosted_rounds() == 5


class NoteThreads(TrainingCallback):
    """Writes down how many threads XGBoost uses in each worker."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        threads = json.loads(model.save_config())["learner"]["generic_param"]["nthread"]
        (self.folder / f"rank_{session.get_world_rank()}").write_text(threads)
        return False


@pytest.mark.parametrize("given", [{}, pytest.param({"nthread": 3}, marks=pytest.mark.slow), {"n_jobs": 2}])
def test_workers_share_the_cores_unless_told_otherwise(given: dict[str, int], tmp_path: Path) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    quick_trainer({"train": few_values()}, params=given, num_boost_round=1, callbacks=[NoteThreads(tmp_path)]).fit()
    expected = next(iter(given.values()), share)
    assert [int((tmp_path / f"rank_{rank}").read_text()) for rank in range(2)] == [expected, expected]


class NoteSockets(TrainingCallback):
    """Writes down where each worker waits for connections: an address, and whether a stranger gets an answer there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                copy = socket.socket(fileno=os.dup(int(name)))
            except OSError:  # no socket
                continue
            with copy:
                internet = copy.family in (socket.AF_INET, socket.AF_INET6)
                if internet and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    address, port = copy.getsockname()[:2]
                    found.append([address, address == "0.0.0.0" and answers_strangers(port)])
        (self.folder / f"rank_{session.get_world_rank()}").write_text(json.dumps(found))
        return False


def answers_strangers(port: int) -> bool:
    """A stranger is whoever comes from another address than the workers do."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5, ("127.0.0.9", 0)):
            return True
    except TimeoutError:
        return False


def test_workers_wait_for_connections_of_their_own_machines_only(tmp_path: Path) -> None:
    quick_trainer({"train": few_values()}, num_boost_round=1, callbacks=[NoteSockets(tmp_path)]).fit()
    for rank in range(2):
        found = json.loads((tmp_path / f"rank_{rank}").read_text())
        assert found, "XGBoost opens a socket in every worker"
        assert not any(answered for _, answered in found)
        assert {address for address, _ in found} <= {"127.0.0.1", "0.0.0.0"}


def test_one_worker_opens_no_socket(tmp_path: Path) -> None:
    quick_trainer({"train": few_values()}, workers=1, num_boost_round=1, callbacks=[NoteSockets(tmp_path)]).fit()
    assert json.loads((tmp_path / "rank_0").read_text()) == []


@pytest.mark.parametrize(
    ("params", "told"),
    [({"objective": "reg:sqaurederror"}, "sqaurederror"), ({"eval_metric": "foo"}, r"metric.*\bfoo\b")],
)
def test_an_error_of_xgboost_is_told_without_places_in_its_code(params: dict[str, str], told: str) -> None:
    with pytest.raises(TrainingFailedError, match=f"XGBoostError.*{told}") as caught:
        quick_trainer({"train": few_values()}, params=params, inline=True).fit()
    assert "libxgboost.so(" not in str(caught.value)
    assert ".cc:" not in str(caught.value)


class Die(TrainingCallback):
    """Ends a worker in the midst of training."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 2 and session.get_world_rank() == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return False


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_death_of_a_worker_is_the_cause_and_what_others_see_of_it_is_not(rank: int) -> None:
    with pytest.raises(TrainingFailedError, match=f"rank {rank}: .*SIGKILL"):
        quick_trainer({"train": few_values()}, callbacks=[Die(rank)]).fit()
