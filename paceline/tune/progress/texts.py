"""An experiment in words: one line per trial, one of state, the summary at the end."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.metrics import nested_get
from paceline.air.words import counted, duration_text, printable, value_text

if TYPE_CHECKING:
    from paceline.run.spec import Trial
    from paceline.tune.progress.view import ExperimentEnd, ExperimentView

_ENDINGS = {
    "TERMINATED": "finished",
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
    if len(parameters) > limit:
        listed.append(f"… and {len(parameters) - limit} more")
    return ", ".join(listed)


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
    if view.total is not None:
        yield f"{ended}/{counted(view.total, 'trial')}"
    else:
        yield f"{counted(ended, 'trial')} ended"
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
    trials = "trials without end" if view.total is None else counted(view.total, "trial")
    resumed = view.counts.get("TERMINATED", 0) + view.counts.get("ERROR", 0)
    if resumed and resumed == view.total:
        return f"{view.name}: {trials}, {'' if resumed == 1 else 'all '}ended earlier, files in {view.experiment_path}"
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
