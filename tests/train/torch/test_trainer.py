"""TorchTrainer end to end, with real workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import paceline
import paceline.train.torch
from paceline import train
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.air.result import Result
from paceline.train.torch import TorchConfig, TorchTrainer


def fit(train_func: Callable[..., Any], num_workers: int = 2, engine: str | None = None, **arguments: Any) -> Result:
    return TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(verbose=0, engine=engine),
        **arguments,
    ).fit()


def row(result: Result) -> dict[str, Any]:
    assert result.metrics is not None
    return result.metrics


def abandoned_shared_memory() -> set[str]:
    """Files that torch named after processes which have ended; other test processes may have live ones."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    owners = {name: name.split("_")[1] for name in names if name.startswith("torch_")}
    return {name for name, pid in owners.items() if not os.path.exists(f"/proc/{pid}")}


@pytest.mark.parametrize("init_method", ["env", "tcp"])
def test_every_rank_finds_its_group_and_its_variables(init_method: str) -> None:
    def train_func() -> None:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "ACCELERATE_TORCH_DEVICE")
        total = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(total)
        part = dist.new_group([0, 1])
        dist.all_reduce(total, group=part)
        train.report(
            {
                "variables": [os.environ[name] for name in names],
                "address": os.environ["MASTER_ADDR"],
                "backend": dist.get_backend(),
                "device": str(paceline.train.torch.get_device()),
                "total": total,
            }
        )

    before = abandoned_shared_memory()
    result = fit(train_func, torch_config=TorchConfig(init_method=init_method))
    for rank in range(2):
        metrics = result.rank_metrics[rank]
        assert metrics["variables"] == [str(rank), str(rank), "2", "2", "0", "cpu"]
        assert metrics["address"] == "127.0.0.1"
        assert (metrics["backend"], metrics["device"], metrics["total"]) == ("gloo", "cpu", 6)
    assert abandoned_shared_memory() == before


def test_nothing_listens_outside_of_the_machine() -> None:
    def train_func() -> None:
        own = {os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)}
        with open("/proc/net/tcp") as table:
            sockets = [line.split() for line in table][1:]
        listening = [fields[1] for fields in sockets if fields[3] == "0A" and f"socket:[{fields[9]}]" in own]
        train.report({"listening": listening})

    metrics = fit(train_func).rank_metrics[0]
    assert metrics["listening"]
    assert all(address.startswith("0100007F:") for address in metrics["listening"])


def test_one_worker_has_a_group_too() -> None:
    def train_func() -> None:
        model = paceline.train.torch.prepare_model(torch.nn.Linear(1, 1))
        train.report({"world": dist.get_world_size(), "model": type(model).__name__})

    assert row(fit(train_func, num_workers=1))["world"] == 1
    assert row(fit(train_func, num_workers=1))["model"] == "Linear"


def test_inline_runs_can_follow_each_other() -> None:
    def train_func() -> None:
        total = torch.ones(1)
        dist.all_reduce(total)
        train.report({"total": total})

    before = dict(os.environ)
    for _ in range(2):
        assert row(fit(train_func, num_workers=1, engine="inline"))["total"] == 1
    assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_a_worker_imports_nothing_of_torch_any_more() -> None:
    """The first model, step, save and loading process of a run shall not cost an import of seconds."""

    def train_func() -> None:
        import io
        import sys

        before = set(sys.modules)
        model = paceline.train.torch.prepare_model(torch.nn.Linear(4, 1))
        loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, num_workers=1)
        optimizer = torch.optim.Adam(model.parameters())
        for (rows,) in paceline.train.torch.prepare_data_loader(loader):
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
        torch.save(model.state_dict(), io.BytesIO())
        train.report({"imported": sorted(set(sys.modules) - before)})

    assert row(fit(train_func))["imported"] == []


def test_gradients_are_the_same_on_all_ranks_and_the_mean_of_theirs() -> None:
    def train_func() -> None:
        model = paceline.train.torch.prepare_model(torch.nn.Linear(1, 1, bias=False))
        rank = session.get_world_rank()
        model(torch.full((1, 1), float(rank + 1))).sum().backward()
        train.report({"wrapped": type(model).__name__, "gradient": model.module.weight.grad})

    result = fit(train_func)
    assert row(result)["wrapped"] == "DistributedDataParallel"
    assert [result.rank_metrics[rank]["gradient"] for rank in range(2)] == [1.5, 1.5]


def test_older_arguments_of_prepare_model() -> None:
    def train_func() -> None:
        prepare = paceline.train.torch.prepare_model
        wrapped = [
            prepare(torch.nn.Linear(1, 1), wrap_ddp=False),
            prepare(torch.nn.Linear(1, 1), True, False),
            prepare(torch.nn.Linear(1, 1), True, True, {"find_unused_parameters": True}),
            prepare(torch.nn.Linear(1, 1), ddp_kwargs={"broadcast_buffers": False}),
        ]
        train.report({"names": [type(model).__name__ for model in wrapped]})

    assert row(fit(train_func))["names"] == ["Linear", "Linear", *["DistributedDataParallel"] * 2]


def test_data_is_dealt_and_epochs_differ() -> None:
    def train_func() -> None:
        loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=2, shuffle=True, num_workers=1)
        loader = paceline.train.torch.prepare_data_loader(loader)
        for _ in range(3):
            train.report({"rows": [int(row) for (batch,) in loader for row in batch]})

    result = fit(train_func)
    epochs = {rank: result.rank_dataframe.query(f"rank == {rank}")["rows"].tolist() for rank in range(2)}
    for one, other in zip(epochs[0], epochs[1], strict=True):
        assert sorted([*one, *other]) == list(range(12))
    assert len({tuple(rows) for rows in epochs[0]}) == 3


