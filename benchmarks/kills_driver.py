"""The driver that the kill campaign kills: ``python -m benchmarks.kills_driver settings.json``.

It starts its run, search or dataset run, or continues what an earlier driver of the same experiment left behind.
Its train functions leave word of everything they did, so that the judge can compare it with the files.
"""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.air import Checkpoint, CheckpointConfig, DatasetConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.testing.processes import Marks, Process, process
from paceline.train import DataParallelTrainer

STACKS_SIGNAL = signal.SIGRTMIN + 3
"""Makes a driver that hangs write where to `stacks.txt`."""
EXPERIMENT = "kills"
ROWS, TRIALS, TRIAL_ROWS, DATASET_ROWS, EPOCHS, BATCH = 8, 4, 4, 48, 2, 8
PAYLOAD = 1000
LARGE = 70_000
"""Characters in a large row: more than is read from a socket at once."""


@dataclass(frozen=True)
class Settings:
    """One experiment."""

    place: str
    """Its directory: marks, storage, temporary files, logs."""
    workload: str
    """run, search or data"""
    workers: int = 2
    acknowledged: bool = False
    """A stopper may decide after each row, so report() returns only when the row is written down."""
    large: bool = False
    """Rows are larger than what is read from a socket at once."""
    strays: bool = False
    """Train functions start processes that outlive a careless parent."""
    checkpoints: dict[str, Any] | None = None
    """Arguments of CheckpointConfig."""
    dataset: str = ""
    """Directory of Parquet files, for the workload data."""

    def save(self) -> Path:
        path = Path(self.place) / "settings.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        return cls(**json.loads(Path(path).read_text()))

    @property
    def marks(self) -> Marks:
        return Marks(Path(self.place) / "marks")

    @property
    def storage(self) -> Path:
        return Path(self.place) / "storage"

    @property
    def experiment(self) -> Path:
        return self.storage / EXPERIMENT


def run_config(settings: Settings) -> RunConfig:
    return RunConfig(
        name=EXPERIMENT,
        storage_path=str(settings.storage),
        stop={"training_iteration": 1_000_000} if settings.acknowledged else None,
        checkpoint_config=CheckpointConfig(**(settings.checkpoints or {})),
        failure_config=FailureConfig(max_failures=5),
        verbose=0,
    )


# -- in the workers -----------------------------------------------------------------------


class Diary:
    """What a train function records about itself. `life` is in its rows too, which makes every report unique."""

    def __init__(self, settings: Settings, after: int) -> None:
        self._settings = settings
        self._marks = settings.marks
        self._life = secrets.token_hex(6)
        self._facts = {"life": self._life, "rank": session.get_world_rank(), "trial": session.get_trial_id()}
        self._marks.say("started", pid=os.getpid(), after=after, **self._facts)
        if settings.strays:
            for kind, pid in start_strays():
                born = process(pid)
                self._marks.say("stray", kind=kind, pid=pid, start=born.start if born else None)

    def report(
        self, number: int, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, reduce: Any = None
    ) -> Any:
        row = {"iteration": number, "life": self._life, **metrics}
        if self._settings.large:
            row["text"] = "x" * LARGE
        answer = session.report(row, checkpoint=checkpoint, reduce=reduce)
        in_background = bool((self._settings.checkpoints or {}).get("async_save"))
        saved = checkpoint is not None and not in_background
        self._marks.say("reported", iteration=number, saved=saved, **self._facts)
        return answer

    def returning(self) -> None:
        self._marks.say("returning", **self._facts)


