"""Population based training of a function that saves checkpoints (Ray 2.7)."""

import json
import os
import random
import tempfile

from ray import train, tune
from ray.train import Checkpoint
from ray.tune.schedulers import PopulationBasedTraining


def trainable(config):
    value, step = 0.0, 1
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            with open(os.path.join(checkpoint_dir, "state.json")) as f:
                state = json.load(f)
        value, step = state["value"], state["step"] + 1
    while step <= 12:
        value += config["lr"] * (1 - value)
        with tempfile.TemporaryDirectory() as tmpdir:
            with open(os.path.join(tmpdir, "state.json"), "w") as f:
                json.dump({"value": value, "step": step}, f)
            train.report(
                {"score": value, "lr": config["lr"], "step": step}, checkpoint=Checkpoint.from_directory(tmpdir)
            )
        step += 1


random.seed(5)
perturbation_interval = 2
scheduler = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=perturbation_interval,
    metric="score",
    mode="max",
    quantile_fraction=0.5,
    resample_probability=0.5,
    hyperparam_mutations={"lr": tune.uniform(0.01, 0.5), "momentum": [0.8, 0.9, 0.99]},
    synch=True,
)
tuner = tune.Tuner(
    trainable,
    run_config=train.RunConfig(
        name="pbt_test",
        stop={"training_iteration": 12},
        checkpoint_config=train.CheckpointConfig(checkpoint_score_attribute="score", num_to_keep=4),
    ),
    tune_config=tune.TuneConfig(scheduler=scheduler, num_samples=4),
    param_space={"lr": tune.uniform(0.01, 0.5), "momentum": tune.choice([0.8, 0.9, 0.99])},
)
results_grid = tuner.fit()
best_result = results_grid.get_best_result(metric="score", mode="max")
assert not results_grid.errors
print("Best result path:", os.path.basename(best_result.path))
print("Best final iteration hyperparameter config:", best_result.config)
frame = best_result.metrics_dataframe
assert frame["step"].max() == 12
worst = min(r.metrics["score"] for r in results_grid)
print("trials:", len(results_grid), "score is high:", best_result.metrics["score"] > 0.8, worst > 0.3)
