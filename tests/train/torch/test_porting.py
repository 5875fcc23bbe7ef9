"""Programs of Ray's deep learning guide run as they are, with `ray` replaced by `paceline`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

import paceline
import paceline.train.torch
from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.result import Result
from paceline.train.torch import TorchConfig, TorchTrainer
from paceline.tune.logger import LoggerCallback

TWO_WORKERS = ScalingConfig(num_workers=2)
QUIET = RunConfig(verbose=0)


def test_porting_a_training_function() -> None:
    def train_func() -> None:
        worker_batch_size = 4
        model = train.torch.prepare_model(nn.Linear(2, 1))
        data_loader = DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=worker_batch_size)
        data_loader = train.torch.prepare_data_loader(data_loader)
        batches = [len(rows) for (rows,) in data_loader]
        loss = sum(model(rows).sum() for (rows,) in data_loader)
        train.report(
            {
                "batches": batches,
                "loss": loss,
                "global_batch_size": worker_batch_size * train.world_size(),
                "same": worker_batch_size * train.get_context().get_world_size(),
                "local_ranks": [train.local_rank(), train.get_context().get_local_rank()],
            }
        )

    use_gpu = False
    trainer = TorchTrainer(
        train_func,
        torch_backend=TorchConfig(timeout_s=60),
        scaling_config=ScalingConfig(use_gpu=use_gpu, num_workers=2),
        run_config=QUIET,
    )
    result = trainer.fit()
    assert result.metrics is not None
    assert result.metrics["batches"] == [4, 4]
    assert result.metrics["global_batch_size"] == result.metrics["same"] == 8
    assert result.rank_metrics[1]["local_ranks"] == [1, 1]


def test_configuring_training_and_the_result() -> None:
    def train_func(config: dict[str, Any]) -> None:
        for i in range(config["num_epochs"]):
            session.report({"epoch": i})

    trainer = TorchTrainer(
        train_func, train_loop_config={"num_epochs": 2}, scaling_config=TWO_WORKERS, run_config=QUIET
    )
    result = trainer.fit()
    metrics = result.metrics
    assert metrics is not None
    assert set(metrics) == {
        "_time_this_iter_s",
        "_timestamp",
        "_training_iteration",
        "config",
        "date",
        "done",
        "episodes_total",
        "epoch",
        "experiment_id",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "timesteps_since_restore",
        "timesteps_total",
        "training_iteration",
        "trial_id",
        "warmup_time",
    }
    assert (metrics["epoch"], metrics["training_iteration"], metrics["done"]) == (1, 2, True)
    assert metrics["config"] == {"train_loop_config": {"num_epochs": 2}}
    assert result.metrics_dataframe["epoch"].tolist() == [0, 1]
    assert result.error is None
    assert isinstance(result.log_dir, Path)
    assert (result.log_dir / "result.json").exists()


def save_func(config: dict[str, Any]) -> None:
    n = 100
    X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))
    Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))
    model = nn.Linear(4, 1)
    criterion = nn.MSELoss()
    optimizer = Adam(model.parameters(), lr=3e-4)
    start_epoch = 0

    checkpoint = session.get_checkpoint()
    if checkpoint:
        checkpoint_dict = checkpoint.to_dict()
        model.load_state_dict(checkpoint_dict["model_weights"])
        start_epoch = checkpoint_dict.get("epoch", -1) + 1

    model = paceline.train.torch.prepare_model(model)
    for epoch in range(start_epoch, config["num_epochs"]):
        y = model.forward(X)
        loss = criterion(y, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state_dict = model.state_dict()
        consume_prefix_in_state_dict_if_present(state_dict, "module.")
        checkpoint = Checkpoint.from_dict({"epoch": epoch, "model_weights": state_dict})
        session.report({}, checkpoint=checkpoint)


def fit_and_save(num_epochs: int, resume_from_checkpoint: Checkpoint | None = None) -> Result:
    return TorchTrainer(
        save_func,
        train_loop_config={"num_epochs": num_epochs},
        scaling_config=TWO_WORKERS,
        run_config=QUIET,
        resume_from_checkpoint=resume_from_checkpoint,
    ).fit()


def test_saving_checkpoints() -> None:
    result = fit_and_save(5)
    assert result.checkpoint is not None
    state = result.checkpoint.to_dict()
    assert set(state) == {"epoch", "model_weights", "_timestamp", "_preprocessor", "_current_checkpoint_id"}
    assert (state["epoch"], state["_preprocessor"], state["_current_checkpoint_id"]) == (4, None, 4)
    assert {name: tuple(value.shape) for name, value in state["model_weights"].items()} == {
        "weight": (1, 4),
        "bias": (1,),
    }
    kind, path = result.checkpoint.get_internal_representation()
    assert kind == "local_path"
    assert path == f"{result.log_dir}/checkpoint_000004"


def test_loading_checkpoints() -> None:
    first = fit_and_save(2)
    for num_epochs, last_id in ((4, 3), (5, 4)):
        result = fit_and_save(num_epochs, first.checkpoint)
        assert result.checkpoint is not None
        state = result.checkpoint.to_dict()
        assert (state["epoch"], state["_current_checkpoint_id"]) == (num_epochs - 1, last_id)
        assert result.metrics is not None
        assert result.metrics["training_iteration"] == num_epochs - 2


def test_disabling_checkpoints_on_disk() -> None:
    def train_func() -> None:
        for epoch in range(3):
            train.save_checkpoint(epoch=epoch)

    run_config = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=0), verbose=0)
    result = TorchTrainer(train_func, scaling_config=TWO_WORKERS, run_config=run_config).fit()
    assert result.log_dir is not None
    assert not list(result.log_dir.glob("*checkpoint*"))
    assert result.best_checkpoints == []
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 2


def test_keeping_the_best_checkpoints() -> None:
    def train_func() -> None:
        for loss in (2, 4, 1, 3):
            session.report({"loss": 2}, checkpoint=Checkpoint.from_dict({"loss": loss}))

    checkpoint_config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    run_config = RunConfig(checkpoint_config=checkpoint_config, verbose=0)
    result = TorchTrainer(train_func, scaling_config=TWO_WORKERS, run_config=run_config).fit()
    kept = [checkpoint.get_internal_representation() for checkpoint, _ in result.best_checkpoints]
    assert kept == [
        ("local_path", f"{result.log_dir}/checkpoint_000000"),
        ("local_path", f"{result.log_dir}/checkpoint_000002"),
    ]


def test_a_custom_callback() -> None:
    class LoggingCallback(LoggerCallback):
        def __init__(self) -> None:
            self.results: list[dict[str, Any]] = []

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            self.results.append(trial.last_result)

    def train_func() -> None:
        for i in range(3):
            session.report({"epoch": i})

    callback = LoggingCallback()
    run_config = RunConfig(callbacks=[callback], verbose=0)
    TorchTrainer(train_func, run_config=run_config, scaling_config=TWO_WORKERS).fit()
    before, first, second = callback.results
    assert set(before) == {
        "trial_id",
        "experiment_id",
        "date",
        "timestamp",
        "pid",
        "hostname",
        "node_ip",
        "config",
    }
    assert [first["epoch"], second["epoch"]] == [0, 1]
    assert [first["training_iteration"], second["training_iteration"]] == [1, 2]
    assert (second["done"], second["config"], second["experiment_tag"]) == (False, {}, "0")


@pytest.mark.slow
def test_distributed_metrics() -> None:
    def train_func(config: dict[str, Any]) -> None:
        import torchmetrics

        preds = torch.randn(10, 5).softmax(dim=-1)
        target = torch.randint(5, (10,))
        accuracy = torchmetrics.functional.accuracy(preds, target, task="multiclass", num_classes=5).item()
        session.report({"accuracy": accuracy})

    result = TorchTrainer(train_func, scaling_config=TWO_WORKERS, run_config=QUIET).fit()
    assert result.metrics is not None
    assert 0 <= result.metrics["accuracy"] <= 1


def test_mixed_precision_as_a_diff() -> None:
    def train_func() -> None:
        train.torch.accelerate(amp=True)
        model = train.torch.prepare_model(nn.Linear(8, 3))
        data = TensorDataset(torch.randn(16, 8), torch.randint(3, (16,)))
        data_loader = train.torch.prepare_data_loader(DataLoader(data, batch_size=4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        optimizer = train.torch.prepare_optimizer(optimizer)
        model.train()
        for epoch in range(2):
            for images, targets in data_loader:
                optimizer.zero_grad()
                outputs = model(images)
                loss = torch.nn.functional.cross_entropy(outputs, targets)
                train.torch.backward(loss)
                optimizer.step()
            train.report(epoch=epoch, dtype=str(outputs.dtype))

    result = TorchTrainer(train_func, scaling_config=TWO_WORKERS, run_config=QUIET).fit()
    assert result.metrics is not None
    assert (result.metrics["epoch"], result.metrics["dtype"]) == (1, "torch.bfloat16")


def test_profiling() -> None:
    def train_func() -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        from paceline.train.torch import TorchWorkerProfiler

        twp = TorchWorkerProfiler()
        steps = schedule(wait=0, warmup=1, active=1, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=twp.trace_handler) as p:
            for epoch in range(3):
                torch.ones(4).sum()
                p.step()
                profile_results = twp.get_and_clear_profile_traces()
                train.report(epoch=epoch, **profile_results)

    result = TorchTrainer(train_func, scaling_config=TWO_WORKERS, run_config=QUIET).fit()
    rows = result.rank_dataframe
    (path,) = rows[(rows["rank"] == 1) & (rows["epoch"] == 1)]["profiler_traces"].iloc[0]
    assert Path(path).parent == Path(f"{result.log_dir}/rank_1/pytorch_profiler")
    assert Path(path).exists()
