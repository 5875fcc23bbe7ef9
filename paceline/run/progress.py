"""What the user sees of a run while it goes on.

`Progress` itself is silent. `PlainProgress` writes lines for pipes, files and notebooks;
`live_progress.LiveProgress` keeps a live view in a terminal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.metrics import flattened
from paceline.run.terminal import GuardedWriter, RankPrefixer, last_overwrite

if TYPE_CHECKING:
    from paceline.air.result import Result
    from paceline.run.trial import Trial

PLAIN_INTERVAL_S = 5.0
_METRICS_IN_A_LINE = 6
_LONGEST_VALUE = 40


class Progress:
    """Shows nothing: what `verbose=0` gets. Every kind of progress has these methods."""

    def started(self, trial: Trial, run_dir: Path | str, world_size: int) -> None:
        """The run begins."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row was reported. Called for every row, so it must cost next to nothing."""

    def checkpoint(self, number: int, path: Path | str) -> None:
        """A checkpoint was committed."""

    def attempt_failed(self, summary: str, retry: bool) -> None:
        """An attempt failed; `retry` says whether another one follows."""

    def output(self, rank: int, text: str) -> None:
        """A worker wrote something, as `LogFollower` delivers it."""

    def note(self, text: str) -> None:
        """Something that happened."""

    def warning(self, text: str) -> None:
        """Something the user should know."""

    def tick(self) -> None:
        """Time has passed. Called now and then while nothing else happens."""

    def finished(self, result: Result) -> None:
        """The run has ended, well or not."""

    def close(self) -> None:
        """Leave the terminal as it was. Called last, whatever happened; may be called twice."""


class PlainProgress(Progress):
    """Plain lines: the beginning, the end, what is important, and a row every few seconds.

    `detailed` False leaves out rows and worker output.
    """

    def __init__(self, writer: GuardedWriter, detailed: bool, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._writer = writer
        self._detailed = detailed
        self._interval_s = interval_s
        self._prefixer = RankPrefixer()
        self._next_row_at = 0.0 if detailed else float("inf")
        self._name = ""
        self._attempt = 1
        self._run_dir = ""
        self._checkpoint = ""
        self._started_at = time.monotonic()

    def started(self, trial: Trial, run_dir: Path | str, world_size: int) -> None:
        self._name = str(trial)
        self._run_dir = str(run_dir)
        self._started_at = time.monotonic()
        self._line(f"{self._name} started: {workers_text(world_size)}, files in {run_dir}")

    def row(self, row: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next_row_at:
            self._next_row_at = time.monotonic() + self._interval_s
            self._line(self._row_text(row))

    def _row_text(self, row: Mapping[str, Any]) -> str:
        parts = [f"iteration {row.get('training_iteration', '?')}"]
        parts += [f"{name} {value}" for name, value in shown_metrics(row, _METRICS_IN_A_LINE)]
        if self._checkpoint:
            parts.append(self._checkpoint)
        parts.append(duration_text(time.monotonic() - self._started_at))
        return f"{self._name}: {', '.join(parts)}"

    def checkpoint(self, number: int, path: Path | str) -> None:
        self._checkpoint = Path(path).name or f"checkpoint {number}"

    def attempt_failed(self, summary: str, retry: bool) -> None:
        what_next = "Starting the next attempt." if retry else "There is no further attempt."
        self._line(f"{self._name}: attempt {self._attempt} failed: {summary.rstrip()}\n{what_next}")
        self._attempt += 1
        if self._detailed:
            self._next_row_at = 0.0

    def output(self, rank: int, text: str) -> None:
        if self._detailed:
            self._writer.write(self._prefixer.lines(rank, last_overwrite(text)))

    def note(self, text: str) -> None:
        self._line(text)

    def warning(self, text: str) -> None:
        self._line(f"Warning: {text}")

    def finished(self, result: Result) -> None:
        elapsed = time.monotonic() - self._started_at
        self._line("\n".join(end_report(self._name, result, self._run_dir, elapsed)))

    def close(self) -> None:
        self._writer.write(self._prefixer.end_line())

    def _line(self, text: str) -> None:
        self._writer.write(f"{self._prefixer.end_line()}{text}\n")


def make_progress(verbose: int, stream: TextIO | None = None) -> Progress:
    """The progress for `RunConfig(verbose=...)`: 0 silent, 1 beginning and end, 2 and 3 everything."""
    if verbose <= 0:
        return Progress()
    writer = GuardedWriter(stream if stream is not None else sys.stdout)
    if verbose == 1 or not writer.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainProgress(writer, detailed=verbose > 1)
    from paceline.run.live_progress import LiveProgress  # imports rich, which only a terminal needs

    return LiveProgress(writer)


def end_report(name: str, result: Result, run_dir: str, elapsed_s: float) -> Iterator[str]:
    """The closing lines: how it ended, the last metrics, and where the files are."""
    metrics = result.metrics
    iterations = metrics.get("training_iteration", 0)
    yield f"{name} {result.status} after {iterations} iterations, {duration_text(elapsed_s)}"
    table = [*shown_metrics(metrics), *places(result, run_dir)]
    width = max(len(name) for name, _ in table)
    for label, value in table:
        yield f"  {label:<{width}}  {value}"
    if result.how_to_continue:
        yield f"To continue: {result.how_to_continue}"


def places(result: Result, run_dir: str) -> list[tuple[str, str]]:
    """Where the newest checkpoint and the run's files are."""
    found = [("files", run_dir)]
    checkpoint_path = getattr(result.checkpoint, "path", None)
    if checkpoint_path:
        found.insert(0, ("checkpoint", str(checkpoint_path)))
    return found


def shown_metrics(row: Mapping[str, Any], limit: int | None = None) -> list[tuple[str, str]]:
    """The user's own metrics as short texts; nested ones as ``a/b``."""
    own = {key: value for key, value in row.items() if key not in AUTOFILLED_KEYS}
    return [(name, value_text(value)) for name, value in islice(flattened(own).items(), limit)]


def value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def workers_text(world_size: int) -> str:
    return "1 worker" if world_size == 1 else f"{world_size} workers"


def duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