def test_mixed_precision() -> None:
    def train_func() -> None:
        paceline.train.torch.accelerate(amp=True)
        torch.manual_seed(0)
        model = paceline.train.torch.prepare_model(torch.nn.Linear(4, 1))
        optimizer = paceline.train.torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        rows = torch.randn(16, 4)
        for _ in range(5):
            optimizer.zero_grad()
            outputs = model(rows)
            loss = torch.nn.functional.mse_loss(outputs.float(), rows.sum(1, keepdim=True))
            paceline.train.torch.backward(loss)
            optimizer.step()
            train.report({"loss": loss, "dtype": str(outputs.dtype), "keys": list(model.module.state_dict())})

    result = fit(train_func)
    losses = result.metrics_dataframe["loss"].tolist()
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]
    assert row(result)["dtype"] == "torch.bfloat16"
    assert row(result)["keys"] == ["weight", "bias"]


def test_reproducible_runs() -> None:
    def train_func(config: dict[str, Any]) -> None:
        if config["reproducible"]:
            paceline.train.torch.enable_reproducibility(seed=config["seed"])
        else:
            torch.seed()
        model = paceline.train.torch.prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
        loader = paceline.train.torch.prepare_data_loader(DataLoader(data, batch_size=5, shuffle=True))
        for rows, targets in loader:
            loss = torch.nn.functional.mse_loss(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"loss": loss})

    def losses(**config: Any) -> list[float]:
        return list(fit(train_func, train_loop_config=config).metrics_dataframe["loss"])

    first = losses(reproducible=True, seed=1)
    assert losses(reproducible=True, seed=1) == first
    assert losses(reproducible=True, seed=2) != first
    assert losses(reproducible=False) != losses(reproducible=False)


def test_fully_sharded_training() -> None:
    def train_func() -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 2)
        whole = sum(parameter.numel() for parameter in model.parameters())
        model = paceline.train.torch.prepare_model(model, parallel_strategy="fsdp")
        mine = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(3, 5)).sum().backward()
        optimizer.step()
        checkpoint = paceline.train.torch.TorchCheckpoint.from_model(model)
        train.report({"whole": whole, "mine": mine}, checkpoint=checkpoint)

    result = fit(train_func)
    assert (row(result)["whole"], row(result)["mine"]) == (12, 6)

    torch.manual_seed(0)
    expected = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    expected(torch.ones(3, 5)).sum().backward()
    optimizer.step()
    assert isinstance(result.checkpoint, paceline.train.torch.TorchCheckpoint)
    trained = result.checkpoint.get_model(torch.nn.Linear(5, 2))
    for name, value in expected.state_dict().items():
        assert torch.allclose(trained.state_dict()[name], value)


@pytest.mark.parametrize("repetitions", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_train_function_may_destroy_its_group(repetitions: int) -> None:
    """With the model still alive, which hangs where nobody else holds the group."""

    def train_func() -> None:
        model = paceline.train.torch.prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        train.report({"done": True})
        dist.destroy_process_group()

    for _ in range(repetitions):
        assert row(fit(train_func))["done"]


def test_a_train_function_may_make_its_own_group() -> None:
    def train_func() -> None:
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        train.report({"total": total})

    assert row(fit(train_func))["total"] == 2


def test_an_exception_is_the_root_cause_while_peers_wait_in_a_collective() -> None:
    def train_func() -> None:
        train.report({"step": 0})
        if session.get_world_rank() == 1:
            raise KeyError("rank 1 has had enough")
        dist.all_reduce(torch.ones(1))

    began = time.monotonic()
    with pytest.raises(TrainingFailedError) as caught:
        fit(train_func, num_workers=3)
    assert time.monotonic() - began < 60, "survivors were waited for"
    cause = caught.value.root_cause
    assert cause is not None
    assert (cause.rank, cause.exception_type) == (1, "builtins.KeyError")
    assert "rank 1 has had enough" in str(caught.value)


def test_nccl_without_gpus_is_rejected_before_workers_start() -> None:
    with pytest.raises(ConfigError, match=r"nccl.*use_gpu=True.*gloo"):
        fit(lambda: None, torch_config=TorchConfig(backend="nccl"))


@pytest.mark.slow
def test_torchmetrics_work_across_ranks() -> None:
    def train_func() -> None:
        import torchmetrics

        accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        rank = session.get_world_rank()
        accuracy.update(torch.tensor([0, 1]), torch.tensor([0, 1 + rank]))
        train.report({"accuracy": accuracy.compute()})

    result = fit(train_func)
    assert [result.rank_metrics[rank]["accuracy"] for rank in range(2)] == [0.75, 0.75]


def test_inline_a_failed_run_does_not_stand_in_the_way_of_the_next() -> None:
    def train_func(config: dict[str, Any]) -> None:
        if config["fails"]:
            raise RuntimeError("for the test")
        total = torch.tensor(3)
        dist.all_reduce(total)
        train.report({"total": int(total)})

    with pytest.raises(TrainingFailedError, match="for the test"):
        fit(train_func, 1, "inline", train_loop_config={"fails": True})
    assert row(fit(train_func, 1, "inline", train_loop_config={"fails": False}))["total"] == 3
    assert not dist.is_initialized()
