"""Writes what the viewers are shown, as paceline's drivers would have: a search and a long run, with event files for
TensorBoard. Arguments: the directory, how many trials, how many rows.

One small search and one small run are real. Their records are the templates of all others, which are written by the
library's own structs and journal, so that nobody has to train for an hour.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import view_workload as data
from benchmarks import workload
from paceline import train, tune
from paceline.air import RunConfig, ScalingConfig
from paceline.run import records as runs
from paceline.run.tensorboard import ScalarEncoder, version_record
from paceline.storage.files import SharedSync
from paceline.storage.journal import Journal
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir
from paceline.train import DataParallelTrainer
from paceline.tune.experiment import records as searches

T = TypeVar("T")


def report_once(config: dict[str, Any]) -> None:
    train.report(dict.fromkeys(data.METRICS, 0.5))


def first(records: Sequence[Any], kind: type[T]) -> T:
    return next(record for record in records if isinstance(record, kind))


def write_run(
    place: Path,
    template: Sequence[runs.Record],
    identity: dict[str, Any],
    began: float,
    values: NDArray[np.float64],
    syncs: SharedSync,
) -> dict[str, Any]:
    """The directory of one run; returns the metrics of its last row."""
    (place / "logs").mkdir(parents=True)
    run_dir = RunDir(place)
    journal = Journal(run_dir.journal, syncs)
    header, attempt, end = (
        first(template, runs.Header), first(template, runs.AttemptStarted), first(template, runs.Ended),
    )  # fmt: skip
    config = identity.pop("config")
    settings = {**header.settings, "config": config}
    journal.append(msgspec.structs.replace(header, **identity, settings=settings, time=began))
    journal.append(msgspec.structs.replace(attempt, time=began))
    encoder, events = ScalarEncoder(prefix="paceline/"), [version_record(began)]
    metrics: dict[str, Any] = {}
    for index, row in enumerate(values.tolist(), 1):
        metrics = dict(zip(data.METRICS, row, strict=True))
        elapsed = index * data.SECONDS_PER_ROW
        journal.append(
            runs.Row(attempt=0, index=index, rank=0, stamp=began + elapsed, elapsed=elapsed, metrics=metrics)
        )
        events.append(encoder.record(began + elapsed, index, data.METRICS, row))
    over = began + len(values) * data.SECONDS_PER_ROW
    assert isinstance(end.reached, runs.Reached)
    reached = msgspec.structs.replace(
        end.reached, iteration=len(values), time_total_s=over - began, metrics=metrics, best={}
    )
    journal.append(msgspec.structs.replace(end, time=over, reached=reached))
    journal.close()
    run_dir.lock.touch()
    run_dir.params.write_text(json.dumps(config))
    (place / "logs" / "rank_0.log").write_text("".join(f"step {n}: all is well\n" for n in range(20)))
    (place / f"events.out.tfevents.{int(began)}.host.1.000000").write_bytes(b"".join(events))
    return metrics


def write_search(root: Path, trials: int, syncs: SharedSync) -> None:
    """A finished search; its first trial, a real one, is the template."""
    space = {"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0.0, 1.0), "layers": tune.choice([1, 2, 4, 8])}
    results = tune.Tuner(
        report_once,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=1, metric="loss", mode="min"),
        run_config=RunConfig(name=data.SEARCH, storage_path=str(root), verbose=0),
    ).fit()
    place = Path(results.experiment_path)
    (file,) = place.glob(SEARCH_JOURNALS)
    template = list(searches.FORMAT.read(file))
    start, created = first(template, searches.SearchStarted), first(template, searches.TrialCreated)
    ended, left = first(template, searches.TrialEnded), first(template, searches.SearchLeft)
    run_template = list(runs.FORMAT.read(RunDir(place / created.dir).journal))
    shutil.rmtree(place / created.dir)
    short_id = created.id.partition("_")[0]
    file.unlink()
    journal = Journal(file, syncs)
    journal.append(msgspec.structs.replace(start, num_samples=trials, time=data.BEGAN))
    for number in range(trials):
        trial = data.trial(number)
        trial_id = f"{short_id}_{number:05d}"
        folder = f"report_once_{trial_id}"
        tag = f"{number}_" + ",".join(f"{key}={value:.4g}" for key, value in trial.params.items())
        journal.append(
            msgspec.structs.replace(
                created, n=number, id=trial_id, dir=folder, tag=tag, config=trial.params, evaluated=trial.params,
                time=trial.began,
            )
        )  # fmt: skip
        identity = {"trial_id": trial_id, "experiment_tag": tag, "config": trial.params}
        metrics = write_run(place / folder, run_template, identity, trial.began, trial.values, syncs)
        filled = {**ended.metrics, **metrics, "trial_id": trial_id, "training_iteration": len(trial.values)}
        over = trial.began + len(trial.values) * data.SECONDS_PER_ROW
        journal.append(msgspec.structs.replace(ended, n=number, metrics=filled, time=over))
    journal.append(msgspec.structs.replace(left, time=over))
    journal.close()


def write_long_run(root: Path, rows: int, syncs: SharedSync) -> None:
    run_config = RunConfig(name=data.LONG_RUN, storage_path=str(root), engine="inline", verbose=0)
    place = Path(
        DataParallelTrainer(report_once, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit().path
    )
    template = list(runs.FORMAT.read(RunDir(place).journal))
    shutil.rmtree(place)
    write_run(place, template, {"config": {}}, data.BEGAN + 3600, data.long_run(rows), syncs)


def main(root: Path, trials: int, rows: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        syncs = SharedSync()
        if trials:
            write_search(root, trials, syncs)
        if rows:
            write_long_run(root, rows, syncs)
        syncs.close()
    workload.write_out({"bytes": sum(file.stat().st_size for file in root.rglob("*") if file.is_file())})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
