"""Early stopping: by all rows of an evaluation set, at the same round on all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import pytest

from paceline.air import CheckpointConfig, session
from tests.train.lightgbm.boosting import EXACT, alone, classes, quick_trainer, rows_of

PARAMS = {"objective": "binary", "learning_rate": 0.5, **EXACT}
FRAMES = {"train": classes(300), "valid": classes(200, seed=1)}


class NoteRounds:
    """Writes down each worker's last round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, env: Any) -> None:
        (self.folder / f"rank_{session.get_world_rank()}").write_text(str(env.iteration + 1))


@pytest.mark.parametrize("by", ["callback", pytest.param("params", marks=pytest.mark.slow)])
def test_all_workers_stop_where_one_process_would(by: str, tmp_path: Path) -> None:
    expected, history = alone(FRAMES, "y", PARAMS, 200, callbacks=[lightgbm.early_stopping(5, verbose=False)])
    stopped_after = len(history["valid"]["binary_logloss"])
    assert stopped_after < 200
    callbacks: list[Any] = [NoteRounds(tmp_path)]
    params = dict(PARAMS)
    if by == "callback":
        callbacks.append(lightgbm.early_stopping(5, verbose=False))
    else:
        params["early_stopping_rounds"] = 5
    result = quick_trainer(FRAMES, params=params, num_boost_round=200, callbacks=callbacks).fit()
    assert rows_of(result, "valid-binary_logloss") == pytest.approx(history["valid"]["binary_logloss"], rel=1e-6)
    assert {path.read_text() for path in tmp_path.glob("rank_*")} == {str(stopped_after)}
    booster = result.checkpoint.get_model()
    assert booster.best_iteration == expected.best_iteration
    assert booster.num_trees() == stopped_after  # those after the best one are kept


def test_a_finished_training_knows_its_best_round() -> None:
    stopping = [lightgbm.early_stopping(50, verbose=False)]
    _, history = alone(FRAMES, "y", PARAMS, 30)
    result = quick_trainer(FRAMES, params=PARAMS, num_boost_round=30, callbacks=stopping, inline=True).fit()
    losses = history["valid"]["binary_logloss"]
    assert result.checkpoint.get_model().best_iteration == losses.index(min(losses)) + 1


@pytest.mark.parametrize("begin", [4, 12])
def test_a_continued_training_stops_at_the_same_round(begin: int) -> None:
    """Also where the best round lies before the break."""
    stopping = {"callbacks": [lightgbm.early_stopping(5, verbose=False)]}
    settings: dict[str, Any] = {"frames": FRAMES, "params": PARAMS, "inline": True}
    whole = quick_trainer(**settings, num_boost_round=200, **stopping).fit()
    rounds, best = whole.metrics["training_iteration"], whole.checkpoint.get_model().best_iteration
    first = quick_trainer(**settings, num_boost_round=min(begin, rounds - 1)).fit()
    second = quick_trainer(**settings, num_boost_round=200, resume_from_checkpoint=first.checkpoint, **stopping).fit()
    booster = second.checkpoint.get_model()
    assert (booster.num_trees(), booster.best_iteration) == (rounds, best)


def test_what_had_stopped_early_is_not_trained_further() -> None:
    stopping = {"callbacks": [lightgbm.early_stopping(3, verbose=False)]}
    checkpoints = CheckpointConfig(checkpoint_frequency=1)
    settings: dict[str, Any] = {"frames": FRAMES, "params": PARAMS, "inline": True, "num_boost_round": 200}
    first = quick_trainer(**settings, checkpoints=checkpoints, **stopping).fit()
    again = quick_trainer(**settings, resume_from_checkpoint=first.checkpoint, **stopping).fit()
    assert again.metrics["training_iteration"] == 1
    assert again.metrics["valid-binary_logloss"] == pytest.approx(first.metrics["valid-binary_logloss"], rel=1e-9)
    booster = again.checkpoint.get_model()
    assert booster.num_trees() == first.metrics["training_iteration"]
    assert booster.best_iteration == first.checkpoint.get_model().best_iteration


@pytest.mark.slow
def test_the_training_rows_never_stop_a_continued_training() -> None:
    """Their metric gets worse from round to round here; LightGBM looks at the other datasets only."""
    worse = {"feval": lambda predicted, _: ("worse", float(predicted.std()), False)}
    settings = {"params": {**PARAMS, "metric": "none"}, "callbacks": [lightgbm.early_stopping(2, verbose=False)]}
    only_train = {"train": FRAMES["train"]}
    with pytest.warns(UserWarning, match=r"feval.*'train'.*approximate"):
        first = quick_trainer(only_train, num_boost_round=5, **settings, **worse).fit()
    assert rows_of(first, "train-worse") == sorted(rows_of(first, "train-worse"))
    with pytest.warns(UserWarning, match=r"feval.*'train'.*approximate"):
        second = quick_trainer(
            only_train, num_boost_round=9, resume_from_checkpoint=first.checkpoint, **settings, **worse
        ).fit()
    assert second.checkpoint.get_model().num_trees() == 9
