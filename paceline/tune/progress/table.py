"""Tables of trials as lines: columns of parameters and metrics, as many as fit, and the names of those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.air.metrics import flattened, nested_get
from paceline.air.secrets import masked
from paceline.air.words import duration_text
from paceline.run.display import cell_width, clipped
from paceline.tune.progress.texts import column_names, one_line, shown_value

if TYPE_CHECKING:
    from paceline.run.spec import Trial

_GAP = "  "
_MOST_PARAMETERS = 30
_MOST_METRICS_LOOKED_AT = 100
NEVER = 1000
"""The rank of a column that is only named."""


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
        titles = column_names(list(paths))
        named = dict(islice(titles.items(), _MOST_PARAMETERS))
        others = [Column(title, _empty, rank=NEVER) for title in islice(titles.values(), _MOST_PARAMETERS, None)]
    else:
        others = []
    columns = [Column(title, _parameter(path), rank=10 + number) for number, (path, title) in enumerate(named.items())]
    return columns + others


def metric_columns(
    trials: Iterable[Trial], metric: str | None, limit: int, named: Mapping[str, str] | None = None
) -> list[Column]:
    """The metric of the search, iteration, time and a few of the numbers reported; or those named: {key: title}."""
    if named is not None:
        return [_metric(key, title, rank=2 + number) for number, (key, title) in enumerate(named.items())]
    chosen = [_metric(metric, metric, rank=2)] if metric is not None else []
    chosen.append(_metric(TRAINING_ITERATION, "iter", rank=3))
    chosen.append(Column("time", _time, rank=50, right=True))
    others = [key for key in inferred_metrics(trials, limit) if key != metric]
    chosen += [_metric(key, key, rank=60 + number) for number, key in enumerate(others[:limit])]
    return chosen + [Column(key, _empty, rank=NEVER) for key in others[limit:]]


def inferred_metrics(trials: Iterable[Trial], limit: int) -> list[str]:
    """Numbers that the trials' rows report beside what is filled in: of the first trials that have so many."""
    found: dict[str, None] = {}
    for trial in trials:
        if len(found) >= limit:
            break
        own = (item for item in trial.last_result.items() if item[0] not in AUTOFILLED_KEYS)
        for key, value in flattened(dict(islice(own, _MOST_METRICS_LOOKED_AT))).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[key] = None
    return list(found)


@dataclass(frozen=True)
class Table:
    """A table that fits."""

    lines: list[str]
    """The heading, and a line per trial."""
    left_out: list[str]
    """The titles of the columns that have no place."""

    def missing_line(self, width: int) -> str:
        """Names the columns that are left out, as many as fit; empty if none is."""
        text = "columns left out: "
        for number, title in enumerate(self.left_out):
            more = f"and {len(self.left_out) - number} more"
            longer = f"{text}{', ' if number else ''}{title}"
            rest = len(self.left_out) - number - 1
            if cell_width(longer) + (len(f", and {rest} more") if rest else 0) > width:
                return clipped(f"{text}{', ' if number else ''}{more}", width)
            text = longer
        return text if self.left_out else ""


def table_of(columns: Sequence[Column], trials: Sequence[Trial], width: int, longest: int) -> Table:
    """A heading and a line per trial, none wider than `width`; cells are cut at `longest` columns."""
    texts: dict[Column, list[str]] = {}
    room = width
    for column in sorted(columns, key=lambda column: column.rank):
        if column.rank == NEVER or (texts and room <= len(_GAP)):
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
    lines = [_GAP.join(cells).rstrip() for cells in zip(*kept, strict=True)]
    return Table(lines, [one_line(column.title) for column in columns if column not in texts])


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


def _empty(trial: Trial) -> str:
    return ""


def _time(trial: Trial) -> str:
    seconds = trial.last_result.get("time_total_s")
    return duration_text(seconds) if isinstance(seconds, int | float) else ""
