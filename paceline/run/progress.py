"""What the user sees of a run while it is at work, in words; how it is shown is the display's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.metrics import flattened, number_in, reported
from paceline.air.words import counted, printable
from paceline.air.words import duration_text as duration_text
from paceline.air.words import value_text as value_text
from paceline.run.curves import Curves
from paceline.run.display import (
    Display,
    HeldDisplay,
    Line,
    cell_width,
    clipped,
    clipped_inside,
    mention_page,
    padded,
    wrapped,
)
from paceline.run.observers import Progress, RankState

if TYPE_CHECKING:
    from paceline.air.html import Markup
    from paceline.air.result import Result
    from paceline.run.spec import Trial

_METRICS_IN_A_LINE = 6
_METRICS_IN_A_FRAME = 12
_METRICS_AT_THE_END = 51
_LINES_OF_FACTS = 3


class ShownProgress(Progress):
    """Says what happens to a run. It is also the picture of the run that its display shows."""

    def __init__(self, display: Display, metric: str | None = None) -> None:
        """`metric` is what the user judges the run by, if that is known."""
        self._display = display
        self.curves = Curves(metric) if display.draws_curves else None
        self._row: Mapping[str, Any] = {}
        self._name = ""
        self._run_dir = ""
        self._world_size: int | tuple[int, int] = 0
        self._attempt = 1
        self._checkpoint = ""
        self._started_at = time.monotonic()
        self._had_finished = False
        self._ended: Result | None = None
        self._took_s = 0.0
        self._ask_workers: Callable[[], list[RankState]] = list
        self._last_lines: dict[int, str] = {}

    def started(self, trial: Trial, run_dir: Path | str, world_size: int | tuple[int, int]) -> None:
        self._name = str(trial)
        self._run_dir = str(run_dir)
        self._world_size = world_size
        self._started_at = time.monotonic()
        self._display.say(f"{self._name}: starting {workers_text(world_size)}, files in {run_dir}", "bold")
        mention_page(self._display, os.path.dirname(os.path.dirname(trial.path)))
        self._display.start(self)

    def resized(self, world_size: int, before: int) -> None:
        self._world_size = world_size
        since = f" (previously {before})" if before else ""
        self._display.say(f"{self._name}: {workers_text(world_size)} now{since}")

    def reopened(self, trial: Trial, run_dir: Path | str) -> None:
        self._name = str(trial)
        self._run_dir = str(run_dir)
        self._had_finished = True

    @property
    def is_due(self) -> bool:
        return self._display.is_due

    def row(self, row: Mapping[str, Any]) -> None:
        self._row = row
        if self.curves is not None:
            self.curves.add(row)
        self._display.refresh()

    def checkpoint(self, number: int, path: Path | str) -> None:
        self._checkpoint = Path(path).name or f"checkpoint {number}"

    def validated(self, name: str, index: int, metrics: Mapping[str, Any]) -> None:
        shown = [f"{key} {value_text(value)}" for key, value in islice(flattened(metrics).items(), _METRICS_IN_A_LINE)]
        if len(metrics) > _METRICS_IN_A_LINE:
            shown.append(left_out(len(metrics) - _METRICS_IN_A_LINE))
        self._display.say(f"{self._name}: validated {name} (iteration {index}): {', '.join(shown)}")

    def workers(self, ask: Callable[[], list[RankState]]) -> None:
        self._ask_workers = ask

    def attempt_failed(self, summary: str, *, retry: bool, charged: bool) -> None:
        what_next = "Starting the next attempt." if retry else "The run is not retried."
        what, style = ("failed", "red") if charged else ("ended", "yellow")
        self._display.say(f"{self._name}: attempt {self._attempt} {what}: {summary.rstrip()}\n{what_next}", style)
        self._attempt += retry
        self._display.show_next()

    def output(self, rank: int, text: str) -> None:
        if self.curves is not None:
            self._last_lines[rank] = printable(text.rstrip().rpartition("\n")[2].rpartition("\r")[2])
        self._display.output(f"(rank {rank}) ", text)

    def note(self, text: str) -> None:
        self._display.say(text, "bold")

    def warning(self, text: str) -> None:
        self._display.say(f"Warning: {text}", "yellow")

    def tick(self) -> None:
        self._display.redraw()

    def suspend(self) -> None:
        if not isinstance(self._display, HeldDisplay):
            self._display = HeldDisplay(self._display)

    def resume(self) -> None:
        if isinstance(self._display, HeldDisplay):
            self._display = self._display.released()

    def finished(self, result: Result) -> None:
        self.resume()
        self._display.stop()
        self._took_s = took = number_in(result.metrics, TIME_TOTAL_S) if self._had_finished else self._elapsed_s()
        self._ended = result
        ended = "had finished already:" if self._had_finished else f"{result.status} after"
        heading, *rest = end_report(f"{self._name} {ended}", result, self._run_dir, took)
        self._display.say(heading, "bold green" if result.error is None else "bold red")
        self._display.say("\n".join(rest))

    def close(self) -> None:
        self.resume()
        self._display.close()

    # -- the picture ----------------------------------------------------------------------

    def line(self) -> str:
        metrics = reported_metrics(self._row)
        parts = [f"iteration {self._row.get('training_iteration', '?')}"]
        parts += [f"{name} {value_text(value)}" for name, value in islice(metrics.items(), _METRICS_IN_A_LINE)]
        if len(metrics) > _METRICS_IN_A_LINE:
            parts.append(left_out(len(metrics) - _METRICS_IN_A_LINE))
        if self._checkpoint:
            parts.append(self._checkpoint)
        parts.append(duration_text(self._elapsed_s()))
        return f"{self._name}: {', '.join(parts)}"

    def frame(self, width: int, height: int) -> list[Line]:
        facts = [printable(fact) for fact in (self._name, *self._facts())]
        head = wrapped(facts, width, most=max(1, min(_LINES_OF_FACTS, height)))
        room = min(_METRICS_IN_A_FRAME, height - len(head))
        table = metric_lines(self._row, room, width)
        return [*((line, "bold") for line in head), *((clipped(line, width), "") for line in table)]

    def html(self) -> Markup:
        from paceline.run.progress_html import RunView, run_html

        assert self.curves is not None
        row = self._row if self._ended is None else self._ended.metrics
        view = RunView(self._name, self._facts(), row, self.curves, self._ask_workers(), self._last_lines, self._ended)
        return run_html(view)

    def _facts(self) -> list[str]:
        return [
            workers_text(self._world_size),
            *([f"attempt {self._attempt}"] if self._attempt > 1 else []),
            f"iteration {self._row.get('training_iteration', 0)}",
            self._checkpoint or "no checkpoint yet",
            duration_text(self._elapsed_s()),
        ]

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at if self._ended is None else self._took_s


def end_report(ended: str, result: Result, run_dir: str, elapsed_s: float) -> Iterator[str]:
    """The closing lines: how it ended, the last metrics, and where the files are."""
    iterations = counted(int(number_in(result.metrics, TRAINING_ITERATION)), "iteration")
    yield f"{ended} {iterations}, {duration_text(elapsed_s)}"
    yield from metric_lines(result.metrics, _METRICS_AT_THE_END, and_also=places(result, run_dir))
    if result.how_to_continue:
        yield f"To continue: {result.how_to_continue}"


def metric_lines(
    row: Mapping[str, Any], room: int, width: int | None = None, and_also: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """The user's own metrics in at most so many lines, of which the last counts those that have no place."""
    metrics = reported_metrics(row)
    shown = len(metrics) if len(metrics) <= room else max(0, room - 1)
    pairs = [(name, value_text(value)) for name, value in islice(metrics.items(), shown)]
    lines = aligned_pairs([*pairs, *and_also], width)
    if shown < len(metrics) and room > 0:
        lines.insert(shown, f"  {left_out(len(metrics) - shown)}")
    return lines


def left_out(count: int) -> str:
    return f"… and {count:,} more {'metric' if count == 1 else 'metrics'}"


def aligned_pairs(pairs: Sequence[tuple[str, str]], width: int | None = None) -> list[str]:
    """Names and values as the lines of a table; names leave half of the width to values."""
    names = [printable(name) for name, _ in pairs]
    if width is not None:
        names = [clipped_inside(name, max(1, width // 2)) for name in names]
    widest = max(map(cell_width, names), default=0)
    return [f"  {padded(name, widest)}  {printable(value)}" for name, (_, value) in zip(names, pairs, strict=True)]


def places(result: Result, run_dir: str) -> list[tuple[str, str]]:
    """Where the newest checkpoint and the run's files are."""
    found = [("files", run_dir)]
    checkpoint_path = getattr(result.checkpoint, "path", None)
    if checkpoint_path:
        found.insert(0, ("checkpoint", str(checkpoint_path)))
    return found


def reported_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own metrics; nested ones as ``a/b``."""
    return flattened(reported(row))


def workers_text(world_size: int | tuple[int, int]) -> str:
    return counted(world_size, "worker") if isinstance(world_size, int) else "{} to {} workers".format(*world_size)
