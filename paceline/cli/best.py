"""``paceline best``: the best checkpoint of a run, the best trial of a search, or the best of several runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.metrics import nested_get
from paceline.air.secrets import without_credentials
from paceline.cli.errors import FAILED, USAGE, CommandError
from paceline.cli.metric_choice import metric_names
from paceline.cli.output import add_format, note, number_text, write_csv, write_json, write_table
from paceline.cli.places import add_path, broken, found_at, opened_as, shown_place
from paceline.cli.table import Column, cell
from paceline.run.found_runs import RunSummary
from paceline.tune.experiment.summary import ExperimentSummary
from paceline.view.catalog import run_facts
from paceline.view.flat import flat

DESCRIPTION = """\
Ranks what is at PATH and prints the best, by default one. Of one run: the checkpoints that are kept, or its reports if
it keeps none. Of a search: its
trials, by the last value that each reported. Of several runs: these, by their last value. The metric and its mode are
those of the run or search, unless they are given. Failed runs and trials are left out, as in get_best_result().
"""

MOST_NAMES = 20
"""Of metrics that could be meant."""
COLUMNS = [
    Column("value", "VALUE", right=True),
    Column("iteration", "ITERATION", right=True),
    Column("path", "PATH", folds=True),
    Column("params", "PARAMETERS", folds=True),
]


@dataclass(frozen=True)
class _Candidates:
    """What can be the best, and the metric it is judged by."""

    rows: list[dict[str, Any]]
    metric: str | None
    mode: str | None
    note: str = ""
    """What to know about them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a run, a search, or several runs")
    parser.add_argument("--metric", metavar="NAME", help='what to rank by; nested metrics as "a/b"')
    parser.add_argument("--mode", choices=("min", "max"), help="whether lower or higher is better")
    parser.add_argument("-n", type=_count, default=1, dest="count", metavar="N", help="how many (default: %(default)s)")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print the best."""
    candidates = _candidates(given.path)
    metric, mode = given.metric or candidates.metric, given.mode or candidates.mode
    shown = shown_place(given.path)
    if metric is None:
        missing = "--metric and --mode" if mode is None else "--metric"
        raise CommandError(f"{shown} has no metric of its own to rank by: give {missing}. {_known(candidates)}", USAGE)
    scored = [(value, row) for row in candidates.rows if (value := _number(row["metrics"], metric)) is not None]
    if not scored:
        is_known = any(row["metrics"] for row in candidates.rows)
        message = f"Nothing in {shown} has a number for {metric!r}. {_known(candidates)}"
        raise CommandError(message, USAGE if is_known else FAILED)
    if mode is None:
        raise CommandError(f"Is a low or a high {metric} better? Give --mode min or --mode max.", USAGE)
    if candidates.note:
        note(candidates.note)
    ranked = sorted(scored, key=lambda each: each[0] if mode == "min" else -each[0])[: given.count]
    rows = [{"metric": metric, "mode": mode, "value": value, **row} for value, row in ranked]
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows)
    else:
        _write(rows, metric)
    return 0


def _candidates(path: str) -> _Candidates:
    found = found_at(path)
    if not found.runs and not found.searches:
        raise broken(found)
    if len(found.searches) == 1 and not found.runs:
        return _trials(found.searches[0])
    if len(found.runs) == 1 and not found.searches:
        return _checkpoints(found.runs[0], path)
    several = [_trials(search) for search in found.searches]
    runs = [_row(run) for run in found.runs if run.status != "failed"]
    attributes = {(run.score_attribute, run.score_order) for run in found.runs if run.score_attribute}
    attributes |= {(each.metric, each.mode) for each in several if each.metric and each.mode}
    metric, mode = attributes.pop() if len(attributes) == 1 else (None, None)
    return _Candidates([*runs, *(row for each in several for row in each.rows)], metric, mode)


def _trials(search: ExperimentSummary) -> _Candidates:
    rows = [{**_row(trial), "params": trial.params} for trial in search.trials if trial.status != "failed"]
    metric = search.metric if isinstance(search.metric, str) else None
    return _Candidates(rows, metric, search.mode if isinstance(search.mode, str) else None)


def _row(summary: RunSummary) -> dict[str, Any]:
    reached = summary.reached
    return {"path": summary.path, "iteration": reached.iteration, "status": summary.status, "metrics": reached.metrics}


def _checkpoints(summary: RunSummary, given: str) -> _Candidates:
    facts = run_facts(opened_as(summary.path, given))
    rows = [
        {
            "path": without_credentials(each.path),
            "iteration": each.iteration,
            "number": each.number,
            "metrics": each.metrics,
        }
        for each in facts.checkpoints
        if each.kept
    ]
    advice = ""
    if not rows:
        rows = list(_reports(summary, given))
        advice = (
            f"{shown_place(summary.path)} keeps no checkpoints, so these are its reports. To keep some, pass "
            "checkpoint=... to train.report()."
        )
    return _Candidates(rows, facts.score_attribute, facts.score_order if facts.score_attribute else None, advice)


def _reports(summary: RunSummary, given: str) -> Iterator[dict[str, Any]]:
    from paceline.view.frames import FILLED_IN, run_rows

    for row in run_rows(opened_as(summary.path, given)):
        metrics = {key: value for key, value in row.items() if key not in FILLED_IN}
        yield {"path": summary.path, "iteration": row[TRAINING_ITERATION], "number": None, "metrics": metrics}


def _known(candidates: _Candidates) -> str:
    names = metric_names(row["metrics"] for row in candidates.rows)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"There are: {', '.join(names[:MOST_NAMES])}{more}." if names else "Nothing was reported."


def _number(metrics: Mapping[str, Any], metric: str) -> float | None:
    value = nested_get(metrics, metric)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def _write(rows: list[dict[str, Any]], metric: str) -> None:
    columns = [Column("value", cell(metric), right=True), *COLUMNS[1:]]
    write_table(
        columns,
        [
            {
                "value": number_text(row["value"]),
                "iteration": f"{row['iteration']:g}",
                "path": cell(shown_place(row["path"])),
                "params": " ".join(f"{cell(k)}={number_text(v)}" for k, v in flat(row.get("params", {})).items()),
            }
            for row in rows
        ],
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
