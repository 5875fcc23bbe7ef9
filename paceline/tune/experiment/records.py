"""The experiment's journal: what is appended when, and nothing is ever rewritten.

Kinds of records, `n` being the number of the trial:
- experiment: the first; everything plain that a restore needs
- trial: a trial was created, with its configuration and directory
- row: a row that the scheduler, the searcher or the stopper saw, and the decision if it was not to go on
- run, restart, stop: what became of a trial between its rows
- end: a trial is over, with its last row
- change, again: what a restore must know of a paused trial and of a failed one
- stall: the scheduler was told that nothing can go on
- searcher, callbacks: states that the user's own objects keep
- restore, finish: a driver took the experiment up again, with these settings, or left it

The state of an experiment is what these records, read in order, make of an empty one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.air.metrics import flattened
from paceline.air.secrets import masked
from paceline.storage.journal import Journal
from paceline.storage.shared_sync import SharedSync
from paceline.tune.experiment.plan import Plan
from paceline.tune.search.space import describe, evaluated_record, path_text, values_in

Record = dict[str, Any]


class ExperimentJournal:
    """Appends to the journal of one experiment. What was flushed survives the death of the driver."""

    def __init__(self, path: Path, shared_sync: SharedSync) -> None:
        self._journal = Journal(path, shared_sync)

    def header(self, facts: Mapping[str, Any]) -> None:
        self._append({"kind": "experiment", "version": 1, **facts, "time": time.time()})
        self._journal.sync()

    def trial_created(self, number: int, facts: Mapping[str, Any]) -> None:
        self._append({"kind": "trial", "n": number, **facts, "time": time.time()})

    def row(self, number: int, index: int, row: Mapping[str, Any], decision: str | None) -> None:
        record: Record = {"kind": "row", "n": number, "i": index, "row": dict(row)}
        if decision is not None:
            record["decision"] = decision
        self._append(record)

    def event(self, kind: str, number: int, **facts: Any) -> None:
        self._append({"kind": kind, "n": number, **facts})

    def trial_ended(
        self, number: int, status: str, metrics: Mapping[str, Any], error: str, judged_by: Mapping[str, Any]
    ) -> None:
        record = {"kind": "end", "n": number, "status": status, "metrics": dict(metrics), "error": error}
        if not judged_by.keys() <= metrics.keys():  # said in an earlier row, or nested
            record["judged_by"] = dict(judged_by)
        self._append({**record, "time": time.time()})

    def searcher_saved(self, number: int, checksum: str | None) -> None:
        self._append({"kind": "searcher", "saved": number, "hash": checksum})

    def callbacks(self, states: list[Any]) -> None:
        self._append({"kind": "callbacks", "states": states})

    def stall(self) -> None:
        self._append({"kind": "stall"})

    def restored(self, facts: Mapping[str, Any]) -> None:
        self._append({"kind": "restore", **facts, "time": time.time()})

    def finished(self, status: str) -> None:
        self._append({"kind": "finish", "status": status, "time": time.time()})

    def flush(self) -> None:
        self._journal.flush()

    def close(self) -> None:
        self._journal.close()

    def _append(self, record: Record) -> None:
        self._journal.append(record, finite=False)


def config_record(plan: Plan, config: Mapping[str, Any] | None) -> Record:
    """The configuration that a trial goes on with, for a record.

    Where an object in it has no plain form, what makes it differ from the search space is written instead.
    """
    written = None if config is None else describe(masked(config))
    if config is None or written is not None:
        return {"config": written}
    chosen: dict[str, Any] = {}
    for path, value in values_in(plan.space, config, plan.found).items():
        name = plan.found.texts.get(path)
        chosen.update(flattened({path_text(path): value}) if name is None else {name: value})
    return {"config": None, "evaluated": evaluated_record(plan.space, chosen, plan.found)}
