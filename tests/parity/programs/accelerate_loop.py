"""Accelerate inside a TorchTrainer, as in the guide of Ray 2.7 and later."""

import os
import tempfile

import ray.train
import torch
from accelerate import Accelerator
from ray.train import Checkpoint, DataConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_iris


def train_func(config):
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    model, optimizer = accelerator.prepare(model, optimizer)
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        model.train()
        for batch in shard.iter_torch_batches(batch_size=25, local_shuffle_buffer_size=50, local_shuffle_seed=epoch):
            loss = torch.nn.functional.cross_entropy(model(batch["x"].float()), batch["y"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
        with tempfile.TemporaryDirectory() as temp_dir:
            accelerator.save_model(accelerator.unwrap_model(model), temp_dir)
            ray.train.report(
                {"loss": losses.mean().item(), "losses": len(losses), "processes": accelerator.num_processes},
                checkpoint=Checkpoint.from_directory(temp_dir) if accelerator.is_main_process else None,
            )


iris = load_iris()
ds = ray.data.from_items([{"x": x, "y": int(y)} for x, y in zip(iris.data, iris.target)])
trainer = TorchTrainer(
    train_func,
    train_loop_config={"lr": 0.05, "epochs": 4},
    datasets={"train": ds.random_shuffle(seed=0)},
    dataset_config=DataConfig(datasets_to_split=["train"]),
    scaling_config=ScalingConfig(num_workers=2),
)
result = trainer.fit()
frame = result.metrics_dataframe
assert frame["loss"].iloc[-1] < frame["loss"].iloc[0]
with result.checkpoint.as_directory() as path:
    print(os.listdir(path))
    assert "model.safetensors" in os.listdir(path)
print("processes:", result.metrics["processes"], "losses:", result.metrics["losses"])