def start_strays() -> Iterator[tuple[str, int]]:
    """A child, a child that is another program in another session, and a daemon that has no parent."""
    if (child := os.fork()) == 0:
        _stay()
    yield "child", child
    program = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
    yield "program", program.pid
    read, write = os.pipe()
    if (middle := os.fork()) == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            _stay()
        os.write(write, str(daemon).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    yield "daemon", int(os.read(read, 20))
    os.close(read)
    os.close(write)


def _stay() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(600)


# Not those of paceline.testing.scripts: a worker would import trainers for them, which takes longer than its training.


def write_state(directory: Path, number: int) -> None:
    """Two files that belong together."""
    (directory / "number.txt").write_text(str(number))
    (directory / "weights.bin").write_bytes(bytes([number]) * PAYLOAD)


def read_state(directory: Path) -> int:
    """The row a checkpoint was saved at; fails if its files are not of the same one."""
    number = int((directory / "number.txt").read_text())
    assert (directory / "weights.bin").read_bytes() == bytes([number]) * PAYLOAD, "torn or mixed checkpoint"
    return number


def saved_number(checkpoint: Checkpoint | None) -> int:
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        return read_state(Path(directory))


def count(config: dict[str, Any]) -> None:
    """Count up to `rows`; every second row has a checkpoint."""
    settings = Settings(**config["settings"])
    start = saved_number(session.get_checkpoint())
    diary = Diary(settings, start)
    for number in range(start + 1, config["rows"] + 1):
        if number % 2:
            # Ranks wait for each other once, or a late one would find a checkpoint of this very attempt to resume from.
            diary.report(number, {"score": number}, reduce={"score": "max"} if number == start + 1 else None)
            continue
        with tempfile.TemporaryDirectory(dir=settings.place) as directory:
            write_state(Path(directory), number)
            diary.report(number, {"score": number}, Checkpoint.from_directory(directory))
    diary.returning()


def read_rows(config: dict[str, Any]) -> None:
    """Read a shard for some epochs; each report contains the ids of a batch. Shares may be unequal: ranks keep step."""
    settings = Settings(**config["settings"])
    newest = session.get_checkpoint()
    number = newest.to_dict()["step"] if newest else 0
    diary = Diary(settings, number)
    shard = session.get_dataset_shard("train")
    while shard.epoch < EPOCHS:
        epoch, batches, more = shard.epoch, iter(shard.iter_batches(batch_size=BATCH)), True
        while more:
            number += 1
            batch = next(batches, None)
            ids = [] if batch is None else batch["id"].tolist()
            checkpoint = None if number % 2 else Checkpoint.from_dict({"step": number})
            row = {"epoch": epoch, "ids": ids, "rows": len(ids)}
            more = bool(diary.report(number, row, checkpoint, reduce={"rows": "max"})["rows"])
    diary.returning()


# -- in the driver ------------------------------------------------------------------------


def fit_run(settings: Settings) -> dict[str, Any]:
    data = settings.workload == "data"
    datasets = dataset_of(settings) if data else None
    function = read_rows if data else count
    config = {"settings": asdict(settings), "rows": ROWS}
    earlier = [path for path in settings.experiment.glob("*/") if DataParallelTrainer.can_restore(path)]
    assert len(earlier) <= 1, f"one experiment made several runs: {earlier}"
    if earlier:
        trainer = DataParallelTrainer.restore(
            earlier[0], train_loop_per_worker=function, train_loop_config=config, datasets=datasets
        )
    else:
        trainer = DataParallelTrainer(
            function,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=settings.workers),
            run_config=run_config(settings),
            datasets=datasets,
            dataset_config={"train": DatasetConfig(split=True, uneven="all", seed=5)} if data else None,
        )
    tell("fit")
    result = trainer.fit()
    assert result.checkpoint is not None
    saved = result.checkpoint.to_dict()["step"] if data else saved_number(result.checkpoint)
    rows = (result.metrics or {}).get("training_iteration")
    return {"path": result.path, "restored": bool(earlier), "attempts": result.attempts, "rows": rows, "saved": saved}


def dataset_of(settings: Settings) -> dict[str, Any]:
    import paceline.data

    return {"train": paceline.data.read_parquet(settings.dataset)}


def fit_search(settings: Settings) -> dict[str, Any]:
    from paceline import tune
    from paceline.tune.search import BasicVariantGenerator

    restored = tune.Tuner.can_restore(settings.experiment)
    if restored:
        tuner = tune.Tuner.restore(settings.experiment, count)
    else:
        tuner = tune.Tuner(
            count,
            param_space={"x": tune.uniform(0, 10), "settings": asdict(settings), "rows": TRIAL_ROWS},
            tune_config=tune.TuneConfig(
                num_samples=TRIALS,
                metric="score",
                mode="max",
                max_concurrent_trials=2,
                search_alg=BasicVariantGenerator(random_state=7),
            ),
            run_config=run_config(settings),
        )
    tell("fit")
    grid = tuner.fit()
    statuses = [outcome.status for outcome in grid.outcomes]
    rows = [outcome.metrics.get("training_iteration") for outcome in grid.outcomes]
    errors = [str(error) for error in grid.errors]
    return {"path": grid.experiment_path, "restored": restored, "statuses": statuses, "rows": rows, "errors": errors}


def remaining_strays(settings: Settings) -> list[str]:
    """What train functions started and what is alive a second after fit(), while the driver lives on."""
    started = [mark for mark in settings.marks.read("stray") if mark["start"] is not None]
    deadline = time.monotonic() + 1
    while alive := [mark for mark in started if Process(mark["pid"], mark["start"]).alive]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return [f"{mark['pid']} ({mark['kind']})" for mark in alive]


def tell(moment: str) -> None:
    """Let the campaign know where this driver is; it may be killed from then on."""
    if (descriptor := os.environ.get("KILLS_PIPE")) is not None:
        os.write(int(descriptor), f"{moment}\n".encode())


def main(path: str) -> None:
    settings = Settings.load(path)
    place = Path(settings.place)
    with (place / "stacks.txt").open("a") as stacks:
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        tell("begin")
        outcome = fit_search(settings) if settings.workload == "search" else fit_run(settings)
        outcome["strays"] = remaining_strays(settings)
        (place / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1])
