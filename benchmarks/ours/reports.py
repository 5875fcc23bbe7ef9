"""paceline's report rate, with the default loggers on. Arguments: workers, and how many reports.

The figure is the time of a whole fit minus that of a fit with one report in the same driver. It counts
only if every row arrived: in the dataframe, in result.json and in progress.csv.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import processes, workload
from paceline.train import DataParallelTrainer, ScalingConfig


def train_reports(config: dict[str, Any]) -> None:
    from paceline import train

    for step in range(config["reports"]):
        train.report(
            {"step": step, "loss": 1.0 / (step + 1), "accuracy": 0.5, "at": time.perf_counter(), "samples": step * 64}
        )


class MemoryWatch:
    """Samples this process's resident memory in a thread while a fit runs."""

    def __enter__(self) -> MemoryWatch:
        self.samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.samples.append(processes.resident_mb(os.getpid()))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main(workers: int, reports: int) -> None:
    seconds = []
    for count in (1, 1, reports):  # the first fit also warms the driver up and does not count
        trainer = DataParallelTrainer(
            train_reports, train_loop_config={"reports": count}, scaling_config=ScalingConfig(num_workers=workers)
        )
        with MemoryWatch() as memory:
            started = time.perf_counter()
            result = trainer.fit()
            seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    frame = result.metrics_dataframe
    frame_seconds = time.perf_counter() - started
    logged = [len((Path(result.path) / name).read_text().splitlines()) for name in ("result.json", "progress.csv")]
    tenth = reports // 10
    at = frame["at"].to_numpy()
    workload.write_out(
        {
            "rate": (reports - 1) / (seconds[2] - seconds[1]),
            "complete": frame["step"].tolist() == list(range(reports)) and logged == [reports, reports + 1],
            "frame_seconds": frame_seconds,
            "first_tenth": float(at[tenth] - at[0]) / tenth,
            "last_tenth": float(at[-1] - at[-1 - tenth]) / tenth,
            "memory": memory.samples,
        }
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
