"""The rows of a run: what each of them holds, those that survive in its journal, and the Result of a directory."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import tempfile
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import UnsetType

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import CheckpointError, RestoreError, StorageError, TrainingFailedError
from paceline.air.manifest import read_manifest
from paceline.air.metrics import reported
from paceline.air.result import Result
from paceline.air.validation import with_validation
from paceline.air.words import moment_text
from paceline.run.found_runs import find_remote_runs, find_run_dirs, is_run, line_for
from paceline.run.records import FORMAT, ROW, AttemptStarted, Header, Row, RunRecords, Validated, identity_of
from paceline.run.retention import KeptCheckpoint, best, listed_numbers, still_kept
from paceline.run.side_files import checkpoint_at
from paceline.run.spec import TrialIdentity
from paceline.run.timing import NOT_MEASURED
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import MANIFEST_NAME, RunDir, resolve_storage

_UNKNOWN_ATTEMPT = AttemptStarted(attempt=0)
"""Of rows that were taken from their checkpoints, because the journal lost what came before them."""


class JournalHistory:
    """The rows of a run. Nothing is kept in memory: every call reads the journal."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rank 0's rows that survive, completed as they were shown."""
        return self.rows_from(0)

    def rows_from(self, start: int) -> Iterator[dict[str, Any]]:
        """The surviving rows after report `start`."""
        for index, row in surviving_rows(self._path):  # self stays referenced: a fetched journal goes with it
            if index > start:
                yield row

    def last_row(self) -> dict[str, Any] | None:
        return next(iter(deque(self.rows(), maxlen=1)), None)

    def longest_gap_s(self) -> float:
        """The longest time between two reports of a rank, in any attempt."""
        longest, last = 0.0, dict[tuple[int, int], float]()
        for record in FORMAT.read(self._path):
            if isinstance(record, Row):
                rank = (record.attempt, record.rank)
                longest = max(longest, record.elapsed - last.get(rank, record.elapsed))
                last[rank] = record.elapsed
        return longest

    def last_rank_metrics(self) -> dict[int, dict[str, Any]]:
        """The newest metrics of each rank of the last attempt."""
        by_rank, world_size = self._by_rank()
        return {rank: by_rank[rank][-1].metrics for rank in range(world_size) if by_rank.get(rank)}

    def rank_rows(self) -> list[dict[str, Any]]:
        """Every rank's own metrics, one row per rank and report, and where its time went."""
        rows = [row for rows in self._by_rank()[0].values() for row in rows]
        rows.sort(key=lambda row: (row.index, row.rank))
        return [_rank_row(row) for row in rows]

    def _by_rank(self) -> tuple[dict[int, list[Row]], int]:
        """(the surviving rows of each rank, how many ranks the last attempt had)"""
        surviving: dict[int, list[Row]] = {}
        world_size = 0
        for record in FORMAT.read(self._path):
            if isinstance(record, Row):
                surviving.setdefault(record.rank, []).append(record)
            elif isinstance(record, AttemptStarted):
                world_size = record.world_size
                for rows in surviving.values():
                    while rows and rows[-1].index > record.start_index:
                        rows.pop()
        return surviving, world_size


def _rank_row(row: Row) -> dict[str, Any]:
    """A metric that the user has given the name of a time stays as it is."""
    shown = {"training_iteration": row.index, "rank": row.rank, **row.metrics}
    for name, value in (row.times.per_step() if row.times is not None else NOT_MEASURED).items():
        shown.setdefault(name, value)
    return shown


