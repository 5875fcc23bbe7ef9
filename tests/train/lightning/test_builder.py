"""What LightningConfigBuilder and LightningTrainer refuse before any worker starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError, MissingDatasetError, RestoreError, TrainingFailedError
from paceline.engine.local.engine import LocalEngine
from paceline.train.lightning import LightningConfigBuilder, LightningTrainer
from paceline.train.lightning.backend import LightningBackend, PytorchLightningBackend
from paceline.train.torch import TorchConfig
from tests.train.lightning.line import Line, dataset, loader

NO_PROCESSES = RunConfig(engine="inline")
"""Otherwise the imports of workers begin when a trainer is made."""

MISTAKES: dict[str, tuple[Any, str]] = {
    "an object": (lambda new: new.module(Line(), lr=0.1), r"\.module\(Line, lr=\.\.\.\)"),
    "no LightningModule": (lambda new: new.module(torch.nn.Linear), "Linear.*LightningModule"),
    "module": (lambda new: new.module(Line, learning_rate=1), "Line.*'learning_rate'.*lr"),
    "trainer": (lambda new: new.module(Line).trainer(max_epoch=1), r"\.trainer\(\).*\'max_epoch\'.*max_epochs"),
    "fit": (lambda new: new.module(Line).fit_params(datamodul=1), "'datamodul'.*datamodule"),
    "model": (lambda new: new.fit_params(model=Line()), r"model=.*\.module\(MyModule"),
    "saving": (lambda new: new.module(Line).checkpointing(moniter="x"), "'moniter'.*monitor"),
    "strategy in the trainer": (lambda new: new.trainer(strategy="ddp"), r"\.strategy\('ddp'"),
    "two strategies": (lambda new: new.ddp_strategy().strategy("fsdp"), "'ddp'.*'fsdp'"),
    "no strategy": (lambda new: new.strategy("horovod"), "'horovod'.*'ddp', 'fsdp', 'deepspeed'"),
    "devices": (lambda new: new.trainer(devices=2), r"ScalingConfig\(num_workers=\.\.\.\)"),
    "environment": (
        lambda new: new.module(Line).trainer(plugins=[LightningEnvironment()]),
        r"plugins.*LightningEnvironment\(\).*LightningTrainer",
    ),
    "ddp": (
        lambda new: new.module(Line).ddp_strategy(find_unused_paramters=True),
        "'find_unused_paramters'.*find_unused_parameters",
    ),
    "fsdp": (
        lambda new: new.module(Line).strategy("fsdp", forward_prefetc=True),
        "'forward_prefetc'.*forward_prefetch",
    ),
    "saving on exception": (
        lambda new: new.checkpointing(save_on_exception=True),
        "save_on_exception=True.*max_failures.*every_n_train_steps",
    ),
    "a callback that saves on exception": (
        lambda new: new.module(Line).trainer(callbacks=ModelCheckpoint(save_on_exception=True)),
        r"callbacks=\[ModelCheckpoint.*max_failures",
    ),
    "saving in the background": (
        lambda new: new.module(Line).trainer(plugins=[AsyncCheckpointIO()]),
        r"CheckpointConfig\(async_save=True\)",
    ),
    "to save or not": (
        lambda new: new.trainer(enable_checkpointing=False).checkpointing(monitor="x"),
        r"\.checkpointing\(\).*enable_checkpointing=False",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_when_the_config_is_built(mistake: str) -> None:
    step, message = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=message):
        step(LightningConfigBuilder()).build()


def test_what_says_nothing_may_be_said() -> None:
    built = LightningConfigBuilder().module(Line).trainer(devices="auto", strategy="auto", num_nodes=1).build()
    assert built["trainer_args"]["devices"] == "auto"


def test_later_values_win_and_the_built_config_is_a_copy() -> None:
    builder = LightningConfigBuilder().module(Line, lr=1.0).trainer(max_epochs=1).ddp_strategy(static_graph=True)
    built = builder.module(lr=2.0).build()
    builder.trainer(max_epochs=9)
    assert built["module_args"] == {"lr": 2.0}
    assert built["trainer_args"] == {"max_epochs": 1}
    assert (built["strategy"], built["strategy_args"]) == ("ddp", {"static_graph": True})


def trainer(built: Any = None, **arguments: Any) -> LightningTrainer:
    """With data, unless it is given or the config has dataloaders."""
    config = (LightningConfigBuilder().module(Line) if built is None else built).build()
    if "train_dataloaders" not in config.get("fit_args", {}):
        arguments = {"datasets": {"train": dataset()}, **arguments}
    return LightningTrainer(
        config, **{"scaling_config": ScalingConfig(num_workers=2), "run_config": NO_PROCESSES, **arguments}
    )


class WithData(Line):
    def train_dataloader(self) -> Any:
        return loader()


def test_without_data_to_train_on_a_trainer_is_not_made() -> None:
    advice = r".*datasets=\{'train': .*datasets_iter_config=.*fit_params\(datamodule"
    with pytest.raises(MissingDatasetError, match=f"datasets={advice}"):
        trainer(datasets=None)
    for settings in ({}, {"datasets_iter_config": {"batch_size": 2}}):
        with pytest.raises(MissingDatasetError, match=f"datasets=.*'training', 'val'{advice}"):
            trainer(datasets={"training": dataset(), "val": dataset()}, **settings)
    with pytest.raises(MissingDatasetError, match="datasets="):
        trainer(LightningConfigBuilder().module(Line).fit_params(train_dataloaders=None), datasets=None)


def test_data_may_come_from_the_module_itself_or_a_datamodule() -> None:
    trainer(LightningConfigBuilder().module(WithData), datasets={"any name": dataset()})
    of_fit = LightningConfigBuilder().module(Line).fit_params(datamodule=LightningDataModule())
    trainer(of_fit, datasets=None)


def test_data_that_is_given_twice_is_refused() -> None:
    own = LightningConfigBuilder().module(Line).fit_params(train_dataloaders=loader())
    with pytest.raises(ConfigError, match=r"datasets=\{'train'.*train_dataloaders"):
        trainer(own, datasets={"train": dataset()})
    with pytest.raises(ConfigError, match=r"datasets_iter_config.*'train'.*'val'"):
        trainer(own, datasets_iter_config={"batch_size": 2})
    with pytest.raises(ConfigError, match=r"'batchsize'.*batch_size"):
        trainer(datasets={"train": dataset()}, datasets_iter_config={"batchsize": 2})


def test_arguments_that_the_strategy_hands_on_are_taken() -> None:
    for strategy, argument in (("ddp", "find_unused_parameters"), ("fsdp", "forward_prefetch")):
        built = LightningConfigBuilder().module(Line).strategy(strategy, **{argument: True}).build()
        assert built["strategy_args"] == {argument: True}


def test_two_places_to_go_on_from_are_refused() -> None:
    own = LightningConfigBuilder().module(Line).fit_params(ckpt_path="a.ckpt")
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint=.*ckpt_path="):
        trainer(own, resume_from_checkpoint=Checkpoint.from_dict({"a": 1}))


def test_a_file_to_go_on_from_is_the_one_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.ckpt").touch()
    for given, meant in (("a.ckpt", str(tmp_path / "a.ckpt")), ("last", "last")):
        loop: Any = trainer(LightningConfigBuilder().module(Line).fit_params(ckpt_path=given)).to_run_spec().train
        assert loop.fit_args["ckpt_path"] == meant


def test_mistakes_are_told_before_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalEngine, "warm", lambda self, preload: pytest.fail("a process was started"))
    with pytest.raises(ConfigError, match=r"batchsize.*batch_size"):
        trainer(run_config=RunConfig(), datasets_iter_config={"batchsize": 2})


class CannotBeMade(Line):
    def __init__(self) -> None:
        raise ValueError("on purpose")


def test_how_batches_are_made_is_known_to_a_restored_run_or_asked_for(results_dir: Path) -> None:
    built = LightningConfigBuilder().module(CannotBeMade)
    again: dict[str, Any] = {"lightning_config": built.build(), "datasets": {"train": dataset()}}
    for name, options in (("stored", {"batch_size": 4}), ("not_stored", {"collate_fn": len})):
        run_config = RunConfig(engine="inline", name=name, verbose=0)
        with pytest.raises(TrainingFailedError, match="on purpose"):
            trainer(
                built,
                datasets_iter_config=options,
                run_config=run_config,
                scaling_config=ScalingConfig(num_workers=1),
            ).fit()
    restored = LightningTrainer.restore(results_dir / "stored", **again)
    assert restored.datasets_iter_config == {"batch_size": 4}
    with pytest.raises(RestoreError, match="datasets_iter_config="):
        LightningTrainer.restore(results_dir / "not_stored", **again)


def test_devices_are_chosen_by_the_scaling_config() -> None:
    with pytest.raises(ConfigError, match=r"ScalingConfig\(use_gpu=True\)"):
        trainer(LightningConfigBuilder().module(Line).trainer(accelerator="gpu"))


def test_a_trainer_without_a_module_can_be_searched_but_not_fitted() -> None:
    empty = LightningTrainer(
        datasets={"train": dataset()}, scaling_config=ScalingConfig(num_workers=1), run_config=NO_PROCESSES
    )
    with pytest.raises(ConfigError, match=r"LightningConfigBuilder\(\)\.module\(MyModule\)"):
        empty.fit()
    with pytest.raises(ConfigError, match=r"LightningConfigBuilder\(\)\.module\(MyModule\)"):
        trainer(LightningConfigBuilder().trainer(max_epochs=1))
    searched = empty.with_overrides({"lightning_config": LightningConfigBuilder().module(Line, lr=0.5).build()})
    assert searched.to_run_spec().config["lightning_config"]["module_args"] == {"lr": 0.5}


def test_another_dict_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lightning_config.*LightningConfigBuilder"):
        LightningTrainer({"max_epochs": 3})
    with pytest.raises(ConfigError, match=r"lightning_config\['trainer_args'\].*None.*dict"):
        LightningTrainer({"trainer_args": None})
    with pytest.raises(ConfigError, match=r"TorchConfig.*str"):
        trainer(torch_config="gloo")


def test_the_run_keeps_what_lightning_keeps_unless_it_is_told_itself() -> None:
    best = LightningConfigBuilder().module(Line).checkpointing(monitor="acc", mode="max", save_top_k=3)
    kept = trainer(best).run_config.checkpoint_config
    assert (kept.num_to_keep, kept.checkpoint_score_attribute, kept.checkpoint_score_order) == (3, "acc", "max")
    newest = trainer(LightningConfigBuilder().module(Line).checkpointing(save_top_k=2)).run_config.checkpoint_config
    assert (newest.num_to_keep, newest.checkpoint_score_order) == (2, "min")  # Lightning's own default
    told = RunConfig(engine="inline", checkpoint_config=CheckpointConfig(num_to_keep=1))
    kept = trainer(best, run_config=told).run_config.checkpoint_config
    assert (kept.num_to_keep, kept.checkpoint_score_attribute) == (1, None)
    assert trainer().run_config.checkpoint_config.num_to_keep is None
    assert told.checkpoint_config == CheckpointConfig(num_to_keep=1)


def test_workers_are_forked_with_the_package_that_the_module_is_of() -> None:
    import pytorch_lightning

    class Older(pytorch_lightning.LightningModule):  # type: ignore[misc]
        pass

    made = trainer(torch_config=TorchConfig(timeout_s=7))
    assert made.backend_config.backend_cls is LightningBackend
    assert isinstance(made.backend_config, TorchConfig)
    assert made.backend_config.timeout_s == 7
    older = trainer(LightningConfigBuilder().module(Older))
    assert older.backend_config.backend_cls is PytorchLightningBackend
