"""What the kill campaign holds an experiment to, whatever was killed in it.

The files and the process table are read independently of the library, and compared with what the train functions
say that they did (`benchmarks/kills_driver.py`).
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kills_driver import DATASET_ROWS, EPOCHS, ROWS, TRIAL_ROWS, TRIALS, Settings, read_state
from paceline.testing.invariants import LEFTOVERS, journal_records, result_file_iterations, verify, whole_records

COLUMNS = ("hangs", "orphans", "torn", "lost", "duplicated", "wrong errors", "leftovers")
"""hangs: fit() or restore() did not return. orphans: a process outlived its run by more than a second. torn: a
checkpoint is incomplete or mixed. lost, duplicated: a row, or a trial. wrong errors: a failure that ought to have been
retried, or files that cannot be judged. leftovers: temporary files in the trial's directory after its end."""


@dataclass(frozen=True)
class Finding:
    """Something that must not happen."""

    column: str
    text: str


@dataclass
class Life:
    """One driver of an experiment, from its start to its end."""

    started_ns: int = 0
    exit: int | None = None
    """None: it had to be ended because it hung."""
    killed: list[str] = field(default_factory=list)
    """What was killed: driver, warden, rank."""
    killed_ranks: list[int] = field(default_factory=list)
    """Process ids."""
    strays: list[str] = field(default_factory=list)
    """Processes that were there a second after the end."""
    ended_trials: list[str] = field(default_factory=list)
    """Trials whose end was recorded before this driver started."""
    stacks: str = ""
    output: str = ""
    seconds: float = 0.0


def judge(settings: Settings, lives: list[Life]) -> list[Finding]:
    """Everything that is wrong with an experiment whose last driver should have finished it."""
    findings = list(judge_lives(lives))
    finished = lives[-1].exit == 0
    findings += judge_checkpoints(settings)
    if finished:
        outcome = json.loads((Path(settings.place) / "outcome.json").read_text())
        findings += judge_outcome(settings, outcome)
    if settings.workload == "search":
        findings += judge_search(settings, lives, finished)
    trials = trial_dirs(settings)
    findings += judge_starts(settings, trials)
    rows = {"run": ROWS, "search": TRIAL_ROWS}.get(settings.workload)
    for trial_dir in trials.values():
        findings += judge_rows(settings, trial_dir, lives, rows, finished)
        if finished:
            left = [str(path) for pattern in LEFTOVERS for path in trial_dir.rglob(pattern)]
            findings += [Finding("leftovers", f"{path} is left") for path in left]
    return findings


def judge_lives(lives: list[Life]) -> Iterator[Finding]:
    for number, life in enumerate(lives):
        name = f"driver {number + 1} of {len(lives)}"
        if life.exit is None:
            yield Finding("hangs", f"{name} did not return within {life.seconds:.0f} s\n{life.stacks}")
        elif life.exit != 0 and "driver" not in life.killed:
            yield Finding("wrong errors", f"{name} ended with {life.exit}: {_last_words(life.output)}")
        yield from (Finding("orphans", f"{name} left {stray}") for stray in life.strays)


def judge_outcome(settings: Settings, outcome: dict[str, Any]) -> Iterator[Finding]:
    """What fit() returned in the last driver."""
    for stray in outcome["strays"]:
        yield Finding("orphans", f"{stray} was alive a second after fit(), in a driver that lived on")
    if settings.workload == "search":
        if outcome["errors"] or set(outcome["statuses"]) != {"finished"}:
            yield Finding("wrong errors", f"trials ended as {outcome['statuses']}: {outcome['errors']}")
        pairs = zip(outcome["rows"], outcome["statuses"], strict=True)
        if any(rows != TRIAL_ROWS for rows, status in pairs if status == "finished"):
            yield Finding("lost", f"the trials' results have {outcome['rows']} rows instead of {TRIAL_ROWS} each")
    elif outcome["saved"] != outcome["rows"] // 2 * 2:  # every second row has one
        yield Finding("lost", f"the result has {outcome['rows']} rows, and the checkpoint of row {outcome['saved']}")


def _last_words(output: str) -> str:
    """The message of the exception first, then the rest."""
    *_, last = output.rpartition("\npaceline.")
    return f"{last}\n{output[-3000:]}"


# -- checkpoints --------------------------------------------------------------------------


def judge_checkpoints(settings: Settings) -> Iterator[Finding]:
    """Every checkpoint that has its final name is whole. This holds at any moment, also right after a kill."""
    for directory in settings.experiment.glob("*/checkpoint_*"):
        if directory.suffix == ".corrupt":
            continue
        if problem := _problem_with(directory, has_state=settings.workload != "data"):
            yield Finding("torn", f"{directory}: {problem}")


