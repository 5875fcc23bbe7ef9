"""An experiment in words: one line per trial, one of state, the summary at the end; and tables of trials as lines."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.air.metrics import flattened, nested_get
from paceline.air.secrets import masked
from paceline.air.words import duration_text, printable, value_text
from paceline.run.display import cell_width, clipped

if TYPE_CHECKING:
    from paceline.run.spec import Trial
    from paceline.tune.progress.view import ExperimentEnd, ExperimentView

_ENDINGS = {
    "TERMINATED": "ended well",
    "ERROR": "failed",
    "RUNNING": "interrupted",
    "PAUSED": "interrupted",
    "PENDING": "not started",
}
"""What became of trials when an experiment ends, in the order of telling."""
_PARAMETERS_IN_A_LINE = 12
_PARAMETERS_IN_SUMMARY = 50
_ERRORS_IN_SUMMARY = 10
_LONGEST_ERROR = 300


def short_name(trial: Trial) -> str:
    """The trial's number, ``00003``: enough to tell the trials of one experiment apart."""
    return trial.trial_id.rpartition("_")[2]


def output_prefix(trial: Trial, rank: int | None) -> str:
    return f"(trial {short_name(trial)}) " if rank is None else f"(trial {short_name(trial)} rank {rank}) "


def shown_value(value: object) -> str:
    """A parameter or metric in a few characters. A parameter may be any object, of any size."""
    if not isinstance(value, str | int | float) and value is not None:
        value = getattr(value, "__name__", None) or reprlib.repr(value)
    return one_line(value_text(value))


def one_line(text: str) -> str:
    """Text of the user's as it can stand in a line of ours: harmless, without breaks and tabs."""
    return " ".join(printable(text).split())


def parameters_text(parameters: Mapping[str, Any], limit: int = _PARAMETERS_IN_A_LINE) -> str:
    named = column_names(list(parameters))
    listed = [f"{named[path]}={shown_value(value)}" for path, value in islice(parameters.items(), limit)]
    return ", ".join(listed) + (", …" if len(parameters) > limit else "")


def column_names(paths: list[str]) -> dict[str, str]:
    """The last component of each path, or the whole path where that is not clear."""
    last = [path.rpartition("/")[2] for path in paths]
    return {path: one_line(name if last.count(name) == 1 else path) for path, name in zip(paths, last, strict=True)}


def trial_line(trial: Trial, metric: str | None) -> str:
    """A trial that ended: name, status, parameters, metric."""
    row = trial.last_result
    parts = [parameters_text(trial.evaluated_params)] if trial.evaluated_params else []
    if metric is not None and (value := nested_get(row, metric)) is not None:
        parts.append(f"{one_line(metric)} {shown_value(value)}")
    parts.append(f"iteration {row.get(TRAINING_ITERATION, 0)}")
    return f"{trial} {trial.status}: {', '.join(parts)}"


def error_line(trial: Trial, error: str) -> str:
    said = one_line(error)
    said = said if len(said) <= _LONGEST_ERROR else f"{said[:_LONGEST_ERROR]}…"
    return f"{trial}: {said or 'failed'} (log: {trial.local_path}/logs)"


def facts(view: ExperimentView) -> Iterator[str]:
    """What can be said of the experiment at a glance."""
    counts = view.counts
    failed = counts.get("ERROR", 0)
    ended = counts.get("TERMINATED", 0) + failed
    yield f"{ended}/{view.total} trials" if view.total is not None else f"{ended} trials ended"
    for status, word in (("RUNNING", "running"), ("PAUSED", "paused"), ("PENDING", "pending"), ("ERROR", "failed")):
        if counts.get(status):
            yield f"{counts[status]} {word}"
    yield duration_text(view.elapsed_s())
    if resources := resources_text(view):
        yield resources
    best, value = view.best_trial(), view.best_value()
    if best is not None and view.metric is not None:
        yield f"best {one_line(view.metric)} {shown_value(value)} (trial {short_name(best)})"


def resources_text(view: ExperimentView) -> str:
    """What is in use of what there is."""
    in_use = [f"{name} {view.used.get(name, 0):g}/{amount:g}" for name, amount in view.resources.items() if amount]
    return ", ".join(in_use)


def scheduler_text(view: ExperimentView) -> str:
    """What the scheduler says of itself; one of the user's own may fail at it, which shall not end the experiment."""
    try:
        return one_line(view.scheduler_info())
    except Exception as error:
        return one_line(f"the scheduler's debug_string() raised {error!r}")


def start_line(view: ExperimentView) -> str:
    trials = "trials without end" if view.total is None else "1 trial" if view.total == 1 else f"{view.total} trials"
    resumed = view.counts.get("TERMINATED", 0) + view.counts.get("ERROR", 0)
    already = f" ({resumed} ended earlier)" if resumed else ""
    return f"{view.name} started: {trials}{already}, files in {view.experiment_path}"


