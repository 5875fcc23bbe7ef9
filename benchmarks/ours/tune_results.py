"""paceline's rate of results from trials that report as fast as they can. Arguments: trials at once, reports of each.

The figure is the time of a whole fit minus that of a fit with one report per trial in the same driver. It counts only
if every row arrived: in the dataframe, in result.json and in progress.csv of its trial.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import workload
from paceline import tune
from paceline.air.result import Result


def train_reports(config: dict[str, Any]) -> None:
    for step in range(config["reports"]):
        tune.report({"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 0.01, "samples": step * 64})


def is_complete(result: Result, reports: int) -> bool:
    frame = result.metrics_dataframe
    logged = [len((Path(result.path) / name).read_text().splitlines()) for name in ("result.json", "progress.csv")]
    return frame["step"].tolist() == list(range(reports)) and logged == [reports, reports + 1]


def main(trials: int, reports: int) -> None:
    trainable = tune.with_resources(train_reports, {"cpu": 0.1})  # so that all run at once on any machine
    seconds = []
    for count in (1, 1, reports):  # the first fit also warms the driver up and does not count
        tune_config = tune.TuneConfig(num_samples=trials, metric="loss", mode="min")
        tuner = tune.Tuner(trainable, param_space={"reports": count}, tune_config=tune_config)
        started = time.perf_counter()
        results = tuner.fit()
        seconds.append(time.perf_counter() - started)
    rate = trials * (reports - 1) / (seconds[2] - seconds[1])
    complete = len(results) == trials and all(is_complete(result, reports) for result in results)
    workload.write_out({"rate": rate, "complete": complete})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
