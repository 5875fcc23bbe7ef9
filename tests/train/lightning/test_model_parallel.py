"""ModelParallelStrategy of Lightning, which shards with FSDP2, and FSDPStrategy's sharded checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy as LightningsStrategy

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointError, ConfigError, TrainingFailedError
from paceline.air.result import Result
from paceline.train.lightning import (
    FSDPStrategy,
    LightningCheckpoint,
    LightningEnvironment,
    ModelParallelStrategy,
    ReportCallback,
    prepare_trainer,
)
from paceline.train.lightning.backend import LightningTorchConfig
from paceline.train.lightning.packages import LIGHTNING
from paceline.train.torch import TorchTrainer
from tests.train.lightning.line import QUIET, loader

EPOCHS = 4


class Sharded(pl.LightningModule):
    """Sharded by itself with ModelParallelStrategy. Reports how much of it is here."""

    def __init__(self, fails_in: int | None = None) -> None:
        super().__init__()
        self.fails_in = fails_in
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def configure_model(self) -> None:
        if self._device_mesh is None:  # FSDPStrategy, or one process
            return
        from torch.distributed.fsdp import fully_shard

        for layer in (self.layers[0], self.layers[2], self):
            fully_shard(layer, mesh=self._device_mesh["data_parallel"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[:, 0]

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y, _ = batch
        loss = torch.nn.functional.mse_loss(self(x), y)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        mine = sum(getattr(each, "_local_tensor", each).numel() for each in self.parameters())
        self.log("mine", float(mine), on_epoch=True, on_step=False)
        return loss

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == self.fails_in and train.get_checkpoint() is not None:
            self.fails_in = None
        if self.current_epoch == self.fails_in and train.get_context().get_world_rank() == 1:
            raise RuntimeError("lost")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.02)


def run(strategy: Any, fails_in: int | None = None, workers: int = 2, **arguments: Any) -> Result:
    def train_func() -> None:
        with ExitStack() as stack:
            last = train.get_checkpoint()
            file = None
            if last is not None:
                file = stack.enter_context(LightningCheckpoint.from_checkpoint(last).as_lightning_file())
            trainer = pl.Trainer(
                max_epochs=EPOCHS,
                accelerator="cpu",
                strategy=strategy(),
                plugins=[LightningEnvironment()],
                callbacks=[ReportCallback()],
                enable_checkpointing=False,
                **QUIET,
            )
            torch.manual_seed(1)
            trainer = prepare_trainer(trainer)
            trainer.fit(Sharded(fails_in), loader(8), ckpt_path=file)

    return TorchTrainer(
        train_func,
        torch_config=LightningTorchConfig(package=LIGHTNING),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=0 if fails_in is None else 1)),
        **arguments,
    ).fit()


def losses(result: Result) -> list[float]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe["loss"])


WHOLE = 3 * 8 + 8 + 8 + 1


def parts() -> Any:
    return ModelParallelStrategy(data_parallel_size=2)


def one_file() -> Any:
    return ModelParallelStrategy(data_parallel_size=2, save_distributed_checkpoint=False)


def fsdp_parts() -> Any:
    return FSDPStrategy(state_dict_type="sharded")


@pytest.mark.parametrize("strategy", [parts, one_file, pytest.param(fsdp_parts, marks=pytest.mark.slow)])
def test_a_sharded_module_continues_after_a_failure(strategy: Any) -> None:
    whole = run(strategy)
    assert len(losses(whole)) == EPOCHS
    assert losses(whole)[-1] < losses(whole)[0]
    if strategy is not fsdp_parts:
        assert (whole.metrics or {})["mine"] < WHOLE, "each rank has all of the model"
    again = run(strategy, fails_in=2)
    assert losses(again) == pytest.approx(losses(whole), rel=1e-5)
    checkpoint = again.checkpoint
    assert isinstance(checkpoint, LightningCheckpoint)
    if strategy is one_file:
        assert sum(each.numel() for each in checkpoint.get_model(Sharded).parameters()) == WHOLE
    else:
        with pytest.raises(CheckpointError, match="each rank saved its part"):
            checkpoint.get_model(Sharded)


def test_sizes_that_do_not_fit_and_lightnings_own_strategy_are_refused() -> None:
    def too_many() -> Any:
        return ModelParallelStrategy(data_parallel_size=3)

    def lightnings_own() -> Any:
        return LightningsStrategy(data_parallel_size=2)

    with pytest.raises(TrainingFailedError, match=r"ConfigError.*data_parallel_size=3.*number of workers, which is 2"):
        run(too_many)
    with pytest.raises(TrainingFailedError, match=r"ConfigError.*paceline\.train\.lightning\.ModelParallelStrategy"):
        run(lightnings_own)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [({}, (2, 3)), ({"data_parallel_size": 6}, (6, 1)), ({"tensor_parallel_size": 2}, (3, 2))],
)
def test_a_size_that_is_left_out_follows_from_the_workers(given: dict[str, int], chosen: tuple[int, int]) -> None:
    """Two machines, of three workers each."""
    session: Any = SimpleNamespace(world_size=6, local_world_size=3)
    strategy = ModelParallelStrategy(save_distributed_checkpoint=False, **given)
    strategy._choose_sizes(session)
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == chosen


def test_parts_in_a_directory_of_one_machine_are_refused_on_two() -> None:
    session: Any = SimpleNamespace(world_size=6, local_world_size=3)
    with pytest.raises(ConfigError, match=r"2 machines: pass save_distributed_checkpoint=False"):
        ModelParallelStrategy()._choose_sizes(session)