def closing_lines(view: ExperimentView, summary: ExperimentEnd) -> Iterator[str]:
    """How it ended, the best trial, the errors, where the files are, and how to continue."""
    counts = Counter(dict.fromkeys(_ENDINGS.values(), 0))  # in this order
    for status, word in _ENDINGS.items():
        counts[word] += view.counts.get(status, 0)
    endings = [f"{count} {word}" for word, count in counts.items() if count]
    listed = ", ".join(endings) or "no trials"
    yield f"{view.name} {summary.status} after {duration_text(view.elapsed_s())}: {listed}"
    best, value = view.best_trial(), view.best_value()
    if best is not None and view.metric is not None:
        yield f"Best trial: {best}, {one_line(view.metric)} {shown_value(value)}"
        if best.evaluated_params:
            yield f"  parameters: {parameters_text(best.evaluated_params, _PARAMETERS_IN_SUMMARY)}"
        yield f"  files: {best.path}"
    if view.errors:
        yield "Failed trials:"
        for trial, error in islice(view.errors.items(), _ERRORS_IN_SUMMARY):
            yield f"  {error_line(trial, error)}"
        if len(view.errors) > _ERRORS_IN_SUMMARY:
            yield f"  and {len(view.errors) - _ERRORS_IN_SUMMARY} more"
    yield f"Files: {view.experiment_path}"
    if summary.restore_hint:
        yield f"To continue: {summary.restore_hint}"


_GAP = "  "
_MOST_PARAMETERS = 30
_MOST_METRICS_LOOKED_AT = 100


@dataclass(frozen=True)
class Column:
    """One column; the higher its rank, the sooner it is left out where space is short."""

    title: str
    cell: Callable[[Trial], str]
    rank: int = 0
    right: bool = False
    whole: bool = False
    """Never cut: part of it would be of no use."""


def parameter_columns(trials: Iterable[Trial], named: Mapping[str, str] | None = None) -> list[Column]:
    """A column per searched parameter of these trials, or those named: {path: title}."""
    if named is None:
        paths = dict.fromkeys(path for trial in trials for path in trial.evaluated_params)
        named = column_names(list(paths)[:_MOST_PARAMETERS])
    return [Column(title, _parameter(path), rank=10 + number) for number, (path, title) in enumerate(named.items())]


def metric_columns(
    trials: Iterable[Trial], metric: str | None, limit: int, named: Mapping[str, str] | None = None
) -> list[Column]:
    """The metric of the search, iteration, time and a few of the numbers reported; or those named: {key: title}."""
    if named is not None:
        return [_metric(key, title, rank=2 + number) for number, (key, title) in enumerate(named.items())]
    chosen = [_metric(metric, metric, rank=2)] if metric is not None else []
    chosen.append(_metric(TRAINING_ITERATION, "iter", rank=3))
    chosen.append(Column("time", _time, rank=50, right=True))
    others = (key for key in inferred_metrics(trials, limit) if key != metric)
    return chosen + [_metric(key, key, rank=60 + number) for number, key in enumerate(others)]


def inferred_metrics(trials: Iterable[Trial], limit: int) -> list[str]:
    """The first few numbers that the trials' rows report beside what is filled in."""
    found: dict[str, None] = {}
    for trial in trials:
        if len(found) >= limit:
            break
        own = (item for item in trial.last_result.items() if item[0] not in AUTOFILLED_KEYS)
        for key, value in flattened(dict(islice(own, _MOST_METRICS_LOOKED_AT))).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[key] = None
    return list(found)[:limit]


def table_lines(columns: Sequence[Column], trials: Sequence[Trial], width: int, longest: int) -> list[str]:
    """A heading and a line per trial, none wider than `width`; cells are cut at `longest` columns."""
    texts: dict[Column, list[str]] = {}
    room = width
    for column in sorted(columns, key=lambda column: column.rank):
        if texts and room <= len(_GAP):
            break
        cells = [one_line(column.title), *(column.cell(trial) for trial in trials)]
        if not column.whole:
            cells = [clipped(cell, longest) for cell in cells]
        cells = aligned(cells, column.right)
        needed = cell_width(cells[0]) + (len(_GAP) if texts else 0)
        if needed <= room:
            texts[column] = cells
            room -= needed
        elif not texts:  # not even the first fits: something is better than nothing
            texts[column] = [clipped(cell, width) for cell in cells]
            break
    kept = [texts[column] for column in columns if column in texts]
    return [_GAP.join(cells).rstrip() for cells in zip(*kept, strict=True)]


def aligned(cells: list[str], right: bool) -> list[str]:
    widths = [cell_width(cell) for cell in cells]
    widest = max(widths)
    if right:
        return [" " * (widest - width) + cell for cell, width in zip(cells, widths, strict=True)]
    return [cell + " " * (widest - width) for cell, width in zip(cells, widths, strict=True)]


def _parameter(path: str) -> Callable[[Trial], str]:
    """Searched values are found by their whole path; a constant the user named is looked up in the configuration."""

    def cell(trial: Trial) -> str:
        if path in trial.evaluated_params:
            return shown_value(trial.evaluated_params[path])
        return _cell(path, nested_get(trial.config, path))

    return cell


def _metric(key: str, title: str, rank: int) -> Column:
    return Column(title, lambda trial: _cell(key, nested_get(trial.last_result, key)), rank=rank, right=True)


def _cell(name: str, value: Any) -> str:
    return "" if value is None else shown_value(masked({name: value})[name])


def _time(trial: Trial) -> str:
    seconds = trial.last_result.get("time_total_s")
    return duration_text(seconds) if isinstance(seconds, int | float) else ""
