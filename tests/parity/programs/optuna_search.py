"""Optuna with a limit of concurrency, points to evaluate, a conditional space, and two objectives (Ray 2.7)."""

from typing import Any, Dict, Optional

from ray import train, tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch


def evaluate(step, width, height, activation):
    return (0.1 + width * step / 100) ** (-1) + height * 0.1 + (10 if activation == "relu" else 0)


def objective(config):
    for step in range(config["steps"]):
        score = evaluate(step, config["width"], config["height"], config["activation"])
        train.report({"iterations": step, "mean_loss": score})


search_space = {
    "steps": 5,
    "width": tune.uniform(0, 20),
    "height": tune.uniform(-100, 100),
    "activation": tune.choice(["relu", "tanh"]),
}
algo = OptunaSearch(points_to_evaluate=[{"width": 10, "height": -100, "activation": "tanh", "steps": 5}], seed=3)
algo = ConcurrencyLimiter(algo, max_concurrent=2)
tuner = tune.Tuner(
    objective,
    tune_config=tune.TuneConfig(metric="mean_loss", mode="min", search_alg=algo, num_samples=6),
    param_space=search_space,
)
results = tuner.fit()
best = results.get_best_result()
print("Best hyperparameters found were:", best.config)
assert len(results) == 6
assert best.config["height"] == -100


def define_by_run_func(trial) -> Optional[Dict[str, Any]]:
    activation = trial.suggest_categorical("activation", ["relu", "tanh"])
    if activation == "relu":
        trial.suggest_float("width", 0, 20)
        trial.suggest_float("height", -100, 100)
    else:
        trial.suggest_float("width", -1, 21)
        trial.suggest_float("height", -101, 101)
    return {"steps": 3}


searcher = OptunaSearch(space=define_by_run_func, metric="mean_loss", mode="min")
tuner = tune.Tuner(objective, tune_config=tune.TuneConfig(search_alg=searcher, num_samples=3))
conditional = tuner.fit()
assert all(result.config["steps"] == 3 for result in conditional)


def multi_objective(config):
    train.report({"loss": (config["a"] - 1) ** 2, "gain": config["a"]})


searcher = OptunaSearch(metric=["loss", "gain"], mode=["min", "max"])
tuner = tune.Tuner(
    multi_objective,
    tune_config=tune.TuneConfig(search_alg=searcher, num_samples=4),
    param_space={"a": tune.uniform(0, 2)},
)
results = tuner.fit()
print("trials:", len(results), "gains:", results.get_best_result("gain", "max").metrics["gain"] <= 2)
