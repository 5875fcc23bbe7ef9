"""Runs whose train loop tells which rows it was given, and the proof that each row was given once.

Every report carries the ids that the rank was given since its report before. A row counts if the report that
followed it is in the surviving history: the journal's rows up to the checkpoint that the next attempt, or the next
run, went on from. What was handed out and died with its worker before a report counts for nothing.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.air import Checkpoint, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.result import Result
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer

ROWS = 10_007


def write_parquet(folder: Path, rows: int = ROWS, files: int = 5, row_group_rows: int = 400) -> str:
    """Files of unequal length, their row groups too."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [rows * number**2 // files**2 for number in range(files + 1)]
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        ids = pa.array(range(start, stop), pa.int64())
        table = pa.table({"id": ids, "label": pa.array([f"row {each}" for each in range(start, stop)])})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=row_group_rows)
    return str(folder)


def tell_rows(config: dict[str, Any]) -> None:
    """Read `epochs` epochs; every rank reports until no rank has a row left (shares may be unequal).

    `in_step=False`: nobody waits for anybody, one report per batch; for equal shares.
    """
    newest = session.get_checkpoint()
    teller = _Teller(config, newest.to_dict()["step"] if newest else 0)
    shard = session.get_dataset_shard("train")
    while shard.epoch < config["epochs"] and not teller.at_end:
        epoch, left_out = shard.epoch, shard.rows_left_out()
        batches = iter(shard.iter_batches(**config["batches"]))
        more = True
        while more and not teller.at_end:
            ids = []
            for batch in itertools.islice(batches, 2 if config["in_step"] else 1):
                ids += batch["id"].tolist()
                left_out = shard.rows_left_out()
            if not ids and not config["in_step"]:
                break
            more = teller.report(epoch, ids, left_out)


class _Teller:
    def __init__(self, config: Mapping[str, Any], step: int) -> None:
        self._config = config
        self._rank = session.get_world_rank()
        self._marks = Marks(config["marks"])
        self._step = step

    @property
    def at_end(self) -> bool:
        return self._config["stop_at"] is not None and self._step >= self._config["stop_at"]

    def report(self, epoch: int, ids: list[int], left_out: list[int]) -> bool:
        """Tell what was given; whether any rank was given something."""
        self._step += 1
        self._maybe_die("before")
        row = {"step": self._step, "epoch": epoch, "ids": ids, "rows": len(ids), "left_out": left_out}
        checkpoint = None
        if self._step % self._config["every"] == 0 and (self._rank == 0 or not self._config["rank_0_only"]):
            checkpoint = Checkpoint.from_dict({"step": self._step})
        reduced = session.report(
            row, checkpoint=checkpoint, reduce={"rows": "max"} if self._config["in_step"] else None
        )
        self._maybe_die("after")
        return bool(ids) if reduced is None else bool(reduced["rows"])

    def _maybe_die(self, when: str) -> None:
        """A real SIGKILL, once for each of the kills that were asked for."""
        if when == "before" and self._config.get("stalls", {}).get(socket.gethostname()) == self._step:
            time.sleep(1000)  # until somebody kills the host
        if session.get_world_size() == 1 and self._config.get("dies_alone_at") == self._step:
            os.kill(os.getpid(), signal.SIGKILL)
        for rank, step, moment in self._config["kills"]:
            if (rank, step, moment) == (self._rank, self._step, when) and self._marks.claim(f"kill-{rank}-{step}"):
                os.kill(os.getpid(), signal.SIGKILL)


def told_trainer(
    dataset: Any,
    root: Path,
    *,
    workers: int,
    epochs: int = 2,
    batch_size: int = 64,
    kills: Iterable[tuple[int, int, str]] = (),
    every: int = 3,
    stop_at: int | None = None,
    in_step: bool = True,
    rank_0_only: bool = False,
    batches: Mapping[str, Any] | None = None,
    dataset_config: Any = None,
    resume: Checkpoint | None = None,
    storage: str | None = None,
    **run_config: Any,
) -> DataParallelTrainer:
    """A trainer of `tell_rows`; it may fail as often as there are kills."""
    kills = list(kills)
    return DataParallelTrainer(
        tell_rows,
        train_loop_config={
            "epochs": epochs,
            "batches": {"batch_size": batch_size, **(batches or {})},
            "kills": kills,
            "every": every,
            "stop_at": stop_at,
            "in_step": in_step,
            "rank_0_only": rank_0_only,
            "marks": str(root / "marks"),
        },
        scaling_config=ScalingConfig(num_workers=workers),
        dataset_config=dataset_config,
        run_config=RunConfig(
            storage_path=storage or str(root / "runs"),
            verbose=0,
            failure_config=FailureConfig(max_failures=len(kills)),
            **run_config,
        ),
        datasets={"train": dataset},
        resume_from_checkpoint=resume,
    )


def surviving(*results: Result) -> list[dict[str, Any]]:
    """The rows that count, of a run and of those that went on from its newest checkpoint, in order."""
    rows: list[dict[str, Any]] = []
    for result in results:
        told = result.rank_dataframe.to_dict("records")
        first = min(row["step"] for row in told)
        rows = [row for row in rows if row["step"] < first] + told
    steps = sorted({row["step"] for row in rows})
    assert steps == list(range(1, steps[-1] + 1)), "the steps that survive have gaps"
    return rows


def ids_by_epoch(rows: Iterable[Mapping[str, Any]]) -> dict[int, list[int]]:
    """All that all ranks were given in each epoch."""
    given: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        given[row["epoch"]] += row["ids"]
    return dict(given)


def ids_by_rank(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], list[int]]:
    """What each rank was given in each epoch, in order: by (rank, epoch)."""
    given: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        given[row["rank"], row["epoch"]] += row["ids"]
    return {key: ids for key, ids in given.items() if ids}


def assert_each_row_once(rows: list[dict[str, Any]], expected: Iterable[int], epochs: int = 2) -> None:
    """Every id once in every epoch, but for those that were announced as left out of it."""
    wanted = sorted(expected)
    given = ids_by_epoch(rows)
    assert sorted(given) == list(range(epochs))
    for epoch, ids in given.items():
        left_out: list[int] = next(row["left_out"] for row in reversed(rows) if row["epoch"] == epoch)
        twice = sorted(number for number in set(ids) if ids.count(number) > 1) if len(set(ids)) < len(ids) else []
        assert not twice, f"epoch {epoch}: {len(twice)} rows were given twice, such as {twice[:5]}"
        missing = sorted(set(wanted) - set(ids) - set(left_out))
        assert not missing, f"epoch {epoch}: {len(missing)} rows are missing, such as {missing[:5]}"
        assert sorted([*ids, *left_out]) == wanted, f"epoch {epoch}"
