"""A Lightning Trainer that the function of a TorchTrainer makes, with both names of the package."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, SessionMisuseError
from paceline.air.result import Result
from paceline.train import lightning as paceline_lightning
from paceline.train.lightning import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    LightningCheckpoint,
    LightningConfigBuilder,
    LightningEnvironment,
    LightningTrainer,
    ReportCallback,
    prepare_trainer,
)
from paceline.train.lightning.backend import LightningTorchConfig
from paceline.train.lightning.packages import LIGHTNING, PYTORCH_LIGHTNING, derived_classes
from paceline.train.torch import TorchTrainer, prepare_data_loader
from tests.train.lightning import older
from tests.train.lightning.line import QUIET, Line, dataset, loader, points


def fit(train_func: Any, package: str = LIGHTNING) -> Result:
    return TorchTrainer(
        train_func,
        datasets={"train": dataset()},
        torch_config=LightningTorchConfig(package=package),  # importing it in each worker takes longer than the test
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()


def test_ddp_then_fsdp_report_each_epoch_with_a_checkpoint_and_leave_the_group_to_the_workers() -> None:
    class Flat(Line):
        """A sharded module is not whole on any rank."""

        def on_train_epoch_end(self) -> None:
            self.log("at_end", float(self.current_epoch))

    def trainer_with(strategy: Any, epochs: int, **arguments: Any) -> Any:
        made = pl.Trainer(
            max_epochs=epochs,
            strategy=strategy,
            plugins=[LightningEnvironment()],
            callbacks=[ReportCallback()],
            accelerator="cpu",
            enable_checkpointing=False,
            **arguments,
            **QUIET,
        )
        return prepare_trainer(made)

    def last_file(stack: ExitStack) -> str | None:
        last = train.get_checkpoint()
        if last is None:
            return None
        return stack.enter_context(LightningCheckpoint.from_checkpoint(last).as_lightning_file())

    def train_func() -> None:
        with ExitStack() as stack:
            batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=16)
            by_ddp = trainer_with(DDPStrategy(), 2, limit_train_batches=3)
            by_ddp.fit(Line(fails_at=(1, 1)), batches, ckpt_path=last_file(stack))
            assert dist.is_initialized()
            saving_memory = FSDPStrategy(activation_checkpointing_policy={torch.nn.Linear})
            sharded = trainer_with(saving_memory, 4)
            sharded.fit(Flat(lr=0.1), loader(), ckpt_path=last_file(stack))
        assert isinstance(sharded.train_dataloader.sampler, torch.utils.data.DistributedSampler)
        assert dist.is_initialized()
        assert os.listdir() == ["checkpoints"]  # the module's own

    result = fit(train_func)
    table = result.metrics_dataframe
    assert table is not None
    assert list(table["epoch"]) == [0, 1, 2, 3]
    assert list(table["step"]) == [3, 6, 10, 14]
    losses = list(table["loss"])
    assert losses == sorted(losses, reverse=True)
    assert list(table["at_end"])[2:] == [2.0, 3.0]  # of this epoch, not of the one before
    by_ddp = result.rank_dataframe[result.rank_dataframe["training_iteration"] <= 2]
    assert set(by_ddp["disagreement"]) == {0.0}
    assert list(by_ddp["rows"]) == [3 * 16] * 4  # in the second epoch, which a rank was killed in, too
    assert any("activations" in each for each in result.warnings)
    assert [each.iteration for each, _ in result.best_checkpoints] == [1, 2, 3, 4]
    assert isinstance(result.checkpoint, LightningCheckpoint)
    trained = result.checkpoint.get_model(Line)
    x, y = (torch.from_numpy(values) for values in points())
    assert torch.nn.functional.mse_loss(trained(x).detach(), y).item() < losses[2]


@pytest.mark.slow
def test_both_forms_with_nothing_loaded_but_the_older_name_of_the_package() -> None:
    by_trainer = LightningTrainer(
        LightningConfigBuilder().module(older.Older).trainer(max_epochs=2, **QUIET).build(),
        datasets={"train": dataset()},
        datasets_iter_config={"batch_size": 16},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert isinstance(by_trainer.checkpoint, LightningCheckpoint)
    assert isinstance(by_trainer.checkpoint.get_model(older.Older), older.Older)
    for result in (by_trainer, fit(older.train_func, PYTORCH_LIGHTNING)):
        assert result.metrics_dataframe is not None
        losses = list(result.metrics_dataframe["loss"])
        assert len(losses) == 2
        assert losses[1] < losses[0]
        assert set(result.metrics_dataframe["newer_name_is_loaded"]) == {0.0}


@pytest.fixture
def a_worker() -> Any:
    """Make this process look like rank 0 of two."""
    fake: Any = SimpleNamespace(world_rank=0, world_size=2, local_rank=0, node_rank=0, is_elastic=False)
    session.install(fake)
    yield fake
    session.install(None)


def test_a_trainer_that_does_not_know_the_workers_is_refused(a_worker: Any) -> None:
    with pytest.raises(ConfigError, match=r"SingleDeviceStrategy.*lightning\.DDPStrategy\(\)"):
        prepare_trainer(pl.Trainer(accelerator="cpu", **QUIET))
    of_paceline = r"plugins=\[paceline.train.lightning.LightningEnvironment\(\)\]"
    with pytest.raises(ConfigError, match=rf"LightningEnvironment of lightning.*{of_paceline}"):
        prepare_trainer(pl.Trainer(accelerator="cpu", strategy=DDPStrategy(), **QUIET))
    with pytest.raises(ConfigError, match=r"lightning\.pytorch\.Trainer.*Line"):
        prepare_trainer(Line())
    known = {"accelerator": "cpu", "strategy": DDPStrategy(), "plugins": [LightningEnvironment()], **QUIET}
    with pytest.raises(ConfigError, match=r"OnExceptionCheckpoint.*max_failures"):
        prepare_trainer(pl.Trainer(callbacks=[OnExceptionCheckpoint(".")], **known))


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_a_trainer_that_nobody_prepared_and_that_would_train_alone_is_refused_by_the_callback(
    a_worker: Any, strategy: str
) -> None:
    alone = pl.Trainer(accelerator="cpu", devices=1, strategy=strategy, **QUIET)
    with pytest.raises(ConfigError, match=r"Strategy of lightning.*lightning\.DDPStrategy\(\)"):
        ReportCallback().setup(alone, Line(), "fit")
    a_worker.world_size = 1
    ReportCallback().setup(alone, Line(), "fit")


def test_fit_calls_the_callback_before_anything_is_trained(a_worker: Any) -> None:
    class Untrained(Line):
        def training_step(self, batch: Any, index: int) -> Any:
            pytest.fail("a batch was trained on")

    alone = pl.Trainer(accelerator="cpu", callbacks=[ReportCallback()], max_epochs=1, **QUIET)
    with pytest.raises(ConfigError, match="SingleDeviceStrategy of lightning"):
        alone.fit(Untrained(), loader(), loader())


def test_a_strategy_of_ones_own_that_knows_the_ranks_may_report(a_worker: Any) -> None:
    knowing = SingleDeviceStrategy("cpu")
    knowing.world_size = 2  # rank 0 is what it has
    ReportCallback().setup(pl.Trainer(accelerator="cpu", strategy=knowing, **QUIET), Line(), "fit")


def test_a_file_that_is_written_in_the_background_is_not_reported(a_worker: Any) -> None:
    plugins = [LightningEnvironment(), AsyncCheckpointIO()]
    made = pl.Trainer(accelerator="cpu", strategy=DDPStrategy(), plugins=plugins, **QUIET)
    with pytest.raises(ConfigError, match=r"CheckpointConfig\(async_save=True\)"):
        ReportCallback().setup(prepare_trainer(made), Line(), "fit")


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
    with pytest.raises(SessionMisuseError, match=r"LightningEnvironment.*train function"):
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
    assert paceline_lightning.RayDeepSpeedStrategy is DeepSpeedStrategy
    assert issubclass(Mine, ReportCallback)
    assert not issubclass(Line, ReportCallback)


def test_the_names_can_stand_in_type_hints() -> None:
    def made(strategy: DDPStrategy | None, other: Line | FSDPStrategy) -> DDPStrategy | FSDPStrategy:
        return strategy or other

    hints = {name: get_args(hint) for name, hint in get_type_hints(made, include_extras=True).items()}
    assert hints == {
        "strategy": (DDPStrategy, type(None)),
        "other": (Line, FSDPStrategy),
        "return": (DDPStrategy, FSDPStrategy),
    }


def test_importing_the_names_loads_no_framework(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from paceline.train.lightning import LightningTrainer, RayDDPStrategy, RayTrainReportCallback; "
        "print([name for name in ('torch', 'lightning', 'pytorch_lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


class Hears:
    """Stands in for the session of a worker: what it is told, in order, with the validations in between."""

    world_size, rows_before, reports, shards = 1, 0, 0, {}

    def __init__(self) -> None:
        self.heard: list[str] = []

    def should_checkpoint(self) -> bool:
        self.heard.append("asked")
        return True

    def snapshot_begins(self) -> None:
        self.heard.append("snapshot")

    def snapshot_ends(self) -> None: ...

    def report(self, metrics: Any, checkpoint: Any = None, reduce: Any = None, validation: Any = None) -> None:
        self.heard.append("reported" if checkpoint is not None else "row")


@pytest.mark.filterwarnings("ignore")  # What Lightning thinks of so small a training.
@pytest.mark.parametrize("saver", ["ReportCallback", "ReportingModelCheckpoint"])
def test_no_validation_lies_between_the_wish_for_a_checkpoint_and_the_checkpoint(saver: str, tmp_path: Path) -> None:
    """What the run takes for the cost of a checkpoint would be that of the validation. Two batches, then the end."""

    class Validates(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.line(batch).sum()

        def validation_step(self, batch: Any, index: int) -> None:
            hears.heard.append("validation")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    hears: Any = Hears()
    session.install(hears)
    try:
        own = {} if saver == "ReportCallback" else {"dirpath": str(tmp_path), "save_top_k": 0}
        callback = getattr(derived_classes(LIGHTNING), saver)(**own)
        made = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[callback],
            enable_checkpointing=bool(own),
            num_sanity_val_steps=0,
            default_root_dir=tmp_path,
            **QUIET,
        )
        made.fit(Validates(), DataLoader(torch.ones(2, 1)), DataLoader(torch.ones(1, 1)))
    finally:
        session.install(None)
    assert hears.heard == ["asked", "snapshot", "reported", "validation", "asked", "snapshot", "reported"]


class Counts(pl.LightningModule):
    """Validates numbers 0 to 100, twice: as Lightning deals them, and as prepare_data_loader does."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = [[], []]

    def training_step(self, batch: Any, index: int) -> Any:
        return self.line(batch[0].float().unsqueeze(1)).sum()

    def validation_step(self, batch: Any, index: int, dataloader_idx: int) -> None:
        self.seen[dataloader_idx] += batch[0].tolist()
        self.log("mean", batch[0].double().mean(), batch_size=len(batch[0]), sync_dist=True, on_epoch=True)

    def val_dataloader(self) -> Any:
        numbers = DataLoader(TensorDataset(torch.arange(101)), batch_size=8)
        return [numbers, prepare_data_loader(numbers, uneven="all")]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def _validates_loaders() -> None:
    module = Counts()
    made = pl.Trainer(
        max_epochs=1,
        strategy=DDPStrategy(),
        plugins=[LightningEnvironment()],
        accelerator="cpu",
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        **QUIET,
    )
    prepare_trainer(made).fit(module, DataLoader(TensorDataset(torch.arange(8)), batch_size=4))
    logged = {name: float(value) for name, value in made.callback_metrics.items()}
    mean = logged["mean/dataloader_idx_1"]
    lightnings, ours = map(len, module.seen)
    train.report({"lightnings": lightnings, "ours": ours, "mean": mean}, reduce={"lightnings": "sum", "ours": "sum"})


def test_a_validation_with_loaders_reads_each_row_once_or_says_what_it_repeats() -> None:
    result = fit(_validates_loaders)
    assert (result.metrics["lightnings"], result.metrics["ours"]) == (102, 101)
    assert result.metrics["mean"] == pytest.approx(50.0, rel=1e-6)
    (notice,) = [text for text in result.warnings if "read twice" in text]
    assert 'return prepare_data_loader(loader, uneven="all")' in notice
