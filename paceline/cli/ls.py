"""``paceline ls``: runs and searches below a path, or the trials of a search."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.air.errors import RestoreError, StorageError
from paceline.air.metrics import flattened, nested_get
from paceline.air.secrets import without_credentials
from paceline.cli.errors import USAGE, CommandError
from paceline.cli.metric_choice import default_metric, metric_names
from paceline.cli.output import (
    add_format,
    age_text,
    note,
    number_text,
    short_size,
    status_cell,
    write,
    write_csv,
    write_json,
    write_table,
)
from paceline.cli.places import broken, found_at, name_below, place, short_id, suffix_of
from paceline.cli.table import Cell, Column, cell
from paceline.run.found_runs import RunSummary, summary_of_run_dir
from paceline.storage.run_dir import RunDir, default_storage_root, resolve_storage
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.catalog import Found
from paceline.view.flat import flat

DESCRIPTION = """\
Lists runs and searches, newest first; of a search, its trials in the order of their numbers. Without PATH it
lists the results directory (PACELINE_RESULTS_DIR, or ~/paceline_results).

BEST is the value of the best checkpoint that is kept, or of the best trial; LAST the one that was reported last. METRIC
is what checkpoints or trials are ranked by, otherwise a loss, otherwise the first metric that is not a counter such as
epoch or step. SIZE is that of the checkpoints; of searches and trials on remote storage, or of more than 2,000 trials,
it is not known: then it is empty, and null in JSON. AGE is the time since the start. PROGRESS counts iterations; of a
search, the trials that have ended, of how many if that is known.
"""

COLUMNS = [
    Column("name", "NAME", folds=True),
    Column("status", "STATUS"),
    Column("progress", "PROGRESS", right=True),
    Column("metric", "METRIC", folds=True),
    Column("best", "BEST", right=True),
    Column("last", "LAST", right=True),
    Column("params", "PARAMETERS", folds=True),
    Column("age", "AGE", right=True),
    Column("size", "SIZE", right=True),
]
MOST_TRIALS_TO_LOOK_AT = 2000
MOST_NAMES = 8
"""Of metrics that could be meant."""
STATUSES = ("running", "finished", "failed", "interrupted", "killed", "pending", "damaged", "unreadable")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", metavar="PATH", help="directory or URI (default: the results directory)")
    parser.add_argument("--metric", metavar="NAME", help="the metric to show")
    parser.add_argument(
        "--status", action="append", choices=STATUSES, metavar="STATUS", help="only these; may be repeated"
    )
    parser.add_argument(
        "--sort-by", metavar="KEY", help="name, status, iteration, best, last, started, size, a metric or a parameter"
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print the list."""
    path = given.path
    if path is None:
        path = str(default_storage_root())
        if not default_storage_root().exists():
            write("[]" if given.format == "json" else f"There are no runs yet in {path}.")
            return 0
    found = found_at(path)
    if not found.runs and not found.searches and len(found.problems) == 1:
        raise broken(found)
    _refuse_unknown(given.metric, found)
    rows = rows_of(found, without_credentials(str(resolve_storage(place(path)))), given.metric)
    rows = [row for row in rows if not given.status or row["status"] in given.status]
    rows = _sorted(rows, given.sort_by, given.reverse)
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows)
    elif rows:
        write_table(COLUMNS, [_cells(row) for row in rows])
    for problem in found.problems if given.format == "table" else []:
        note(problem.message)
    return 0


def rows_of(found: Found, root: str, metric: str | None) -> list[dict[str, Any]]:
    """One row for each run and search, newest first; for each trial, if the path is that of a search."""
    here = [search for search in found.searches if search.path == root]
    rows = [row for search in here for row in trial_rows(search, root, metric)]
    others = [
        {**row, "name": row["name"] + suffix_of(search, found.searches)}
        for search in found.searches
        if search.path != root and (row := search_row(search, root, metric))
    ]
    others += [run_row(summary, root, metric) for summary in found.runs]
    rows += sorted(others, key=lambda row: row["started"] or 0.0, reverse=True)
    for problem in found.problems:
        status = "damaged" if problem.damaged else "unreadable"
        name = name_below(problem.path, root)
        rows.append({"kind": "problem", "name": name, "path": problem.path, "status": status, "error": problem.message})
    _shorten(rows)
    return rows


