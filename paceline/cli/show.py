"""``paceline show``: one run or search on one screen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from paceline.air.metrics import nested_get
from paceline.air.secrets import without_credentials
from paceline.air.words import counted, duration_text, printable, size_text
from paceline.cli.ls import MOST_TRIALS_TO_LOOK_AT, failed_trials, progress_text, run_row, search_row, trial_rows
from paceline.cli.output import (
    add_format,
    age_text,
    heading,
    number_text,
    short_size,
    status_cell,
    time_text,
    whole_text,
    write,
    write_csv,
    write_json,
    write_pairs,
    write_table,
)
from paceline.cli.places import add_path, one_at, opened_as, shown_place
from paceline.cli.table import Cell, Column, cell
from paceline.run.found_runs import RunSummary
from paceline.run.root_cause import excerpt
from paceline.trackers.state import TrackerState, states_together, tracker_states
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.catalog import run_facts
from paceline.view.facts import RunFacts, users_config
from paceline.view.flat import flat

DESCRIPTION = """\
Shows how a run or search is doing: its status, the error with the rank that caused it and your own lines of the
traceback, configuration, attempts, the memory of each rank, checkpoints, the last metrics, its files, and how to
continue it. Of an experiment with several runs it shows the newest.
"""

MOST_LINES = 8
"""Of each part, unless everything is asked for."""
TRACEBACK_LINES = 20

CHECKPOINTS = [
    Column("number", "CHECKPOINT", right=True),
    Column("iteration", "ITERATION", right=True),
    Column("score", "SCORE", right=True),
    Column("size", "SIZE", right=True),
    Column("age", "AGE", right=True),
    Column("state", "STATE"),
]
VALIDATIONS = [
    Column("number", "CHECKPOINT", right=True),
    Column("iteration", "ITERATION", right=True),
    Column("state", "STATE"),
    Column("age", "AGE", right=True),
    Column("result", "RESULT", folds=True),
]
ATTEMPTS = [
    Column("attempt", "ATTEMPT", right=True),
    Column("began", "AFTER ITERATION", right=True),
    Column("workers", "WORKERS", right=True),
    Column("host", "HOST", folds=True),
    Column("age", "AGE", right=True),
    Column("failure", "FAILURE", folds=True),
]
MEMORY = [
    Column("rank", "RANK", right=True),
    Column("start", "AT START", right=True),
    Column("peak", "PEAK", right=True),
    Column("last", "LAST", right=True),
]
TRIALS = [
    Column("name", "TRIAL"),
    Column("status", "STATUS"),
    Column("progress", "PROGRESS", right=True),
    Column("last", "LAST", right=True),
    Column("params", "PARAMETERS", folds=True),
    Column("error", "ERROR", folds=True),
]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a run, a trial or a search")
    parser.add_argument("--all", action="store_true", help="every key, attempt, checkpoint and trial")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print what there is to know."""
    found = one_at(given.path)
    most = None if given.all else MOST_LINES
    if isinstance(found, ExperimentSummary):
        row: dict[str, Any] = {
            **search_row(found, found.path, None),
            "how_to_continue": found.how_to_continue,
            "trackers": msgspec.to_builtins(_trackers_of(found)),
        }
        if given.format == "table":
            _show_search(found, row, most)
        else:
            row["all_trials"] = trial_rows(found, found.path, None)
    else:
        facts = run_facts(opened_as(found.path, given.path))
        row = facts_row(facts)
        if given.format == "table":
            _show_run(facts, most)
    if given.format == "json":
        write_json(row)
    elif given.format == "csv":
        write_csv([{"key": key, "value": value} for key, value in flat(row).items()])
    return 0


def facts_row(facts: RunFacts) -> dict[str, Any]:
    """The facts of a run as JSON has them."""
    plain = msgspec.to_builtins(facts)
    for checkpoint in plain["checkpoints"]:
        checkpoint["path"] = without_credentials(checkpoint["path"])
    summary = run_row(facts.summary, facts.summary.path, None)
    trackers = msgspec.to_builtins(_trackers_of(facts.summary))
    return {**summary, **{key: value for key, value in plain.items() if key != "summary"}, "trackers": trackers}


# -- a run ------------------------------------------------------------------------------------


def _show_run(facts: RunFacts, most: int | None) -> None:
    summary = facts.summary
    heading(cell(f"{summary.name}/{os.path.basename(summary.path)}"))
    write_pairs(_about_run(facts))
    _show_error(facts)
    _section("Configuration", _limited(_config(facts), most))
    _section("Last metrics", _limited(list(flat(summary.reached.metrics).items()), most))
    _show_attempts(facts, most)
    _show_memory(facts, most)
    _show_checkpoints(facts, most)
    _show_validations(facts, most)
    _show_trackers(summary)
    _section("Warnings", [(f"{number + 1}", text) for number, text in enumerate(facts.warnings)])
    if facts.how_to_continue:
        _below("To continue", facts.how_to_continue)


