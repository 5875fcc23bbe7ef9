"""Result: what a run reached, and its rows when somebody asks."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened
from paceline.air.result import Result
from paceline.run.history import JournalHistory
from paceline.train import DataParallelTrainer


def kept(*metrics: dict[str, Any]) -> list[tuple[Checkpoint, dict[str, Any]]]:
    return [(Checkpoint.from_dict({"n": n}), row) for n, row in enumerate(metrics)]


def two_reports() -> None:
    session.report({"loss": 2.0, "eval": {"acc": 0.5}})
    session.report({"loss": 1.0, "eval": {"acc": 0.75}, "late": "x"})


def test_rows_are_read_when_asked_for_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunConfig(engine="inline", storage_path=str(tmp_path), verbose=0)
    result = DataParallelTrainer(two_reports, scaling_config=ScalingConfig(num_workers=1), run_config=run).fit()
    reads = []
    rows = JournalHistory.rows
    monkeypatch.setattr(JournalHistory, "rows", lambda history: reads.append(1) or rows(history))
    again = Result.from_path(result.path)
    assert reads == []
    frame = again.metrics_dataframe
    assert list(frame.columns)[:2] == ["loss", "eval/acc"]
    assert frame["eval/acc"].tolist() == [0.5, 0.75]
    assert frame["late"].isna().tolist() == [True, False]
    assert again.metrics_dataframe is frame
    assert reads == [1]
    assert again.rank_dataframe["rank"].tolist() == [0, 0]


def test_without_history_the_frames_are_empty() -> None:
    assert len(Result().metrics_dataframe) == 0
    assert len(Result().rank_dataframe) == 0


class Rows:
    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = rows

    def rows(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    rank_rows = rows


MIXED_ROWS = (
    {"whole": 1, "gone": 1, "real": 0.5, "flag": True, "text": "a", "none": None, "late_number": None, "list": [1]},
    {"whole": 2, "real": 1, "flag": False, "text": None, "none": None, "late_number": 2.5, "list": [], "empty": {}},
    {"whole": 2**70, "real": math.nan, "text": "c", "none": None, "late_number": None, "new": {"deep": {"er": 3}}},
)


def test_a_frame_has_the_columns_and_types_that_pandas_gives_to_a_list_of_rows() -> None:
    flat = [flattened(row) for row in MIXED_ROWS]
    expected = pandas.DataFrame.from_records([{k: v for k, v in row.items() if v != {}} for row in flat])
    pandas.testing.assert_frame_equal(Result(_history=Rows(*MIXED_ROWS)).metrics_dataframe, expected)


def test_places_and_config(tmp_path: Path) -> None:
    result = Result(metrics={"config": {"train_loop_config": {"lr": 1}}}, log_dir=tmp_path)
    assert result.path == str(tmp_path)
    assert result.config == {"train_loop_config": {"lr": 1}}
    assert Result(log_dir=tmp_path, path="s3://b/x").path == "s3://b/x"
    assert Result().config is None


def test_best_checkpoint() -> None:
    result = Result(
        best_checkpoints=kept({"loss": 3, "a": {"b": 1}}, {"loss": 1.0, "a": {"b": 1}}, {"loss": math.nan}, {"loss": 2})
    )

    def best(metric: str, mode: Any) -> Any:
        checkpoint = result.get_best_checkpoint(metric, mode)
        assert checkpoint is not None
        return checkpoint.to_dict()["n"]

    assert best("loss", "min") == 1
    assert best("loss", "max") == 0
    assert best("a/b", "max") == 1
    assert best("a/b", "min") == 1
    with pytest.raises(ConfigError, match="a/b, loss") as caught:
        best("acc", "max")
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(ConfigError, match="mode"):
        best("loss", "best")
    filled_in = Result(best_checkpoints=[(Checkpoint.from_dict({}), {"date": "today", "loss": 1.0})])
    with pytest.raises(ConfigError, match="loss, date"):
        filled_in.get_best_checkpoint("acc", "max")
    assert Result().get_best_checkpoint("loss", "min") is None


def test_repr_shows_what_matters(tmp_path: Path) -> None:
    result = Result(
        metrics={"loss": 0.5, "pid": 12345, "training_iteration": 7},
        error=RuntimeError("first line\nsecond line"),
        log_dir=tmp_path,
        attempts=3,
        warnings=["w"],
    )
    text = repr(result)
    assert "error=RuntimeError('first line')" in text
    assert "{'loss': 0.5, 'training_iteration': 7}" in text
    assert "12345" not in text
    assert "attempts=3" in text
    assert "warnings=1" in text
    assert repr(Result()).startswith("Result(")


def test_a_result_can_be_pickled(tmp_path: Path) -> None:
    result = Result(metrics={"a": 1}, checkpoint=Checkpoint(tmp_path), log_dir=tmp_path)
    assert pickle.loads(pickle.dumps(result)) == result