def surviving_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The index of each report and its row. Rows are not collected: a long run has millions."""
    starts, validated = deque[int](), dict[tuple[int, int], dict[str, Any]]()
    for known in FORMAT.scan(path, without=ROW):
        if isinstance(known, Header | AttemptStarted):
            starts.append(0 if isinstance(known, Header) else known.start_index)
        elif isinstance(known, Validated):  # long after its row
            validated[known.attempt, known.index] = known.metrics
    last_surviving = math.inf
    filler: RowFiller | None = None
    header: Header | None = None
    for record in FORMAT.read(path):
        if isinstance(record, Row):
            if record.rank == 0 and filler is not None and record.index <= last_surviving:
                metrics = record.reduced or record.metrics
                if (record.attempt, record.index) in validated:
                    metrics = with_validation(metrics, validated[record.attempt, record.index])
                yield record.index, filler.fill(record.index, metrics, record.stamp, record.elapsed)
        elif isinstance(record, Header | AttemptStarted):
            if not starts:  # an attempt of a live run, which began after the first look
                return
            starts.popleft()
            last_surviving = min(starts, default=math.inf)  # later attempts repeat what comes after it
            header = record if isinstance(record, Header) else header
            if header is None:
                continue
            attempt = record if isinstance(record, AttemptStarted) else _UNKNOWN_ATTEMPT
            config = header.settings["config"] if isinstance(attempt.config, UnsetType) else attempt.config
            filler = RowFiller(identity_of(header), config or {}, attempt)


def lost_rows(run_dir: RunDir, kept: Sequence[KeptCheckpoint], last_row: int) -> Iterator[Row]:
    """The rows after `last_row` that were reported with a checkpoint.

    A journal that was cut short has lost them; the checkpoints' own manifests contain them too.
    """
    for each in sorted(kept, key=lambda each: each.iteration):
        if each.iteration <= last_row:
            continue
        try:
            facts = read_manifest(run_dir.checkpoint(each.number)).facts
        except CheckpointError:  # only on remote storage, or damaged
            continue
        if "copied_from" not in facts:  # it came without a row
            yield Row(
                attempt=facts["attempt"],
                index=facts["iteration"],
                rank=0,
                stamp=facts["created"],
                elapsed=facts["elapsed"],
                metrics=facts["metrics"],
            )


def missing_rows(journal: Path, indices: Iterable[int], reached: int) -> list[str]:
    """What to tell the user if the journal lacks rows up to `reached`, the iteration of the newest checkpoint."""
    expected, missing = 1, []
    for index in (*indices, reached + 1):
        if index > expected:
            missing.append(f"{expected} to {index - 1}" if index - 1 > expected else f"{expected}")
        expected = max(expected, index + 1)
    if not missing:
        return []
    return [
        f"{journal} lacks the rows of iterations {', '.join(missing)}: it was cut short, although the run has a "
        f"checkpoint of iteration {reached}. The history has a gap; result.json and progress.csv may have these rows."
    ]


def load_result(path: str | Path, filesystem: Any = None) -> Result:
    """The Result of a finished, failed or interrupted run, from its directory or from remote storage.

    `filesystem` is the one the run had as storage_filesystem, where the URI alone does not say enough.
    """
    resolved = resolve_storage(path)
    if isinstance(resolved, str):
        return _load_remote(resolved, filesystem)
    trials = find_run_dirs(resolved)
    if not trials:
        raise _no_run(path)
    run_dir = trials[0]

    warnings: dict[str, None] = {}

    def reference(kept: KeptCheckpoint) -> Checkpoint | None:
        with contextlib.suppress(StorageError):  # the run is going on and has just deleted it
            return checkpoint_at(run_dir.checkpoint(kept.number), warnings.setdefault)
        return None

    result = _result_of(run_dir, str(run_dir.root), dict(run_dir.checkpoints()), reference)
    result.warnings = [*warnings, *result.warnings]
    return result


def _load_remote(uri: str, filesystem: Any) -> Result:
    """The journal is fetched; checkpoints stay where they are until they are used."""
    trials, problems = find_remote_runs(uri, filesystem)
    if not trials:
        raise problems[0] if problems else _no_run(uri)
    trial_uri, _ = trials[0]
    folder = tempfile.mkdtemp(prefix="paceline-result-")
    store = FsspecFilesystem(trial_uri, filesystem)
    mirror = Mirror(store, RunDir(Path(folder)))
    try:
        mirror.pull_state(Path(folder))
        present: dict[int, Path | None] = dict.fromkeys(mirror.checkpoint_numbers())
        result = _result_of(
            mirror.run_dir,
            trial_uri,
            present,
            lambda kept: Checkpoint(f"{trial_uri}/{mirror.run_dir.checkpoint(kept.number).name}", store.given),
        )
        result.filesystem = store.given
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(result._history, shutil.rmtree, folder, ignore_errors=True)
    return result


def _no_run(path: str | Path) -> RestoreError:
    return RestoreError(f"{path} holds no run of paceline: there is no journal.jsonl in it or one level below.")


def _result_of(
    run_dir: RunDir,
    path: str,
    present: Mapping[int, Path | None],
    reference: Callable[[KeptCheckpoint], Checkpoint | None],
) -> Result:
    history = JournalHistory(run_dir.journal)
    records = RunRecords.read(run_dir)
    config = records.header.checkpoint_config
    kept = still_kept(records, present)
    indices, last_row = array("Q"), dict[str, Any]()
    for index, row in surviving_rows(run_dir.journal):
        indices.append(index)
        last_row = row
    warnings = lost_checkpoints(run_dir, records, present)
    if kept:
        warnings += missing_rows(run_dir.journal, indices, kept[-1].iteration)
    status = records.ended_as or "unfinished"
    return Result(
        metrics={**last_row, "done": status != "unfinished"} if last_row else {},
        checkpoint=reference(kept[-1]) if kept else None,
        error=TrainingFailedError(records.last_message) if status == "failed" else None,
        log_dir=run_dir.root,
        path=path,
        best_checkpoints=[(found, dict(each.row)) for each in best(config, kept) if (found := reference(each))],
        rank_metrics=history.last_rank_metrics(),
        attempts=records.attempts,
        status=status,
        warnings=warnings,
        how_to_continue=line_for(records.header, path) if status != "finished" and is_run(records.header) else "",
        _history=history,
    )


def lost_checkpoints(run_dir: RunDir, records: RunRecords, present: Mapping[int, Path | None]) -> list[str]:
    """What to tell the user about checkpoints that the journal lists and that cannot be used.

    That an older one is gone is not worth a word: its user may have wanted the space.
    """
    listed = listed_numbers(records)
    paths = [run_dir.checkpoint(number) for number in sorted(listed - present.keys())]
    return [
        f"{path.name} cannot be used: {'it has no' if path.exists() else 'it is gone, with its'} {MANIFEST_NAME}."
        for path in paths
        if (path.exists() or path == run_dir.checkpoint(max(listed))) and not (path / MANIFEST_NAME).is_file()
    ]


def node_ip() -> str:
    """This machine's address as others see it. Nothing is sent: connecting a datagram socket only picks a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@dataclass
