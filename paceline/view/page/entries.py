"""The lines of the list: what each run, search and trial looks like there, small enough for ten thousand of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from msgspec import Struct

from paceline.run.found_runs import RunSummary
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.catalog import Entry, Problem

MOST_METRICS = 40
LONGEST_ERROR = 200


class Line(Struct, array_like=True, kw_only=True, gc=False):
    """An entry of the list. It is sent as an array: names of fields are sent once, not for each run."""

    id: str
    kind: str
    parent: str | None = None
    name: str = ""
    trial_id: str = ""
    trainer: str = ""
    status: str = ""
    alive: bool = False
    workers: int = 0
    started: float = 0.0
    ended: float | None = None
    iteration: float = 0
    seconds: float = 0.0
    metrics: dict[str, float | None] = {}
    """Flat numbers of the last row."""
    best: dict[str, float | None] = {}
    """Those of the best checkpoint; of a search, those of its best trial."""
    size: int = 0
    checkpoints: int = 0
    error: str = ""
    params: dict[str, Any] = {}
    metric: str | list[str] | None = None
    mode: str | list[str] | None = None
    total: int | None = None
    """Of a search: how many trials there will be; None if nobody knows."""
    path: str = ""
    number: int | None = None
    attempts: int = 0
    best_trial: str | None = None
    """Of a search: the id of its best trial."""
    counts: dict[str, int] = {}
    """Of a search: how many trials have which status."""


FIELDS = Line.__struct_fields__


def line_of(entry: Entry, root: str, ids: dict[str, str]) -> Line:
    """The line of an entry. `ids` finds the ids of trials by their paths."""
    summary = entry.summary
    if isinstance(summary, Problem):
        return Line(
            id=entry.id, kind="damaged", parent=entry.parent, name=_last_part(summary.path), status="damaged",
            error=_first_line(summary.message), path=_below(summary.path, root),
        )  # fmt: skip
    if isinstance(summary, ExperimentSummary):
        return _search(entry, summary, root, ids)
    return _run(entry, summary, root)


def _run(entry: Entry, summary: RunSummary, root: str) -> Line:
    reached = summary.reached
    trial = summary if isinstance(summary, TrialSummary) else None
    return Line(
        id=entry.id,
        kind=entry.kind,
        parent=entry.parent,
        name=summary.name,
        trial_id=summary.trial_id,
        trainer=summary.trainer,
        status=summary.status,
        alive=summary.alive,
        workers=summary.num_workers,
        started=summary.started,
        ended=summary.ended,
        iteration=_number(reached.iteration) or 0,
        seconds=reached.time_total_s,
        metrics=flat_numbers(reached.metrics),
        best=flat_numbers(reached.best),
        size=reached.size,
        checkpoints=len(reached.checkpoints),
        error=_first_line(summary.error),
        params={} if trial is None else trial.params,
        metric=summary.score_attribute,
        mode=summary.score_order,
        path=_below(summary.path, root),
        number=None if trial is None else trial.number,
        attempts=reached.attempts,
    )


def _search(entry: Entry, summary: ExperimentSummary, root: str, ids: dict[str, str]) -> Line:
    best = summary.best
    return Line(
        id=entry.id,
        kind="search",
        name=summary.name,
        trainer=summary.trainable,
        status=summary.status,
        alive=summary.alive,
        started=summary.started,
        ended=summary.ended,
        iteration=len(summary.trials),
        seconds=max((summary.ended or 0.0) - summary.started, 0.0),
        best=flat_numbers(best.reached.metrics) if best is not None else {},
        best_trial=ids.get(best.path) if best is not None else None,
        metric=summary.metric,
        mode=summary.mode,
        total=summary.total_trials,
        counts=dict(Counter(trial.status for trial in summary.trials)),
        path=_below(summary.path, root),
    )


def flat_numbers(metrics: dict[str, Any], most: int = MOST_METRICS) -> dict[str, float | None]:
    """The numbers among metrics, nested ones as "a/b"; what is not finite is None."""
    flat: dict[str, float | None] = {}
    _flatten(metrics, "", flat, most)
    return flat


def _flatten(metrics: dict[str, Any], prefix: str, flat: dict[str, float | None], most: int) -> None:
    for name, value in metrics.items():
        if len(flat) >= most:
            return
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}/", flat, most)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[prefix + name] = _number(value)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) and abs(value) < 2**63 else None


def _first_line(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= LONGEST_ERROR else f"{first[: LONGEST_ERROR - 3]}..."


def _below(path: str, root: str) -> str:
    """Without the root, which the page knows."""
    return path.removeprefix(root).lstrip("/") or "."


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
