"""A Lightning Trainer that the function of a TorchTrainer makes, with both names of the package."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist

from paceline import train
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, SessionMisuseError
from paceline.air.result import Result
from paceline.train import lightning as paceline_lightning
from paceline.train.lightning import (
    DDPStrategy,
    FSDPStrategy,
    LightningCheckpoint,
    LightningEnvironment,
    ReportCallback,
    prepare_trainer,
)
from paceline.train.lightning.config import LightningTorchConfig
from paceline.train.torch import TorchTrainer
from tests.train.lightning.line import QUIET, ROWS, Line, dataset, loader, points


def fit(train_func: Any) -> Result:
    return TorchTrainer(
        train_func,
        datasets={"train": dataset()},
        torch_config=LightningTorchConfig(),  # workers that have Lightning loaded: importing it takes longer than this
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()


def test_ddp_then_fsdp_report_each_epoch_with_a_checkpoint_and_leave_the_group_to_the_workers() -> None:
    class Flat(Line):
        """A sharded module is not whole on any rank."""

        def on_train_epoch_end(self) -> None:
            self.log("at_end", float(self.current_epoch))

    def trainer_with(strategy: Any, epochs: int) -> Any:
        made = pl.Trainer(
            max_epochs=epochs,
            strategy=strategy,
            plugins=[LightningEnvironment()],
            callbacks=[ReportCallback()],
            accelerator="cpu",
            enable_checkpointing=False,
            **QUIET,
        )
        return prepare_trainer(made)

    def train_func() -> None:
        batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=16)
        trainer_with(DDPStrategy(), 2).fit(Line(), batches)
        assert dist.is_initialized()
        with LightningCheckpoint.from_checkpoint(train.get_checkpoint()).as_lightning_file() as path:
            sharded = trainer_with(FSDPStrategy(), 4)
            sharded.fit(Flat(lr=0.1), loader(), ckpt_path=path)
        assert isinstance(sharded.train_dataloader.sampler, torch.utils.data.DistributedSampler)
        assert dist.is_initialized()
        assert os.listdir() == []

    result = fit(train_func)
    table = result.metrics_dataframe
    assert table is not None
    assert list(table["epoch"]) == [0, 1, 2, 3]
    assert list(table["step"]) == [4, 8, 12, 16]
    losses = list(table["loss"])
    assert losses == sorted(losses, reverse=True)
    assert list(table["at_end"])[2:] == [2.0, 3.0]  # of this epoch, not of the one before
    by_ddp = result.rank_dataframe[result.rank_dataframe["training_iteration"] <= 2]
    assert set(by_ddp["disagreement"]) == {0.0}
    assert list(by_ddp["rows"]) == [ROWS / 2] * 4
    assert [each.iteration for each, _ in result.best_checkpoints] == [1, 2, 3, 4]
    assert isinstance(result.checkpoint, LightningCheckpoint)
    trained = result.checkpoint.get_model(Line)
    x, y = (torch.from_numpy(values) for values in points())
    assert torch.nn.functional.mse_loss(trained(x).detach(), y).item() < losses[2]


def test_the_older_name_of_the_package() -> None:
    def train_func() -> None:
        import pytorch_lightning

        class Older(pytorch_lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.line = torch.nn.Linear(3, 1)

            def training_step(self, batch: Any, index: int) -> Any:
                loss = torch.nn.functional.mse_loss(self.line(batch["x"])[:, 0], batch["y"])
                self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
                return loss

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.2)

        from paceline.train.lightning import for_pytorch_lightning as classes

        trainer = pytorch_lightning.Trainer(
            max_epochs=2,
            strategy=classes.DDPStrategy(),
            plugins=[classes.LightningEnvironment()],
            callbacks=[classes.ReportCallback()],
            **QUIET,
        )
        batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=16)
        prepare_trainer(trainer).fit(Older(), batches)

    losses = list(fit(train_func).metrics_dataframe["loss"])
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.fixture
def a_worker() -> Any:
    """Make this process look like rank 0 of two."""
    fake: Any = SimpleNamespace(world_rank=0, world_size=2, local_rank=0, node_rank=0)
    session.install(fake)
    yield fake
    session.install(None)


def test_a_trainer_that_does_not_know_the_workers_is_refused(a_worker: Any) -> None:
    with pytest.raises(ConfigError, match=r"strategy SingleDeviceStrategy.*lightning.DDPStrategy\(\)"):
        prepare_trainer(pl.Trainer(accelerator="cpu", **QUIET))
    with pytest.raises(ConfigError, match=r"plugins=\[paceline.train.lightning.LightningEnvironment\(\)\]"):
        prepare_trainer(pl.Trainer(accelerator="cpu", strategy=DDPStrategy(), **QUIET))
    with pytest.raises(ConfigError, match=r"takes a lightning.pytorch.Trainer, not Line"):
        prepare_trainer(Line())


def test_a_prepared_trainer_has_the_ranks_of_the_session(a_worker: Any) -> None:
    a_worker.world_rank = a_worker.local_rank = 1
    strategy = DDPStrategy(find_unused_parameters=True)
    made = pl.Trainer(accelerator="cpu", devices=4, strategy=strategy, plugins=[LightningEnvironment()], **QUIET)
    assert prepare_trainer(made) is made
    assert (made.world_size, made.global_rank, made.local_rank) == (2, 1, 1)
    assert made.distributed_sampler_kwargs == {"num_replicas": 2, "rank": 1}
    assert made.strategy.launcher is None
    assert str(made.strategy.root_device) == "cpu"


def test_outside_of_a_worker_nothing_pretends_to_be_one() -> None:
    with pytest.raises(SessionMisuseError, match="inside of a train function only"):
        pl.Trainer(accelerator="cpu", strategy=DDPStrategy(), plugins=[LightningEnvironment()], **QUIET)


def test_the_older_names_are_the_same_classes_and_can_be_derived_from() -> None:
    assert paceline_lightning.RayDDPStrategy is DDPStrategy
    assert paceline_lightning.RayFSDPStrategy is FSDPStrategy
    assert paceline_lightning.RayLightningEnvironment is LightningEnvironment
    assert paceline_lightning.RayTrainReportCallback is ReportCallback
    assert ReportCallback.CHECKPOINT_NAME == "checkpoint.ckpt"

    class Mine(ReportCallback):
        pass

    assert isinstance(Mine(), pl.Callback)
    assert isinstance(Mine(), ReportCallback)
    assert isinstance(paceline_lightning.RayDeepSpeedStrategy, type(DDPStrategy))


def test_importing_the_names_loads_no_framework(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from paceline.train.lightning import LightningTrainer, RayDDPStrategy, RayTrainReportCallback; "
        "print([name for name in ('torch', 'lightning', 'pytorch_lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