def _about_run(facts: RunFacts) -> Iterable[tuple[str, Cell]]:
    summary = facts.summary
    row = run_row(summary, summary.path, None)
    yield "status", status_cell(summary.status)
    yield "trainer", cell(f"{summary.trainer}, {counted(summary.num_workers, 'worker')}")
    yield "iteration", progress_text(row)
    if row["best"] is not None:
        yield f"best {cell(row['metric'])}", number_text(row["best"])
    yield from _times(summary)
    if facts.search:
        yield "trial of", cell(shown_place(facts.search))
    yield "files", cell(shown_place(summary.path))
    if names := _files(summary.path):
        yield "", cell(", ".join(names))
    if facts.origin:
        yield "copy of", cell(shown_place(facts.origin))


def _files(path: str) -> list[str]:
    """What is in the directory, without the checkpoints, which are listed by themselves."""
    if "://" in path:
        return []
    found = [entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(path)]
    return sorted(name for name in found if not name.startswith((".", "checkpoint_")) and name != "lock")


def _times(summary: RunSummary | ExperimentSummary) -> Iterable[tuple[str, Cell]]:
    if summary.started:
        yield "started", f"{time_text(summary.started)} ({age_text(summary.started)} ago)"
    if summary.ended:
        yield "ended", f"{time_text(summary.ended)}, after {duration_text(summary.ended - summary.started)}"


def _show_error(facts: RunFacts) -> None:
    """What ended the run says the rank and the user's lines; of a live or killed run the last failure does."""
    text = facts.summary.error
    if not text:
        return
    lines = printable(text).rstrip().splitlines()
    if len(lines) == 1 and facts.failures and len(facts.failures[-1].traceback.splitlines()) > 1:
        lines += ["", *excerpt(printable(facts.failures[-1].traceback), TRACEBACK_LINES)]
    write("")
    heading("Error" if facts.summary.status == "failed" else "Last failure")
    for line in lines:
        if not line.startswith("To continue: "):  # which comes at the end
            write(f"  {line}".rstrip())


def _config(facts: RunFacts) -> list[tuple[str, Any]]:
    config = users_config(facts)
    return [("", "not plain data, so it was not stored")] if config is None else list(flat(config).items())


def _show_attempts(facts: RunFacts, most: int | None) -> None:
    if len(facts.attempts) < 2:
        return
    failures = {failure.attempt: failure for failure in facts.failures}
    rows: list[dict[str, Cell]] = [
        {
            "attempt": f"{each.attempt + 1}",
            "began": f"{each.start_index}",
            "workers": f"{each.world_size}",
            "host": cell(each.hostname),
            "age": age_text(each.time),
            "failure": cell(failures[each.attempt].in_words) if each.attempt in failures else "",
        }
        for each in facts.attempts
    ]
    _table("Attempts", ATTEMPTS, rows, most)


def _show_memory(facts: RunFacts, most: int | None) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "rank": f"{each.rank}",
            "start": size_text(each.start) if each.start else "",
            "peak": size_text(each.peak),
            "last": size_text(each.last),
        }
        for each in facts.memory
    ]
    _table("Memory", MEMORY, rows, most)


def _show_checkpoints(facts: RunFacts, most: int | None) -> None:
    kept = [each for each in facts.checkpoints if each.kept or each.damaged or most is None]
    rows: list[dict[str, Cell]] = [
        {
            "number": f"{each.number}",
            "iteration": f"{each.iteration}",
            "score": number_text(each.score),
            "size": short_size(each.size),
            "age": age_text(each.time),
            "state": "damaged" if each.damaged else "" if each.kept else "gone",
        }
        for each in kept
    ]
    _table("Checkpoints", CHECKPOINTS, rows, most)


def _show_validations(facts: RunFacts, most: int | None) -> None:
    """Metrics of those that are done are shown with the best checkpoint and the last row."""
    rows: list[dict[str, Cell]] = [
        {
            "number": f"{each.number}",
            "iteration": f"{each.iteration}",
            "state": each.state,
            "age": age_text(each.ended or each.asked),
            "result": cell(each.error) or _in_a_line(each.metrics),
        }
        for each in facts.validations
    ]
    _table("Validations", VALIDATIONS, rows, most)


def _in_a_line(metrics: Mapping[str, Any]) -> str:
    return " ".join(f"{cell(key)}={number_text(value)}" for key, value in flat(metrics).items())