def _problem_with(directory: Path, has_state: bool) -> str:
    try:
        verify(directory)
        if has_state:
            read_state(directory)
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- rows ---------------------------------------------------------------------------------


def trial_dirs(settings: Settings) -> dict[str, Path]:
    """Trial id to directory, of the trials that were written down."""
    found = {}
    for journal in settings.experiment.glob("*/journal.jsonl"):
        header = next(journal_records(journal.parent), None)
        if header is not None:
            found[header["trial_id"]] = journal.parent
    return found


def judge_starts(settings: Settings, trials: Iterable[str]) -> Iterator[Finding]:
    """No train function ran for a trial that cannot be found any more, and none forgot an acknowledged checkpoint."""
    known = set(trials)
    saved: dict[tuple[str, int], int] = defaultdict(int)  # by rank, because one may start long after another
    events = [*settings.marks.read("started"), *settings.marks.read("reported", saved=True)]
    for mark in sorted(events, key=lambda mark: int(mark["time"])):
        trial, key = mark["trial"], (mark["trial"], mark["rank"])
        if mark["event"] == "reported":
            saved[key] = max(saved[key], mark["iteration"])
        elif trial not in known:
            yield Finding("lost", f"trial {trial} was running, and nothing is written down of it")
        elif mark["after"] < saved[key]:
            yield Finding("lost", f"{trial} started after row {mark['after']}, but checkpoint {saved[key]} was kept")


def judge_rows(
    settings: Settings, trial_dir: Path, lives: list[Life], rows: int | None, finished: bool
) -> Iterator[Finding]:
    """Acknowledged rows are in the journal once; the history that survived is 1..`rows`."""
    records = list(journal_records(trial_dir))
    written = Counter(
        (record["metrics"]["life"], record["rank"], record["index"]) for record in records if record["kind"] == "row"
    )
    for (_, rank, index), times in written.items():
        if times > 1:
            yield Finding("duplicated", f"{trial_dir}: row {index} of rank {rank} is in the journal {times} times")
    for life, rank, index in _acknowledged(settings, records[0]["trial_id"], lives):
        if (life, rank, index) not in written:
            yield Finding("lost", f"{trial_dir}: report {index} of rank {rank} returned and is not in the journal")
    history, repeated = survivors(records)
    for rank, index in repeated:
        yield Finding("duplicated", f"{trial_dir}: row {index} of rank {rank} is twice in one attempt")
    *_, last = [record for record in records if record["kind"] in ("run", "attempt", "end")]
    if finished and last.get("status") == "finished":
        resumed_after = max(record["start_index"] for record in records if record["kind"] == "attempt")
        yield from _judge_history(settings, trial_dir, history, rows, resumed_after)
    elif finished and settings.workload != "search":  # how its trials ended is judged for all of them
        yield Finding("lost", f"{trial_dir}: the run finished, but the last thing written down is {last}")


def _acknowledged(settings: Settings, trial: str, lives: list[Life]) -> Iterator[tuple[str, int, int]]:
    """The reports that must not be lost: answered ones, and all that a rank sent before it was killed."""
    every = settings.acknowledged or settings.workload == "data"
    pids = {pid for life in lives for pid in life.killed_ranks}
    victims = {mark["life"] for mark in settings.marks.read("started", trial=trial) if mark["pid"] in pids}
    for mark in settings.marks.read("reported", trial=trial):
        if every or mark["saved"] or mark["life"] in victims:
            yield mark["life"], mark["rank"], mark["iteration"]


def survivors(records: Iterable[dict[str, Any]]) -> tuple[dict[tuple[int, int], dict[str, Any]], list[tuple[int, int]]]:
    """The rows that count, by (rank, index): an attempt supersedes what came after its start. And rows seen again."""
    history: dict[tuple[int, int], dict[str, Any]] = {}
    repeated = []
    for record in records:
        if record["kind"] == "attempt":
            history = {key: row for key, row in history.items() if key[1] <= record["start_index"]}
        elif record["kind"] == "row":
            key = record["rank"], record["index"]
            if key in history:
                repeated.append(key)
            history[key] = record
    return history, repeated