class RowFiller:
    """Completes the rows of one attempt. Everything but the arguments of `fill` is fixed per attempt."""

    identity: TrialIdentity
    config: Mapping[str, Any]
    attempt: AttemptStarted
    _previous_elapsed: float = field(default=0.0, init=False)
    _second: int = field(default=-1, init=False)
    _date: str = field(default="", init=False)

    def first(self) -> dict[str, Any]:
        """What is known of a run before its first report."""
        now, attempt = int(time.time()), self.attempt
        return {
            "trial_id": self.identity.trial_id,
            "experiment_id": self.identity.experiment_id,
            "date": self._date_of(now),
            "timestamp": now,
            "pid": attempt.pid,
            "hostname": attempt.hostname,
            "node_ip": attempt.node_ip,
            "config": self.config,
        }

    def fill(self, index: int, metrics: Mapping[str, Any], stamp: float, elapsed: float) -> dict[str, Any]:
        """The row of report `index`; the user's own keys win over the filled-in ones."""
        attempt, timestamp = self.attempt, int(stamp) if math.isfinite(stamp) else 0  # a file may say anything
        this_iter = elapsed - self._previous_elapsed
        self._previous_elapsed = elapsed
        row: dict[str, Any] = {
            **metrics,
            "_timestamp": timestamp,
            "_time_this_iter_s": this_iter,
            "_training_iteration": index,
            "time_this_iter_s": this_iter,
            "done": False,
            "timesteps_total": None,
            "episodes_total": None,
            "training_iteration": index,
            "trial_id": self.identity.trial_id,
            "experiment_id": self.identity.experiment_id,
            "date": self._date_of(timestamp),
            "timestamp": timestamp,
            "time_total_s": attempt.start_time_s + elapsed,
            "pid": attempt.pid,
            "hostname": attempt.hostname,
            "node_ip": attempt.node_ip,
            "config": self.config,
            "time_since_restore": elapsed,
            "timesteps_since_restore": 0,
            "iterations_since_restore": index - attempt.start_index,
            "warmup_time": attempt.warmup_time,
            "experiment_tag": self.identity.experiment_tag,
        }
        row.update(metrics)
        return row

    def _date_of(self, second: int) -> str:
        # Formatting a date costs more than the rest of the row; most rows share their second.
        if second != self._second:
            self._second = second
            self._date = moment_text(second, "%Y-%m-%d_%H-%M-%S")
        return self._date


def with_metrics_of(donor: Mapping[str, Any], row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The last row of a run that took over another one's state and reported nothing since: what the user reported
    belongs to that state, the rest is the run's own."""
    own = {key: value for key, value in row.items() if key in AUTOFILLED_KEYS}
    return {**reported(donor), **own, "config": dict(config)}
