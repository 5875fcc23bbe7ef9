"""First 11: every rank's metrics are kept, and the time of its steps tells which rank is slow, and why."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline import train
from paceline.air.result import Result
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer

STEPS = 10
SLEEP_S = 0.05
LONGER_SLEEP_S = 0.2
"""PyTorch times only the first ten iterations, so that there is no second chance after a hiccup of a busy machine."""
TIMES = {"step_time_s", "data_wait_s", "report_wait_s", "checkpoint_wait_s", "collective_wait_s"}


def fit(loop: Any, path: Path, workers: int = 2, trainer: Any = DataParallelTrainer, **more: Any) -> Result:
    scaling = ScalingConfig(num_workers=workers)
    run = RunConfig(storage_path=str(path), name="run", verbose=0)
    result: Result = trainer(loop, scaling_config=scaling, run_config=run, **more).fit()
    return result


def slow_ranks(result: Result) -> list[int]:
    """The ranks that the warnings call slow."""
    found = (re.match(r"rank (\d+) (?:is .+ slower|keeps the other ranks waiting)", text) for text in result.warnings)
    return [int(match[1]) for match in found if match]


# -- metrics -----------------------------------------------------------------------------------------


def weighted(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    rows = [10, 90][rank]
    reduced = train.report(
        {"loss": [0.3, 0.7][rank], "n": rows, f"only_{rank}": rank},
        reduce={"loss": ("mean", rows), "n": "sum"},
    )
    train.report({"told": reduced["loss"]})


def test_a_weighted_mean_is_exact_and_ranks_may_report_different_keys(tmp_path: Path) -> None:
    result = fit(weighted, tmp_path)
    exact = (10 * 0.3 + 90 * 0.7) / 100
    first = result.metrics_dataframe.iloc[0]
    assert first["loss"] == pytest.approx(exact, rel=1e-12)
    assert first["n"] == 100
    assert result.rank_metrics == {0: {"told": first["loss"]}, 1: {"told": first["loss"]}}
    frame = result.rank_dataframe
    own = frame[frame["training_iteration"] == 1].set_index("rank")
    assert own["loss"].tolist() == [0.3, 0.7]
    assert own["n"].tolist() == [10, 90]
    assert own["only_0"].notna().tolist() == [True, False]
    assert own["only_1"].notna().tolist() == [False, True]
    assert set(frame.columns) >= TIMES
    assert not TIMES & set(result.metrics_dataframe.columns)
    assert not TIMES & set(result.metrics)


# -- stragglers --------------------------------------------------------------------------------------


def sleeps(config: dict[str, Any]) -> None:
    for _ in range(STEPS):
        if train.get_context().get_world_rank() == 1:
            time.sleep(SLEEP_S)
        train.report({"loss": 1.0}, reduce={"loss": "mean"} if config["in_step"] else None)


@pytest.mark.parametrize("in_step", [False, True], ids=["each for itself", "in step"])
def test_a_rank_that_sleeps_is_named_within_ten_steps(tmp_path: Path, in_step: bool) -> None:
    result = fit(sleeps, tmp_path, train_loop_config={"in_step": in_step})
    assert slow_ranks(result) == [1], result.warnings
    times = result.rank_dataframe.groupby("rank")[["step_time_s", "report_wait_s"]].median()
    assert times["step_time_s"][1] >= SLEEP_S
    if in_step:
        assert times["report_wait_s"][0] > 0.5 * times["step_time_s"][0]
        assert times["report_wait_s"][1] < times["report_wait_s"][0]


def slow_rows(batch: dict[str, Any]) -> dict[str, Any]:
    """Those of rank 1 come late."""
    if batch["id"].min() % 2:
        time.sleep(SLEEP_S)
    return batch


def reads(config: dict[str, Any]) -> None:
    for _ in train.get_dataset_shard("train").iter_batches(batch_size=1, prefetch_batches=0):
        train.report({"loss": 1.0})


def test_a_rank_that_waits_for_data_is_named_with_the_reason(tmp_path: Path) -> None:
    rows = [{"id": 2 * number + (number >= 2 * STEPS)} for number in range(4 * STEPS)]  # the second half is odd
    dataset = paceline.data.from_items(rows).map_batches(slow_rows, batch_size=1)
    result = fit(reads, tmp_path, datasets={"train": dataset})
    assert slow_ranks(result) == [1], result.warnings
    (text,) = [text for text in result.warnings if text.startswith("rank 1")]
    share = re.search(r"(\d+) % of the difference is waiting for data", text)
    assert share is not None
    assert int(share[1]) >= 80
    frame = result.rank_dataframe
    late = frame[frame["rank"] == 1]
    assert late["data_wait_s"].median() >= SLEEP_S
    assert (late["data_wait_s"].dropna() <= late["step_time_s"].dropna()).all()


def all_reduces(config: dict[str, Any]) -> None:
    import torch

    model = train.torch.prepare_model(torch.nn.Linear(8, 8))
    for _ in range(STEPS):
        if train.get_context().get_world_rank() == 1:
            time.sleep(LONGER_SLEEP_S)
        model(torch.ones(4, 8)).sum().backward()
        train.report({"loss": 1.0})


def test_the_slow_rank_is_found_although_all_wait_for_it_in_every_step(tmp_path: Path) -> None:
    """Their steps are equally long: only the all-reduce knows who waits for whom."""
    result = fit(all_reduces, tmp_path, trainer=TorchTrainer)
    assert slow_ranks(result) == [1], result.warnings
    waits = result.rank_dataframe.groupby("rank")["collective_wait_s"].median()
    assert waits[0] > LONGER_SLEEP_S / 2 > waits[1]


def equal(config: dict[str, Any]) -> None:
    for _ in range(STEPS):
        time.sleep(SLEEP_S)
        train.report({"loss": 1.0})


def test_equal_ranks_are_not_called_slow(tmp_path: Path) -> None:
    assert slow_ranks(fit(equal, tmp_path, workers=3)) == []
