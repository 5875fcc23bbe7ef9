"""Sharded training in runs that lose workers, gain some, and are preempted: the losses are those of one process."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import train
from paceline.air import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.run.callbacks import Callback
from paceline.run.records import AttemptStarted, RunRecords
from paceline.storage.run_dir import RunDir
from paceline.testing.elastic_engine import ElasticEngine
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.torch import TorchTrainer, load_sharded, prepare_model, save_sharded
from tests.train.torch.sharded_loops import GLOBAL_BATCH, network, rows_of

MOST_STEPS = 3_000
"""A guard: a loop that nobody stops ends here, and the test fails."""


def model_and_optimizer(sharded: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = network()
    model.get_submodule("3").eval()
    if sharded:
        model = prepare_model(model, parallel_strategy="fsdp2")
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> float:
    loss = model(rows).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def losses_of_one_process(steps: int) -> list[float]:
    model, optimizer = model_and_optimizer(sharded=False)
    return [train_step(model, optimizer, rows_of(step, 0, 1)) for step in range(steps)]


def check_losses(result: Result) -> None:
    """No step is missing, or done with a model that does not belong to it."""
    table = result.metrics_dataframe
    assert table is not None
    assert list(table["step"]) == list(range(len(table)))
    assert list(table["loss"]) == pytest.approx(losses_of_one_process(len(table)), rel=1e-5)


# -- elastic runs ----------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[ElasticEngine]:
    engine = ElasticEngine({"a": 1, "b": 1})
    yield engine
    engine.close()


class ShrinksAndGrows(Callback):
    """Loses a node at the third row. Once there is one worker, a node for two more joins."""

    def __init__(self, engine: ElasticEngine) -> None:
        self._engine, self._rows = engine, 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self._rows += 1
        if self._rows == 3:
            self._engine.lose_node("b")
        if self._engine.workers == 1 and "c" not in self._engine.nodes:
            self._engine.add_node("c", 2)


def until_there_are_three(config: dict[str, Any]) -> None:
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    model, optimizer = model_and_optimizer(sharded=True)
    checkpoint, start = train.get_checkpoint(), 0
    if checkpoint is not None:
        start = load_sharded(checkpoint, model, optimizer)["step"] + 1
    for step in range(start, MOST_STEPS):
        loss = train_step(model, optimizer, rows_of(step, rank, size))
        saved = save_sharded(model, optimizer, {"step": step})
        train.report({"step": step, "loss": loss}, checkpoint=saved, reduce={"loss": "mean"})
        if size == 3 and step > start:
            return


@pytest.mark.parametrize("async_save", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sharded_model_continues_with_every_number_of_workers(engine: ElasticEngine, async_save: bool) -> None:
    assert GLOBAL_BATCH % 6 == 0
    result = TorchTrainer(
        until_there_are_three,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=(1, 3), elastic_resize_monitor_interval_s=0.05),
        run_config=RunConfig(
            engine=engine,
            callbacks=[ShrinksAndGrows(engine)],
            checkpoint_config=CheckpointConfig(num_to_keep=2, async_save=async_save),
            failure_config=FailureConfig(start_timeout_s=120),
            verbose=0,
        ),
    ).fit()
    records = [each for each in RunRecords.read(RunDir(Path(result.path))) if isinstance(each, AttemptStarted)]
    assert [size for size, _ in itertools.groupby(each.world_size for each in records)] == [2, 1, 3]
    check_losses(result)


# -- preemption ------------------------------------------------------------------------------------


def is_preempted(config: dict[str, Any]) -> None:
    """A rank gets a signal in the first attempt, and the loop continues until the run stops it."""
    context, marks = train.get_context(), Marks(config["marks"])
    rank, size = context.get_world_rank(), context.get_world_size()
    model, optimizer = model_and_optimizer(sharded=True)
    checkpoint, start = train.get_checkpoint(), 0
    if checkpoint is not None:
        start = load_sharded(checkpoint, model, optimizer)["step"] + 1
    for step in range(start, MOST_STEPS if checkpoint is None else start + 3):
        if checkpoint is None and (step, rank) == (3, config["rank"]):
            os.kill(os.getpid(), signal.SIGTERM)
        loss = train_step(model, optimizer, rows_of(step, rank, size))
        marks.say("step", rank=rank, step=step)
        saved = None
        if train.should_checkpoint():
            saved = save_sharded(model, optimizer, {"step": step})
            marks.say("saved", rank=rank, step=step)
        train.report({"step": step, "loss": loss}, checkpoint=saved, reduce={"loss": "mean"})


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_preempted_rank_loses_nothing(tmp_path: Path, rank: int, async_save: bool) -> None:
    """All ranks save the same step, and no step is done twice. max_failures=0 allows that."""
    marks = Marks(tmp_path)
    result = TorchTrainer(
        is_preempted,
        train_loop_config={"marks": str(tmp_path), "rank": rank},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, checkpoint_config=CheckpointConfig(async_save=async_save)),
    ).fit()
    check_run(result.path, result=result, attempts=2)
    check_losses(result)
    (saved,) = {tuple(mark["step"] for mark in marks.read("saved", rank=each)) for each in (0, 1)}
    assert len(saved) == 1
    for each in (0, 1):
        assert [mark["step"] for mark in marks.read("step", rank=each)] == list(range(saved[0] + 4))
