"""Result: what a run reached."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.air.checks import check_choice, warn_at_users_line
from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.air.errors import NoSuchMetricError
from paceline.air.metrics import flattened

if TYPE_CHECKING:
    import pandas

    from paceline.air.checkpoint import Checkpoint


Status = Literal["finished", "failed", "interrupted", "unfinished"]


class History(Protocol):
    """Where a result's rows come from, when somebody asks for them."""

    def rows(self) -> Iterable[dict[str, Any]]:
        """The rows of the run (rank 0's), in order."""

    def rank_rows(self) -> list[dict[str, Any]]:
        """The rows of every rank, with their rank and index."""


@dataclass
class Result:
    """The outcome of one run; of a failed one, what it had reached."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """The last row: the reported metrics and those that are filled in."""
    checkpoint: Checkpoint | None = None
    """The newest checkpoint."""
    error: BaseException | None = None
    """What ended the run, if it failed."""
    log_dir: Path | None = None
    """The trial's directory."""
    path: str = ""
    """The same as text, or the URI of remote storage."""
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    """The kept checkpoints with their metrics, from worst to best."""
    rank_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last metrics that each rank reported."""
    filesystem: Any = None
    """The filesystem that holds `path`, where it was given."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong without failing the run."""
    attempts: int = 1
    """How many times the workers were started."""
    status: Status = "finished"
    """How it ended; "unfinished" is said of a directory whose driver was cut off or still runs."""
    how_to_continue: str = field(default="", compare=False)
    """The call that continues a run that did not finish."""
    _history: History | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.path and self.log_dir is not None:
            self.path = str(self.log_dir)
        ranked = [checkpoint for checkpoint, _ in reversed(self.best_checkpoints)]
        if self.checkpoint is not None:
            _name_next_best([self.checkpoint, *(each for each in ranked if each != self.checkpoint)][:2])
        _name_next_best(ranked)

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration of the run, as its metrics tell it."""
        return self.metrics.get("config")

    @cached_property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """Every row of the run; nested metrics are columns like "a/b"."""
        return frame_of(self._history.rows() if self._history else [])

    @cached_property
    def rank_dataframe(self) -> pandas.DataFrame:
        """Every row that every rank reported."""
        return frame_of(self._history.rank_rows() if self._history else [])

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], filesystem: Any = None) -> Result:
        """Read the result of a run from its trial directory, on a filesystem of your own if need be."""
        from paceline.run.history import load_result

        result = load_result(os.fspath(path), filesystem)
        for warning in result.warnings:
            warn_at_users_line(warning)
        return result

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """The kept checkpoint with the best value of a metric (nested: "a/b"); None if none was kept."""
        check_choice(mode, "mode", ("max", "min"))
        if not self.best_checkpoints:
            return None
        scored: list[tuple[float, int, Checkpoint]] = []
        for place, (checkpoint, metrics) in enumerate(self.best_checkpoints):
            value = flattened(metrics).get(metric)
            if isinstance(value, int | float) and not math.isnan(value):
                scored.append((value if mode == "max" else -value, place, checkpoint))
        if not scored:
            keys = {key for _, metrics in self.best_checkpoints for key in flattened(metrics)}
            known = sorted(keys, key=lambda key: (key.split("/")[0] in AUTOFILLED_KEYS, key))  # the user's own first
            raise NoSuchMetricError(f"No kept checkpoint has a number for {metric!r}. There are: {', '.join(known)}.")
        ranked = [checkpoint for *_, checkpoint in sorted(scored, key=lambda each: each[:2], reverse=True)]
        _name_next_best(ranked)
        return ranked[0]

    def __repr__(self) -> str:
        metrics = self.metrics
        shown: dict[str, Any] = {key: value for key, value in metrics.items() if key not in AUTOFILLED_KEYS}
        if TRAINING_ITERATION in metrics:
            shown[TRAINING_ITERATION] = metrics[TRAINING_ITERATION]
        lines = [f"metrics={shown!r}", f"path={self.path!r}", f"checkpoint={self.checkpoint!r}"]
        if self.error is not None:
            message = (str(self.error).splitlines() or [""])[0]
            lines.insert(0, f"error={type(self.error).__name__}({message!r})")
        if self.attempts > 1:
            lines.append(f"attempts={self.attempts}")
        if self.warnings:
            lines.append(f"warnings={len(self.warnings)}")
        return "Result(\n  " + ",\n  ".join(lines) + ",\n)"

    def _repr_html_(self) -> str:
        from paceline.air.reprs import result_html

        return result_html(self)


def _name_next_best(ranked: list[Checkpoint]) -> None:
    """Tell each of them, the best first, where to look if it is damaged: at the next one, the last at the first."""
    for checkpoint, following in zip(ranked, [*ranked[1:], *ranked[:1]], strict=True):
        checkpoint._next_best = None if following is checkpoint else following._where()


def frame_of(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Rows become columns one by one: a list of them would take ten times the memory of the frame."""
    import pandas

    columns: dict[str, list[Any]] = {}
    count = 0
    for count, row in enumerate(rows, 1):
        cells = _cells(row)
        for key, value in cells.items():
            if key not in columns:
                columns[key] = [math.nan] * (count - 1)
            columns[key].append(value)
        if len(cells) < len(columns):
            for key in columns.keys() - cells.keys():
                columns[key].append(math.nan)
    series = {key: pandas.Series(columns.pop(key)) for key in list(columns)}
    return pandas.DataFrame(series, index=pandas.RangeIndex(count))


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's value in each column; an empty dict has none."""
    return {key: value for key, value in flattened(row).items() if not (isinstance(value, dict) and not value)}