def _judge_history(
    settings: Settings,
    trial_dir: Path,
    history: dict[tuple[int, int], dict[str, Any]],
    rows: int | None,
    resumed_after: int,
) -> Iterator[Finding]:
    ranks = 1 if settings.workload == "search" else settings.workers
    last = rows if rows is not None else max((index for _, index in history), default=0)
    for rank in range(ranks):
        # Rank 0's rows decide. A rank that was behind a checkpoint resumes after rows that it never reported;
        # with a dataset the ranks keep step.
        first = 1 if rank == 0 or settings.workload == "data" else resumed_after + 1
        indices = [index for each, index in sorted(history) if each == rank and index >= first]
        if indices != list(range(first, last + 1)):
            yield Finding("lost", f"{trial_dir}: rank {rank} has the rows {indices} instead of {first}..{last}")
    strange = [key for key, row in history.items() if row["metrics"]["iteration"] != key[1]]
    if strange:
        yield Finding("duplicated", f"{trial_dir}: rows and their content are out of step: {strange}")
    for name, read in (("result.json", result_file_iterations), ("progress.csv", _progress_iterations)):
        if (logged := read(trial_dir)) != list(range(1, last + 1)):
            column = "duplicated" if len(set(logged)) < len(logged) else "lost"
            yield Finding(column, f"{trial_dir / name} has the rows {logged} instead of 1..{last}")
    if settings.workload == "data":
        yield from _judge_dataset(trial_dir, history.values())


def _progress_iterations(trial_dir: Path) -> list[int]:
    csv.field_size_limit(sys.maxsize)
    if not (trial_dir / "progress.csv").exists():
        return []
    with (trial_dir / "progress.csv").open(newline="") as file:
        return [int(row["training_iteration"]) for row in csv.DictReader(file)]


def _judge_dataset(trial_dir: Path, rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    """Every row of the dataset was given to exactly one rank in every epoch."""
    given: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        given[row["metrics"]["epoch"]].update(row["metrics"]["ids"])
    for epoch in range(EPOCHS):
        missing = sorted(set(range(DATASET_ROWS)) - set(given[epoch]))
        twice = sorted(each for each, times in given[epoch].items() if times > 1)
        if missing:
            yield Finding("lost", f"{trial_dir}: epoch {epoch} did not give the rows {missing}")
        if twice:
            yield Finding("duplicated", f"{trial_dir}: epoch {epoch} gave the rows {twice} more than once")


# -- searches -----------------------------------------------------------------------------


def judge_search(settings: Settings, lives: list[Life], finished: bool) -> Iterator[Finding]:
    """Each trial was created once, ended once with all its rows, and was not run again after its end."""
    for life in lives:
        again = {
            mark["trial"]
            for mark in settings.marks.read("started")
            if mark["time"] > life.started_ns and mark["trial"] in life.ended_trials
        }
        yield from (Finding("duplicated", f"trial {trial} had ended and ran again") for trial in sorted(again))
    if not finished:
        return
    journals = [records for records in experiment_journals(settings) if records]
    if len(journals) != 1:
        yield Finding("duplicated" if journals else "lost", f"{len(journals)} experiments were made instead of one")
        return
    created = [record for record in journals[0] if record["kind"] == "trial"]
    drawn = Counter(str(record["evaluated"]) for record in created)
    if len(created) != TRIALS or len(drawn) != TRIALS:
        column = "lost" if len(created) < TRIALS else "duplicated"
        yield Finding(column, f"the search made {len(created)} trials of {len(drawn)} configurations, not {TRIALS}")
    ends = Counter(record["n"] for record in journals[0] if record["kind"] == "end")
    if ends != Counter(range(TRIALS)):
        column = "duplicated" if max(ends.values(), default=0) > 1 else "lost"
        yield Finding(column, f"the ends that are written down, by trial: {dict(ends)}")


def experiment_journals(settings: Settings) -> list[list[dict[str, Any]]]:
    """The records of each; a driver that is killed before it has written one leaves an empty journal."""
    return [list(whole_records(path.read_bytes())) for path in settings.experiment.glob("experiment-*.jsonl")]


def trials_that_ended(settings: Settings) -> list[str]:
    """The trials of a search whose end is recorded by now: by the search, or by the trial itself."""
    ended = set()
    for records in experiment_journals(settings):
        ends = {record["n"] for record in records if record["kind"] == "end"}
        for trial in (record for record in records if record["kind"] == "trial"):
            if trial["n"] in ends or _has_ended(settings.experiment / trial["dir"]):
                ended.add(trial["id"])
    return sorted(ended)


def _has_ended(trial_dir: Path) -> bool:
    if not (trial_dir / "journal.jsonl").exists():
        return False
    last = [record for record in journal_records(trial_dir) if record["kind"] in ("attempt", "end")]
    return bool(last) and last[-1].get("status") in ("finished", "failed")