def _shorten(rows: list[dict[str, Any]]) -> None:
    """A run that is alone in its experiment goes by the experiment's name, which every command takes, too."""
    above = Counter(row["name"].rpartition("/")[0] for row in rows)
    above.update(row["name"] for row in rows)  # the directory of a search may have runs
    for row in rows:
        experiment = row["name"].rpartition("/")[0]
        if row["kind"] == "run" and experiment and above[experiment] == 1:
            row["name"] = experiment


def _refuse_unknown(metric: str | None, found: Found) -> None:
    """A metric that was never reported is probably misspelled."""
    if metric is None:
        return
    everything = [*found.runs, *(trial for search in found.searches for trial in search.trials)]
    reported = [each.reached.metrics for each in everything]
    if any(nested_get(metrics, metric) is not None for metrics in reported):
        return
    if names := metric_names(reported):
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        raise CommandError(
            f"--metric {metric}: no run has it. There are: {', '.join(names[:MOST_NAMES])}{more}.", USAGE
        )


def trial_rows(search: ExperimentSummary, root: str, metric: str | None) -> list[dict[str, Any]]:
    """The trials of a search as JSON has them."""
    chosen = metric or search_metric(search)
    return [
        {**run_row(trial, root, chosen), **dict(zip(("size", "checkpoints"), _kept_by(trial, search), strict=True))}
        for trial in search.trials
    ]


def _kept_by(trial: TrialSummary, search: ExperimentSummary) -> tuple[int | None, int | None]:
    """Size and number of the checkpoints of a trial; None if they are not known.

    A search does not know the checkpoints of trials that have ended: their own records do.
    """
    reached = trial.reached
    if not reached.checkpoints and trial.status != "pending":
        if "://" in search.path or len(search.trials) > MOST_TRIALS_TO_LOOK_AT:
            return None, None
        try:
            reached = summary_of_run_dir(RunDir(Path(trial.path))).reached
        except (RestoreError, StorageError):  # it is gone, or damaged
            return None, None
    return reached.size, len(reached.checkpoints)


def run_row(summary: RunSummary, root: str, metric: str | None) -> dict[str, Any]:
    """A run or trial as JSON has it."""
    reached = summary.reached
    metric = metric or summary.score_attribute or default_metric(reached.metrics, reached.iteration)
    is_ranked = metric is not None and metric == summary.score_attribute
    row = {
        "kind": "run",
        "name": name_below(summary.path, root),
        "path": summary.path,
        "status": summary.status,
        "alive": summary.alive,
        "trainer": summary.trainer,
        "workers": summary.num_workers,
        "attempts": reached.attempts,
        "iteration": reached.iteration,
        "most_iterations": summary.most_iterations,
        "metric": metric,
        "best": nested_get(reached.best, metric) if is_ranked and metric else None,
        "last": nested_get(reached.metrics, metric) if metric else None,
        "started": summary.started or None,
        "ended": summary.ended,
        "size": reached.size,
        "checkpoints": len(reached.checkpoints),
        "error": summary.error,
        "metrics": reached.metrics,
    }
    if isinstance(summary, TrialSummary):
        row |= {"kind": "trial", "number": summary.number, "params": summary.params}
    return row


