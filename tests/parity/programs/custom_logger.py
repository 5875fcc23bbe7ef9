"""A logger of one's own, a callback of one's own, a progress reporter and a stopper."""

import os
import tempfile
from typing import Dict, List

from ray import air, tune
from ray.air import session
from ray.tune import Callback, CLIReporter
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
from ray.tune.stopper import CombinedStopper, FunctionStopper, MaximumIterationStopper

LOGS = tempfile.mkdtemp()


class CustomLoggerCallback(LoggerCallback):
    """Custom logger interface"""

    def __init__(self, filename: str = "log.txt"):
        self._trial_files = {}
        self._filename = filename

    def log_trial_start(self, trial: "Trial"):
        trial_logfile = os.path.join(trial.logdir, self._filename)
        self._trial_files[trial] = open(trial_logfile, "at")

    def log_trial_result(self, iteration: int, trial: "Trial", result: Dict):
        if trial in self._trial_files:
            self._trial_files[trial].write(f"{iteration}: {result['score']}\n")

    def on_trial_complete(self, iteration: int, trials: List["Trial"], trial: "Trial", **info):
        if trial in self._trial_files:
            self._trial_files[trial].close()
            del self._trial_files[trial]


class Counter(Callback):
    def __init__(self):
        self.results = []
        self.completed = 0

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        print("samples:", total_num_samples)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results.append((trial.trial_id, result["training_iteration"], trial.config["width"]))

    def on_trial_complete(self, iteration, trials, trial, **info):
        assert trial.status in (Trial.TERMINATED, Trial.RUNNING)
        self.completed += 1

    def on_experiment_end(self, trials, **info):
        print("ended with", len(trials), "trials,", trials[0].last_result["score"])


def objective(config):
    for step in range(100):
        session.report({"score": config["width"] * (step + 1), "iterations": step})


counter = Counter()
reporter = CLIReporter(metric_columns=["score", "training_iteration"], max_report_frequency=1)
reporter.add_metric_column("iterations")
stopper = CombinedStopper(
    MaximumIterationStopper(max_iter=5), FunctionStopper(lambda trial_id, result: result["score"] > 14)
)
tuner = tune.Tuner(
    objective,
    tune_config=tune.TuneConfig(
        metric="score", mode="max", trial_name_creator=lambda trial: f"w_{trial.config['width']}"
    ),
    run_config=air.RunConfig(
        name="custom",
        stop=stopper,
        progress_reporter=reporter,
        callbacks=[CustomLoggerCallback("log_test.txt"), counter, JsonLoggerCallback(), CSVLoggerCallback()],
    ),
    param_space={"width": tune.grid_search([1, 5])},
)
results = tuner.fit()
assert counter.completed == 2
for result in results:
    with open(os.path.join(result.log_dir, "log_test.txt")) as f:
        lines = f.read().splitlines()
    assert len(lines) == result.metrics["training_iteration"], lines
    assert {"result.json", "progress.csv", "params.json"} <= set(os.listdir(result.log_dir))
print("iterations:", sorted(r.metrics["training_iteration"] for r in results), len(counter.results))
