"""Training with JAX: the loss of one process, rows exactly once, resume, elastic sizes, and the example."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline import data, train
from paceline.air import CheckpointConfig, DatasetConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.jax import JaxCheckpoint, JaxTrainer
from tests.train.jax.loops import FEATURES, rows

EXAMPLE = Path(__file__).parents[3] / "examples" / "jax_trainer.py"
ROWS, BATCH, EPOCHS = 96, 16, 3


@jax.jit
def line_step(weights: Any, x: Any, y: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
    return loss, weights - 0.1 * gradient


def line_loop(config: dict[str, Any]) -> None:
    """A checkpoint in the middle of each epoch; `kill` is a step."""
    state = {"weights": jnp.zeros(FEATURES), "step": 0}
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        state = JaxCheckpoint.from_checkpoint(checkpoint).get_state(state)
    marks, context = Marks(config["marks"]), train.get_context()
    shard = train.get_dataset_shard("train")
    weights, step = np.asarray(state["weights"]), state["step"]
    for _ in shard.iter_epochs(EPOCHS):
        for batch in shard.iter_jax_batches(global_batch_size=BATCH):
            assert batch["x"].shape == (BATCH, FEATURES)
            step += 1
            if step == config.get("kill") and context.get_world_rank() == 1 and marks.claim("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            loss, weights = line_step(weights, batch["x"], batch["y"])
            taken = sorted(
                {value for part in batch["y"].addressable_shards for value in np.asarray(part.data).tolist()}
            )
            saved = None
            if step % 4 == 0:
                saved = JaxCheckpoint.from_state({"weights": weights, "step": step})
            marks.say("step", step=step, rows=taken)
            train.report({"loss": float(loss), "step": step}, checkpoint=saved)


def fit(folder: Path, workers: Any = 2, **config: Any) -> Result:
    return JaxTrainer(
        line_loop,
        train_loop_config={"marks": str(folder / "marks"), **config},
        datasets={"train": data.from_items(rows(ROWS))},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(folder / "results"),
            verbose=0,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()


def losses(result: Result) -> list[float]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe["loss"])


def taken_in(folder: Path) -> dict[int, Counter[float]]:
    """Rows of each step, as the last attempt to take it saw them, by all ranks."""
    steps: dict[int, dict[tuple[float, ...], int]] = {}
    for mark in Marks(folder / "marks").read("step"):
        steps.setdefault(mark["step"], {})[tuple(mark["rows"])] = 1
    return {step: Counter(row for part in parts for row in part) for step, parts in steps.items()}


def test_two_workers_learn_what_plain_jax_learns(tmp_path: Path) -> None:
    """The rows that both take in a step are one batch."""
    result = fit(tmp_path)
    check_run(result.path, result=result, iterations=EPOCHS * ROWS // BATCH, attempts=1)
    x_of = {row["y"]: row["x"] for row in rows(ROWS)}
    weights, alone = jnp.zeros(FEATURES), []
    for step, taken in sorted(taken_in(tmp_path).items()):
        assert len(taken) == BATCH, f"step {step} has rows twice"
        y = np.array([*taken], np.float32)
        loss, weights = line_step(weights, np.stack([x_of[value] for value in taken]), y)
        alone.append(float(loss))
    assert losses(result) == pytest.approx(alone, rel=1e-5)


def test_a_killed_rank_repeats_and_loses_no_row(tmp_path: Path) -> None:
    """It dies in the middle of the second epoch, three steps after a checkpoint."""
    undisturbed = fit(tmp_path / "undisturbed")
    result = fit(tmp_path / "killed", kill=11)
    check_run(result.path, result=result, iterations=EPOCHS * ROWS // BATCH, attempts=2)
    assert losses(result) == pytest.approx(losses(undisturbed), rel=1e-5)
    steps = taken_in(tmp_path / "killed")
    for epoch in range(EPOCHS):
        per_epoch = ROWS // BATCH
        seen = sum((steps[step] for step in range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)), Counter())
        assert len(seen) == ROWS
        assert set(seen.values()) == {1}


def test_batches_that_are_filled_up_miss_no_row() -> None:
    def loop() -> None:
        shard = train.get_dataset_shard("train")
        total = 0.0
        for batch in shard.iter_jax_batches(batch_size=4):
            real = jax.jit(lambda batch: jnp.where(batch["__valid__"], batch["y"], 0).sum())(batch)
            total += float(real)
        train.report({"total": total})

    items = [{"y": float(number)} for number in range(11)]
    result = JaxTrainer(
        loop,
        datasets={"train": data.from_items(items)},
        dataset_config={"train": DatasetConfig(uneven="pad_mask")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics is not None
    assert result.metrics["total"] == sum(range(11))


@pytest.mark.parametrize(
    ("config", "sharding", "told"),
    [
        (DatasetConfig(uneven="all"), None, "pad_mask"),
        (DatasetConfig(), "everywhere", r"split=False"),
        (DatasetConfig(), "rows", r"give a jax\.sharding\.Sharding"),
    ],
)
def test_batches_that_the_workers_cannot_share_are_told(config: DatasetConfig, sharding: Any, told: str) -> None:
    def loop() -> None:
        from tests.train.jax.loops import everywhere, mesh_of_all

        chosen = everywhere(mesh_of_all()) if sharding == "everywhere" else sharding
        for _ in train.get_dataset_shard("train").iter_jax_batches(batch_size=4, sharding=chosen):
            pass

    with pytest.raises(TrainingFailedError, match=told):
        JaxTrainer(
            loop,
            datasets={"train": data.from_items(rows(8))},
            dataset_config={"train": config},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0),
        ).fit()


def test_of_rows_that_all_workers_have_each_takes_what_the_sharding_gives_it() -> None:
    def loop() -> None:
        from tests.train.jax.loops import mesh_of_all

        shard = train.get_dataset_shard("train")
        for batch in shard.iter_jax_batches(batch_size=8, sharding=mesh_of_all()):
            assert batch["x"].shape == (8, FEATURES)
            assert [part.data.shape for part in batch["x"].addressable_shards] == [(4, FEATURES)]
            total = float(jax.jit(lambda y: y.sum())(batch["y"]))
        (whole,) = shard.iter_jax_batches(batch_size=8)
        assert whole["y"].is_fully_replicated
        train.report({"total": total})

    items = rows(8)
    result = JaxTrainer(
        loop,
        datasets={"train": data.from_items(items)},
        dataset_config={"train": DatasetConfig(split=False)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics is not None
    assert result.metrics["total"] == pytest.approx(sum(row["y"] for row in items), rel=1e-5)


@pytest.fixture(scope="module")
def data_is_loaded() -> None:
    """The import of what the example's table is from sets variables."""
    importlib.import_module("sklearn.datasets")


@pytest.mark.slow  # test_checkpoint.py saves and resumes sharded states too
def test_example(data_is_loaded: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "went on at epoch 3, loss 0." in printed
    assert "% of 360 test images right" in printed
