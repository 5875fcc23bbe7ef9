"""Everything that a run's records say about it, rows left out: what a page or a command shows of one run."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from paceline.air.config import CheckpointConfig
from paceline.air.metrics import number_in, reported
from paceline.air.secrets import without_credentials
from paceline.air.validation import with_validation
from paceline.run.found_runs import (
    RunSummary,
    fetched_run,
    is_run,
    line_for,
    place_of,
    search_line,
    search_of,
    summary_of_records,
    summary_of_run_dir,
)
from paceline.run.history import lost_checkpoints
from paceline.run.records import (
    FORMAT,
    ROW,
    AttemptFailed,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointRetired,
    Ended,
    RanksUsed,
    Record,
    RunRecords,
    Validated,
    ValidationFailed,
    ValidationRequested,
    no_journal,
)
from paceline.run.retention import score_of, validations
from paceline.storage import lease
from paceline.storage.files import storage_error
from paceline.storage.mirror import numbers_in
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.view.last_report import LastReport, last_report


class CheckpointFacts(Struct, kw_only=True):
    """A checkpoint that a run has, or had."""

    number: int
    iteration: int
    attempt: int
    score: float | None
    """What it is ranked by; None without a score attribute, or if the row did not have it."""
    size: int
    """Bytes; 0 if that is not known."""
    kept: bool
    """It is still there."""
    time: float
    """When it was committed, in seconds since the epoch; 0.0 if that is not known."""
    metrics: dict[str, Any]
    """What was reported with it."""
    damaged: bool = False
    missing: bool = False
    """The run did not delete it, but it is not there, or has no manifest."""
    path: str = ""
    """Its directory or URI; empty if it is gone."""


class RankMemory(Struct, kw_only=True):
    """The resident memory of one rank in the last attempt that used it, in bytes."""

    rank: int
    start: int
    """0 if that is not known: earlier versions did not write it."""
    peak: int
    last: int
    """When it was last measured."""


class ValidationFacts(Struct, kw_only=True):
    """The validation of a checkpoint."""

    number: int
    """Of the checkpoint."""
    iteration: int
    attempt: int
    state: Literal["pending", "done", "failed"]
    asked: float
    """When it was requested, in seconds since the epoch."""
    ended: float | None = None
    duration_s: float | None = None
    metrics: dict[str, Any] = {}
    error: str = ""


class RunFacts(Struct, kw_only=True):
    """What the records of a run say."""

    summary: RunSummary
    config: dict[str, Any] | None
    """The one that the run was last started with; None if it is not plain data. Secrets are masked."""
    settings: dict[str, Any]
    """run_config, scaling_config, datasets and what else the run was started with."""
    experiment_id: str
    experiment_tag: str
    attempts: list[AttemptStarted]
    failures: list[AttemptFailed]
    last_report: LastReport | None
    """Of the rank that caused the last failure: the metrics of the summary are those of rank 0."""
    ends: list[Ended]
    """One for each driver that ended the run, or left it."""
    checkpoints: list[CheckpointFacts]
    """Oldest first; also those that are gone."""
    validations: list[ValidationFacts]
    """In the order in which they were requested. Those whose checkpoint is gone without a result are left out."""
    score_attribute: str | None
    score_order: str
    how_to_continue: str
    """The call that continues the run, or the search that it is a trial of; empty if it is finished or alive."""
    search: str | None
    """The place of the search that it is a trial of."""
    origin: str
    """The URI of a run of which this is the local copy."""
    warnings: list[str]
    memory: list[RankMemory]
    """Of each rank; empty for attempts of a few seconds."""
    code: dict[str, Any] | None
    """The fingerprint of the code that the run was last started with."""


def users_config(facts: RunFacts) -> dict[str, Any] | None:
    """What the user has given: the configuration of the train function, where there is nothing else."""
    inner = facts.config.get("train_loop_config") if facts.config else None
    return inner if isinstance(inner, dict) and facts.config is not None and len(facts.config) == 1 else facts.config


def run_facts(path: str | Path, filesystem: Any = None) -> RunFacts:
    """The facts of the run whose directory is at a path, or at a URI."""
    place = resolve_storage(path)
    if isinstance(place, Path):
        run_dir = RunDir(place)
        records, summary = _records(run_dir), summary_of_run_dir(run_dir)
        present = {number: str(directory) for number, directory in run_dir.checkpoints()}
        facts = _facts(
            records, run_dir.journal, summary, present, place_of(run_dir), _search(records, str(place), None)
        )
        facts.warnings += lost_checkpoints(run_dir, records, dict.fromkeys(present))
        return facts
    with fetched_run(place, filesystem) as (store, run_dir):
        records = RunRecords(list(FORMAT.scan(run_dir.journal, without=ROW)), run_dir.journal)
        summary = summary_of_records(run_dir, store.label, lease.is_held(store))
        present = {number: f"{place}/{run_dir.checkpoint(number).name}" for number in numbers_in(store.list())}
        return _facts(records, run_dir.journal, summary, present, store.label, _search(records, place, filesystem))


def _records(run_dir: RunDir) -> RunRecords:
    """All but the rows, which are many; RunRecords.read would check each of them for damage."""
    try:
        return RunRecords(_kept_records.of(run_dir.journal), run_dir.journal)
    except FileNotFoundError:
        raise no_journal(run_dir) from None
    except OSError as error:
        raise storage_error(error, run_dir.journal, "reading the journal") from error


class _Records(Struct):
    inode: tuple[int, int]
    offset: int
    found: list[Record]


class _KeptRecords:
    """The records of the journals that were looked at last: whoever looks again reads only what was added."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, _Records] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, journal: Path) -> list[Record]:
        found = os.stat(journal)
        inode = (found.st_dev, found.st_ino)
        with self._lock:
            kept = self._kept.get(journal)
        if kept is None or kept.inode != inode or found.st_size < kept.offset:
            kept = _Records(inode, 0, [])
        records, offset = FORMAT.scan_on(journal, kept.offset, without=ROW)
        kept = _Records(inode, offset, [*kept.found, *records])  # a new one: another thread may read the other
        with self._lock:
            self._kept[journal] = kept
            self._kept.move_to_end(journal)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return kept.found


