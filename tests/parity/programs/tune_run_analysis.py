"""tune.run of the old days: config, metric in tune.report(**), ExperimentAnalysis, command line."""

import argparse
import time

import numpy as np
import ray
from ray import tune
from ray.tune import ExperimentAnalysis
from ray.tune.schedulers import AsyncHyperBandScheduler


def evaluation_fn(step, width, height):
    return (0.1 + width * step / 100) ** (-1) + height * 0.1


def easy_objective(config):
    width, height = config["width"], config["height"]
    for step in range(config["steps"]):
        time.sleep(0.001)
        tune.report(iterations=step, mean_loss=evaluation_fn(step, width, height))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke-test", action="store_true", help="Finish quickly for testing")
    args, _ = parser.parse_known_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    np.random.seed(1234)
    analysis = tune.run(
        easy_objective,
        name="asynchyperband_test",
        metric="mean_loss",
        mode="min",
        stop={"training_iteration": 10},
        num_samples=2,
        verbose=1,
        resources_per_trial={"cpu": 1, "gpu": 0},
        scheduler=AsyncHyperBandScheduler(time_attr="training_iteration", grace_period=5, max_t=10),
        config={
            "steps": 20,
            "width": tune.sample_from(lambda spec: 10 + spec.config.height * 0.01),
            "height": tune.grid_search([-50, 50]),
            "seed": tune.choice([1, 2]),
            "nested": {"depth": tune.quniform(1, 5, 1), "rate": tune.loguniform(1e-4, 1e-1)},
        },
    )
    print("Best hyperparameters found were: ", analysis.best_config)
    best_trial = analysis.best_trial
    assert best_trial.last_result["mean_loss"] == analysis.best_result["mean_loss"]
    assert analysis.get_best_config(metric="mean_loss", mode="min") == analysis.best_config
    assert analysis.get_best_trial("mean_loss", "min", "last").trial_id == best_trial.trial_id
    df = analysis.results_df
    assert len(df) == 4, df
    assert len(analysis.trials) == 4
    assert "config/nested/depth" in analysis.dataframe(metric="mean_loss", mode="min").columns
    frames = analysis.trial_dataframes
    assert max(len(frame) for frame in frames.values()) == 10
    again = ExperimentAnalysis(analysis.experiment_path, default_metric="mean_loss", default_mode="min")
    assert again.best_config["height"] == -50
    print(
        "best height:",
        analysis.best_config["height"],
        "depth is whole:",
        analysis.best_config["nested"]["depth"] % 1 == 0,
    )
