"""AccelerateTrainer end to end: real workers, a real Accelerator in each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, TensorDataset

from paceline import data, train, tune
from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, RestoreError, TrainingFailedError
from paceline.air.result import Result
from paceline.train.huggingface import AccelerateTrainer
from paceline.train.torch import TorchCheckpoint, TorchConfig, load_sharded, save_sharded


@pytest.fixture(autouse=True)
def no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "accelerate" / "default_config.yaml"


def line() -> Any:
    return data.from_items([{"x": x / 32, "y": 2 * x / 32 + 1} for x in range(64)])


def fit(train_func: Callable[..., Any], num_workers: int = 2, engine: str | None = None, **arguments: Any) -> Result:
    return AccelerateTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(verbose=0, engine=engine),
        datasets={"train": line()},  # in all of them, so that they share the process that has loaded everything
        **arguments,
    ).fit()


def fit_a_line(config: dict[str, Any]) -> None:
    """y = 2x + 1 from the rows of this worker, with a checkpoint in every epoch."""
    accelerator = Accelerator()
    torch.manual_seed(session.get_world_rank())  # ranks begin with different weights
    model = torch.nn.Linear(1, 1)
    first_epoch = 0
    checkpoint = session.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        first_epoch = state["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    rows = session.get_dataset_shard("train")
    for epoch in range(first_epoch, config["epochs"]):
        for batch in rows.iter_torch_batches(batch_size=8, dtypes=torch.float32, device=accelerator.device):
            loss = torch.nn.functional.mse_loss(model(batch["x"].unsqueeze(1)), batch["y"].unsqueeze(1))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        weights = accelerator.unwrap_model(model).state_dict()
        loss = accelerator.reduce(loss.detach(), "mean")
        session.report(
            {
                "epoch": epoch,
                "loss": loss.item(),
                "wrapped": type(model).__name__,
                "weights": [weights["weight"].item(), weights["bias"].item()],
                "state": [
                    accelerator.distributed_type.value,
                    accelerator.num_processes,
                    accelerator.process_index,
                    str(accelerator.device),
                    accelerator.mixed_precision,
                ],
            },
            checkpoint=Checkpoint.from_dict({"epoch": epoch, "model": weights}),
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return AccelerateTrainer(
        fit_a_line,
        train_loop_config={"epochs": 6},
        accelerate_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, storage_path=str(tmp_path_factory.mktemp("trained"))),
        datasets={"train": line()},
    ).fit()


def test_the_loss_falls_and_ranks_end_with_the_same_weights(trained: Result) -> None:
    losses = trained.metrics_dataframe["loss"].tolist()
    assert losses[-1] < losses[0] / 4
    ranks = [trained.rank_metrics[rank] for rank in range(2)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["wrapped"] == "DistributedDataParallel"
    for rank in range(2):
        assert ranks[rank]["state"] == ["MULTI_CPU", 2, rank, "cpu", "no"]


def test_a_second_run_goes_on_at_the_next_epoch(trained: Result) -> None:
    result = fit(
        fit_a_line,
        train_loop_config={"epochs": 8},
        resume_from_checkpoint=trained.checkpoint,
    )
    assert result.metrics_dataframe["epoch"].tolist() == [6, 7]
    assert result.metrics_dataframe["loss"].tolist()[0] < trained.metrics_dataframe["loss"].tolist()[0]


def test_settings_arrive_and_the_topology_is_announced_once() -> None:
    def train_func() -> None:
        accelerator = Accelerator()
        weight = torch.nn.Linear(1, 1, bias=False)
        model, optimizer = accelerator.prepare(weight, torch.optim.SGD(weight.parameters(), lr=1.0))
        steps = []
        for _ in range(4):
            with accelerator.accumulate(model):
                before = weight.weight.item()
                output = model(torch.ones(1, 1))
                accelerator.backward(output.float().sum())
                optimizer.step()
                optimizer.zero_grad()
                steps.append(weight.weight.item() != before)
        with accelerator.autocast():
            inside = torch.ones(2, 2) @ torch.ones(2, 2)
        train.report(
            {
                "processes": accelerator.num_processes,
                "dtype": str(inside.dtype),
                "steps": steps,
                "compiled_by": accelerator.state.dynamo_plugin.backend.value,
                "port": os.environ["MASTER_PORT"],
            }
        )

    config = {
        "mixed_precision": "bf16",
        "gradient_accumulation_steps": 2,
        "dynamo_config": {"dynamo_backend": "EAGER"},
        "num_processes": 8,
        "main_process_port": 1,
    }
    with pytest.warns(UserWarning, match=r"num_processes 8.*\b2\b.*main_process_port 1") as told:
        result = fit(train_func, accelerate_config=config)
    assert len(told) == 1
    assert told[0].filename == __file__
    for rank in range(2):
        metrics = result.rank_metrics[rank]
        assert (metrics["processes"], metrics["dtype"]) == (2, "torch.bfloat16")
        assert metrics["steps"] == [False, True, False, True]
        assert metrics["compiled_by"] == "EAGER"
        assert metrics["port"] != "1"
    assert result.metrics is not None
    assert result.metrics["config"] == {"accelerate_config": config}


def test_a_data_loader_is_dealt_and_metrics_are_gathered_without_repeats() -> None:
    def train_func() -> None:
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(11)), batch_size=2))
        own, gathered = [], []
        for (batch,) in loader:
            own += batch.tolist()
            gathered += accelerator.gather_for_metrics(batch).tolist()
        train.report({"own": own, "gathered": gathered})

    result = fit(train_func)
    ranks = [result.rank_metrics[rank] for rank in range(2)]
    assert ranks[0]["own"] == [0, 1, 4, 5, 8, 9]
    assert set(ranks[0]["own"]) | set(ranks[1]["own"]) == set(range(11))
    assert [sorted(rank["gathered"]) for rank in ranks] == [list(range(11))] * 2


def test_fsdp_settings_shard_a_model() -> None:
    """Accelerate leaves FSDP to GPUs: that choice is changed here, all else is its own."""

    def train_func() -> None:
        accelerator = Accelerator()
        chosen = accelerator.distributed_type.value
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        rows = torch.randn(16, 4)
        losses = []
        for _ in range(5):
            loss = model(rows).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        whole = sum(value.numel() for value in accelerator.get_state_dict(model).values())
        train.report({"chosen": chosen, "losses": losses, "held": held, "whole": whole})

    config = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    }
    with pytest.warns(UserWarning, match="FSDP.*GPUs"):
        result = fit(train_func, accelerate_config=config)
    ranks = [result.rank_metrics[rank] for rank in range(2)]
    assert ranks[0]["chosen"] == "MULTI_CPU"
    assert ranks[0]["losses"][-1] < ranks[0]["losses"][0]
    assert ranks[0]["losses"] == ranks[1]["losses"]
    assert [rank["held"] < 49 for rank in ranks] == [True, True]
    assert sum(rank["held"] for rank in ranks) == 49  # 4*8 + 8 + 8 + 1
    assert ranks[0]["whole"] == 49


def test_one_worker_in_this_process_leaves_no_trace(no_default_file: Path) -> None:
    from accelerate.state import AcceleratorState, PartialState

    def fail() -> None:
        raise RuntimeError(Accelerator().mixed_precision)

    def train_func() -> None:
        accelerator = Accelerator()
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        weights = accelerator.unwrap_model(model).state_dict()
        train.report(
            {"precision": accelerator.mixed_precision, "threads": torch.get_num_threads()},
            checkpoint=TorchCheckpoint.from_state_dict(weights),
        )

    no_default_file.parent.mkdir(parents=True)
    no_default_file.write_text("mixed_precision: bf16\nnum_processes: 1\n")
    AcceleratorState._reset_state(reset_partial_state=True)  # of other tests
    before, threads = dict(os.environ), torch.get_num_threads()
    with pytest.raises(TrainingFailedError, match="RuntimeError: bf16"):
        fit(fail, num_workers=1, engine="inline")
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    assert (AcceleratorState._shared_state, PartialState._shared_state) == ({}, {})
    for _ in range(2):
        result = fit(train_func, num_workers=1, engine="inline")
        assert result.metrics is not None
        assert (result.metrics["precision"], result.metrics["threads"]) == ("bf16", threads)
        assert result.metrics["config"] == {}
    assert dict(os.environ) == before
    assert (AcceleratorState._shared_state, PartialState._shared_state) == ({}, {})


def test_a_workers_imports_are_done_before_it_starts() -> None:
    def train_func() -> None:
        import sys

        before = set(sys.modules)
        accelerator = Accelerator()
        model = torch.nn.Linear(4, 1)
        loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
        for (rows,) in loader:
            accelerator.backward(model(rows).sum())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accelerator.wait_for_everyone()
        accelerator.save_state("state")
        train.report({"imported": sorted(set(sys.modules) - before)})

    assert fit(train_func).rank_metrics[0]["imported"] == []


def test_a_search_over_settings() -> None:
    def train_func() -> None:
        train.report({"precision": Accelerator().mixed_precision})

    trainer = AccelerateTrainer(
        train_func,
        accelerate_config={"mixed_precision": "no", "debug": True},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(verbose=0),
        datasets={"train": line()},
    )
    space = {"accelerate_config": {"mixed_precision": tune.grid_search(["no", "bf16"])}}
    results = tune.Tuner(trainer, param_space=space).fit()
    assert {result.metrics["precision"] for result in results if result.metrics} == {"no", "bf16"}


def test_a_restored_run_has_its_settings(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        accelerator = Accelerator()
        start = 0 if session.get_checkpoint() is None else 1
        for step in range(start, 2):
            if step == 1 and not config["go_on"]:
                raise RuntimeError("interrupted")
            session.report({"precision": accelerator.mixed_precision}, checkpoint=Checkpoint.from_dict({"step": step}))

    trainer = AccelerateTrainer(
        train_func,
        train_loop_config={"go_on": False},
        accelerate_config={"mixed_precision": "bf16"},
        torch_config=TorchConfig(timeout_s=60),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="one", storage_path=str(tmp_path), verbose=0),
        datasets={"train": line()},
    )
    with pytest.raises(TrainingFailedError, match="interrupted"):
        trainer.fit()
    assert AccelerateTrainer.can_restore(tmp_path / "one")
    restored = AccelerateTrainer.restore(
        str(tmp_path / "one"),
        train_loop_per_worker=train_func,
        train_loop_config={"go_on": True},
        torch_config=TorchConfig(timeout_s=60),
        datasets={"train": line()},
    )
    assert restored.fit().metrics_dataframe["precision"].tolist() == ["bf16", "bf16"]


def test_settings_that_were_not_stored_are_asked_for(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        session.report({"n": 1}, checkpoint=Checkpoint.from_dict({"n": 1}))
        raise RuntimeError("interrupted")

    again = {"train_loop_config": {"loss": torch.nn.MSELoss()}, "datasets": {"train": line()}}
    trainer = AccelerateTrainer(
        train_func,
        accelerate_config={"mixed_precision": "bf16"},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="one", storage_path=str(tmp_path), verbose=0),
        **again,
    )
    with pytest.raises(TrainingFailedError, match="interrupted"):
        trainer.fit()
    with pytest.raises(RestoreError, match="accelerate_config="):
        AccelerateTrainer.restore(tmp_path / "one", train_loop_per_worker=train_func, **again)


class OwnConfig(TorchConfig):
    @property
    def backend_cls(self) -> Any:
        raise AssertionError("not reached")


def test_mistakes_are_told_at_the_users_line(tmp_path: Path) -> None:
    def train_func() -> None:
        raise AssertionError("not reached")

    with pytest.raises(ConfigError, match=r"dynamo_config.*'dynamo_mod'.*dynamo_mode"):
        fit(train_func, accelerate_config={"dynamo_config": {"dynamo_mod": "default"}})
    half: Any = {"accelerate_config": {"mixed_precision": "fp16"}}
    with pytest.raises(ConfigError, match=r"mixed_precision fp16.*GPUs"):
        AccelerateTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), **half)
    AccelerateTrainer(train_func, scaling_config=ScalingConfig(num_workers=2, use_gpu=True), **half)
    AccelerateTrainer(train_func, **half)  # a Tuner may add the scaling_config
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        AccelerateTrainer(train_func, accelerate_config=tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"OwnConfig.*backend_cls"):
        AccelerateTrainer(train_func, torch_config=OwnConfig())
    with pytest.raises(ConfigError, match=r"dict.*TorchConfig"):
        AccelerateTrainer(train_func, torch_config={"backend": "gloo"})  # type: ignore[arg-type]


def test_what_accelerate_has_prepared_is_saved_in_parts() -> None:
    def train_func() -> None:
        accelerator = Accelerator()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        start = 0
        checkpoint = train.get_checkpoint()
        if checkpoint is not None:
            start = load_sharded(checkpoint, model, optimizer)["step"] + 1
        for step in range(start, 4):
            loss = model(torch.ones(2, 4)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            train.report({"loss": loss.item()}, checkpoint=save_sharded(model, optimizer, {"step": step}))

    whole = fit(train_func)
    losses = list(whole.metrics_dataframe["loss"])
    start = whole.best_checkpoints[1][0]
    for num_workers in (1, 2):
        result = fit(train_func, num_workers, resume_from_checkpoint=start)
        assert list(result.metrics_dataframe["loss"]) == pytest.approx(losses[2:], rel=1e-5)