_MOST_KEPT = 32
_kept_records = _KeptRecords()


def _search(records: RunRecords, opened: str, filesystem: Any) -> str | None:
    """The place of the search that a trial belongs to, as it may be shown. It is found with the run's credentials."""
    search = None if is_run(records.header) else search_of(opened, records.header, filesystem)
    return None if search is None else without_credentials(search)


def _facts(
    records: RunRecords, journal: Path, summary: RunSummary, present: Mapping[int, str], place: str, search: str | None
) -> RunFacts:
    header, config = records.header, records.header.checkpoint_config
    # Late warnings and `gc` repeat an end with its time: the last one counts.
    ends = list({record.time: record for record in records if isinstance(record, Ended)}.values())
    failures = [record for record in records if isinstance(record, AttemptFailed)]
    return RunFacts(
        summary=summary,
        config=records.config,
        settings=records.settings,
        experiment_id=header.experiment_id,
        experiment_tag=header.experiment_tag,
        attempts=[record for record in records if isinstance(record, AttemptStarted)],
        failures=failures,
        last_report=last_report(journal, failures[-1]) if failures else None,
        ends=ends,
        checkpoints=list(_checkpoints(records, present, config)),
        validations=list(_validations(records, present)),
        score_attribute=config.checkpoint_score_attribute,
        score_order=config.checkpoint_score_order,
        how_to_continue=_how_to_continue(records, summary, place, search),
        search=search,
        origin=place if place != summary.path else "",
        warnings=list(ends[-1].warnings) if ends else [],
        memory=_memory(records),
        code=records.code,
    )


def _memory(records: RunRecords) -> list[RankMemory]:
    ranks: dict[int, RankMemory] = {}
    attempt = -1
    for record in records:
        if isinstance(record, RanksUsed):
            if record.attempt != attempt:
                attempt = record.attempt
                ranks.clear()
            for use in record.ranks:
                before = ranks.get(use.rank)
                peak = max(use.peak, use.memory, before.peak if before is not None else 0)
                ranks[use.rank] = RankMemory(rank=use.rank, start=use.start, peak=peak, last=use.memory)
    return [memory for _, memory in sorted(ranks.items())]


def _how_to_continue(records: RunRecords, summary: RunSummary, place: str, search: str | None) -> str:
    if summary.alive or summary.status == "finished":
        return ""
    if search is not None:
        return search_line(search)
    return line_for(records.header, place) if is_run(records.header) else ""


def _checkpoints(
    records: RunRecords, present: Mapping[int, str], config: CheckpointConfig
) -> Iterator[CheckpointFacts]:
    """A number may be used again after a failure: then only the last one of that number is there."""
    validated = validations(records)
    last: dict[int, CheckpointCommitted] = {}
    retired: dict[int, CheckpointRetired] = {}
    for record in records:
        if isinstance(record, CheckpointCommitted):
            last[record.number] = record
            retired.pop(record.number, None)
        elif isinstance(record, CheckpointRetired):
            retired[record.number] = record
    for number, record in sorted(last.items()):
        gone = retired.get(number)
        is_kept = gone is None and number in present
        metrics = validated.get((record.attempt, record.iteration))
        row = record.row if metrics is None else with_validation(record.row, metrics)
        yield CheckpointFacts(
            number=number,
            iteration=record.iteration,
            attempt=record.attempt,
            score=score_of(config, row, record.score),
            size=record.size,
            kept=is_kept,
            time=record.time or float(number_in(record.row, "timestamp")),
            metrics=reported(row),
            damaged=gone is not None and gone.reason is not None,
            missing=gone is None and not is_kept,
            path=present[number] if is_kept else "",
        )


def _validations(records: RunRecords, present: Mapping[int, str]) -> Iterator[ValidationFacts]:
    found: dict[tuple[int, int], ValidationFacts] = {}
    for record in records:
        if isinstance(record, ValidationRequested):
            found[record.attempt, record.index] = ValidationFacts(
                number=record.number,
                iteration=record.index,
                attempt=record.attempt,
                state="pending",
                asked=record.time,
            )
        elif isinstance(record, Validated | ValidationFailed) and (record.attempt, record.index) in found:
            facts = found[record.attempt, record.index]
            facts.ended = record.time
            if isinstance(record, Validated):
                facts.state, facts.metrics, facts.duration_s = "done", record.metrics, record.duration_s
            else:
                facts.state, facts.error = "failed", record.in_words
    yield from (facts for facts in found.values() if facts.state != "pending" or facts.number in present)