def search_row(search: ExperimentSummary, root: str, metric: str | None) -> dict[str, Any]:
    """A search as JSON has it, without its trials."""
    chosen = metric or search_metric(search)
    best = msgspec.structs.replace(search, metric=chosen).best if chosen else None
    counts = {status: sum(trial.status == status for trial in search.trials) for status in STATUSES}
    reported = [
        value for trial in search.trials if chosen and (value := nested_get(trial.reached.metrics, chosen)) is not None
    ]
    return {
        "kind": "search",
        "name": name_below(search.path, root),
        "id": short_id(search),
        "path": search.path,
        "status": search.status,
        "alive": search.alive,
        "trainer": search.trainable,
        "trials": {"all": len(search.trials), **{status: count for status, count in counts.items() if count}},
        "num_samples": search.num_samples,
        "total": search.total_trials,
        "metric": chosen,
        "mode": search.mode,
        "best": nested_get(best.reached.metrics, chosen) if best is not None and chosen else None,
        "last": reported[-1] if reported else None,
        "started": search.started or None,
        "ended": search.ended,
        "size": _size_of(search),
        "best_trial": best.path if best is not None else None,
    }


def _size_of(search: ExperimentSummary) -> int | None:
    if "://" in search.path or len(search.trials) > MOST_TRIALS_TO_LOOK_AT:
        return None
    return sum(_kept_by(trial, search)[0] or 0 for trial in search.trials)


def _cells(row: Mapping[str, Any]) -> dict[str, Cell]:
    return {
        "name": cell(row["name"]),
        "status": status_cell(row["status"], failed_trials(row)),
        "progress": progress_text(row),
        "metric": cell(row.get("metric") or ""),
        "best": number_text(row.get("best")),
        "last": number_text(row.get("last")),
        "params": " ".join(f"{cell(key)}={number_text(value)}" for key, value in flat(row.get("params", {})).items()),
        "age": age_text(row.get("started")),
        "size": short_size(row.get("size")),
    }


def failed_trials(row: Mapping[str, Any]) -> str:
    """What to add to the status of a search that has failed trials."""
    failed = row["trials"].get("failed") if row["kind"] == "search" else 0
    return f", {failed} failed" if failed else ""


def progress_text(row: Mapping[str, Any]) -> str:
    """How far a run or search has come, and of how much if that is known."""
    if row["kind"] == "search":
        trials = row["trials"]
        done = trials["all"] - sum(trials.get(status, 0) for status in ("running", "pending", "killed"))
        total = row["total"]  # trials are created as there is room for them: there may be more than there are now
        return f"{done}" if total is None else f"{done}/{total}"
    if row["kind"] == "problem":
        return ""
    most = row["most_iterations"]
    return f"{row['iteration']:g}/{most:g}" if most else f"{row['iteration']:g}"


def _sorted(rows: list[dict[str, Any]], key: str | None, reverse: bool) -> list[dict[str, Any]]:
    """Rows without a value come last, whichever way they are sorted."""
    if key is None:
        return rows[::-1] if reverse else rows
    values = [(_value(row, key), row) for row in rows]
    known = [(value, row) for value, row in values if value is not None]
    if rows and not known:
        raise CommandError(f"--sort-by {key}: no run has it. There are: {', '.join(_keys(rows))}.", USAGE)
    texts = any(isinstance(value, str) for value, _ in known)
    ordered = sorted(known, key=lambda each: str(each[0]) if texts else each[0], reverse=reverse)
    return [row for _, row in ordered] + [row for value, row in values if value is None]


def _value(row: Mapping[str, Any], key: str) -> Any:
    key = {"progress": "iteration", "age": "started"}.get(key, key)
    places = (row, row.get("metrics", {}), row.get("params", {}))
    value = next((found for place in places if (found := nested_get(place, key)) is not None), None)
    is_sortable = isinstance(value, str | int | float) and value == value
    return value if is_sortable else None


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = ["name", "status", "iteration", "best", "last", "started", "size"]
    inside = (flattened(row.get(part, {})) for row in rows for part in ("metrics", "params"))
    return list(dict.fromkeys([*names, *(name for values in inside for name in values)]))[:20]


def search_metric(search: ExperimentSummary) -> str | None:
    """What trials are ranked by; of several metrics, the first. Otherwise what the first trial is listed with."""
    if search.metric:
        return search.metric if isinstance(search.metric, str) else search.metric[0]
    reached = next((trial.reached for trial in search.trials if trial.reached.metrics), None)
    return default_metric(reached.metrics, reached.iteration) if reached is not None else None
