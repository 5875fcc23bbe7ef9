"""ASHA over a TorchTrainer: train_loop_config and scaling_config in param_space."""

import ray
import torch
from ray import train, tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune import TuneConfig, Tuner
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits


def train_func(config):
    digits = load_digits()
    x = torch.tensor(digits.data[:600], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[:600])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, config["hidden"]), torch.nn.ReLU(), torch.nn.Linear(config["hidden"], 10)
    )
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for _ in range(config["num_epochs"]):
        for start in range(0, 500, 50):
            loss = torch.nn.functional.cross_entropy(model(x[start : start + 50]), y[start : start + 50])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x[500:]).argmax(1) == y[500:]).float().mean().item()
        train.report({"loss": loss.item(), "accuracy": accuracy})


ray_trainer = TorchTrainer(
    train_func,
    train_loop_config={"num_epochs": 6},
    scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
)
scheduler = ASHAScheduler(max_t=6, grace_period=1, reduction_factor=2)
tuner = Tuner(
    ray_trainer,
    param_space={
        "train_loop_config": {
            "hidden": tune.choice([16, 32]),
            "lr": tune.grid_search([1e-1, 1e-2, 1e-4, 1e-5]),
        }
    },
    tune_config=TuneConfig(metric="accuracy", mode="max", num_samples=1, scheduler=scheduler, max_concurrent_trials=2),
    run_config=RunConfig(name="asha"),
)
results = tuner.fit()
best = results.get_best_result("accuracy", "max")
df = results.get_dataframe(filter_metric="accuracy", filter_mode="max")
print(df[["config/train_loop_config/lr", "accuracy", "training_iteration"]].to_string())
assert len(df) == 4
assert best.config["train_loop_config"]["lr"] >= 1e-2
assert best.metrics["training_iteration"] == 6
print("some trial was stopped early:", any(r.metrics["training_iteration"] < 6 for r in results))