# -- a search ---------------------------------------------------------------------------------


def _show_search(search: ExperimentSummary, row: Mapping[str, Any], most: int | None) -> None:
    heading(cell(search.name))
    write_pairs(_about_search(search, row))
    best = search.best
    if best is not None:
        _section(f"Best trial: {os.path.basename(best.path)}", list(flat(best.params).items()))
        _section("Its last metrics", _limited(list(flat(best.reached.metrics).items()), most))
    failed = [trial for trial in search.trials if trial.status == "failed"]
    _table("Failed trials", TRIALS, [_trial_cells(trial, row, with_error=True) for trial in failed], most)
    others = [trial for trial in _by_rank(search) if trial.status != "failed"]
    _table("Trials", TRIALS, [_trial_cells(trial, row) for trial in others], most)
    _show_trackers(search)
    if row["how_to_continue"]:
        _below("To continue", row["how_to_continue"])


def _about_search(search: ExperimentSummary, row: Mapping[str, Any]) -> Iterable[tuple[str, Cell]]:
    yield "status", status_cell(search.status, failed_trials(row))
    yield "trainable", cell(search.trainable)
    if search.metric:
        yield "metric", cell(f"{row['metric']} ({row['mode']})")
    counts = [f"{count} {status}" for status, count in row["trials"].items() if status != "all"]
    created, total = row["trials"]["all"], row["total"]
    number = f"{created} of {total}" if total is not None and total > created else f"{created}"
    yield "trials", f"{number}: {', '.join(counts)}" if counts else number
    yield from _times(search)
    yield "files", cell(shown_place(search.path))


def _trial_cells(trial: TrialSummary, row: Mapping[str, Any], with_error: bool = False) -> dict[str, Cell]:
    value = nested_get(trial.reached.metrics, row["metric"]) if row["metric"] else None
    return {
        "name": cell(trial.trial_id),
        "status": status_cell(trial.status),
        "progress": progress_text(run_row(trial, trial.path, None)),
        "last": number_text(value),
        "params": _in_a_line(trial.params),
        "error": cell(trial.error.splitlines()[0] if trial.error else "") if with_error else "",
    }


def _by_rank(search: ExperimentSummary) -> list[TrialSummary]:
    """Running trials first, then the best."""
    metric, sign = search.metric, 1.0 if search.mode == "max" else -1.0

    def key(trial: TrialSummary) -> tuple[bool, float]:
        value = nested_get(trial.reached.metrics, metric) if isinstance(metric, str) else None
        is_number = isinstance(value, int | float) and value == value
        return trial.status != "running", -sign * float(value) if is_number and value is not None else float("inf")

    return sorted(search.trials, key=key)


# -- trackers ---------------------------------------------------------------------------------


def _trackers_of(found: RunSummary | ExperimentSummary) -> list[TrackerState]:
    """As of now: what was sent later counts. A copy on remote storage does not have them."""
    if "://" in found.path:
        return []
    if isinstance(found, RunSummary):
        return tracker_states(found.path)
    trials = found.trials if len(found.trials) <= MOST_TRIALS_TO_LOOK_AT else []
    return states_together(found.path, [trial.path for trial in trials])


def _show_trackers(found: RunSummary | ExperimentSummary) -> None:
    states = _trackers_of(found)
    if not states:
        return
    write("")
    heading("Trackers")
    for each in states:
        left = f", {each.left} not sent yet" if each.left else ""
        write(f"  {cell(each.file)}: {counted(each.sent, 'row')} sent{left}")
        if each.left and not found.alive:  # a live driver sends them itself
            write(f"    To send them: {printable(each.how_to_send)}")


# -- parts ------------------------------------------------------------------------------------


def _section(title: str, pairs: Sequence[tuple[str, Any]]) -> None:
    if pairs:
        write("")
        heading(cell(title))
        write_pairs([(cell(name), whole_text(value)) for name, value in pairs])


def _limited(pairs: list[tuple[str, Any]], most: int | None) -> list[tuple[str, Any]]:
    if most is None or len(pairs) <= most + 1:
        return pairs
    return [*pairs[:most], ("...", f"and {len(pairs) - most} more: see --all")]


def _table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]], most: int | None) -> None:
    if not rows:
        return
    write("")
    heading(title)
    shown = rows if most is None or len(rows) <= most + 1 else rows[:most] if "Trial" in title else rows[-most:]
    write_table(columns, shown, indent="  ")
    if len(shown) < len(rows):
        write(f"  ... and {len(rows) - len(shown)} more: see --all")


def _below(title: str, text: str) -> None:
    write("")
    heading(title)
    write(f"  {printable(text)}")
