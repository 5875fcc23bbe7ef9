"""What the user sees of a run while it is at work, in words; how it is shown is the display's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.metrics import flattened, reported
from paceline.air.words import counted, printable
from paceline.air.words import duration_text as duration_text
from paceline.air.words import value_text as value_text
from paceline.run.display import Display, Line, clipped
from paceline.run.observers import Progress

if TYPE_CHECKING:
    from paceline.air.result import Result
    from paceline.run.spec import Trial

_METRICS_IN_A_LINE = 6
_METRICS_IN_A_FRAME = 12


class ShownProgress(Progress):
    """Says what happens to a run. It is also the picture of the run that its display shows."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._row: Mapping[str, Any] = {}
        self._name = ""
        self._run_dir = ""
        self._world_size = 0
        self._attempt = 1
        self._checkpoint = ""
        self._started_at = time.monotonic()

    def started(self, trial: Trial, run_dir: Path | str, world_size: int) -> None:
        self._name = str(trial)
        self._run_dir = str(run_dir)
        self._world_size = world_size
        self._started_at = time.monotonic()
        self._display.say(f"{self._name} started: {workers_text(world_size)}, files in {run_dir}", "bold")
        self._display.start(self)

    def row(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._display.refresh()

    def checkpoint(self, number: int, path: Path | str) -> None:
        self._checkpoint = Path(path).name or f"checkpoint {number}"

    def attempt_failed(self, summary: str, retry: bool) -> None:
        what_next = "Starting the next attempt." if retry else "There is no further attempt."
        self._display.say(f"{self._name}: attempt {self._attempt} failed: {summary.rstrip()}\n{what_next}", "red")
        self._attempt += 1
        self._display.show_next()

    def output(self, rank: int, text: str) -> None:
        self._display.output(f"(rank {rank}) ", text)

    def note(self, text: str) -> None:
        self._display.say(text, "bold")

    def warning(self, text: str) -> None:
        self._display.say(f"Warning: {text}", "yellow")

    def tick(self) -> None:
        self._display.redraw()

    def finished(self, result: Result) -> None:
        self._display.stop()
        heading, *rest = end_report(self._name, result, self._run_dir, self._elapsed_s())
        self._display.say(heading, "bold green" if result.error is None else "bold red")
        self._display.say("\n".join(rest))

    def close(self) -> None:
        self._display.close()

    # -- the picture ----------------------------------------------------------------------

    def line(self) -> str:
        parts = [f"iteration {self._row.get('training_iteration', '?')}"]
        parts += [f"{name} {value}" for name, value in shown_metrics(self._row, _METRICS_IN_A_LINE)]
        if self._checkpoint:
            parts.append(self._checkpoint)
        parts.append(duration_text(self._elapsed_s()))
        return f"{self._name}: {', '.join(parts)}"

    def frame(self, width: int, height: int) -> list[Line]:
        facts = [
            self._name,
            workers_text(self._world_size),
            *([f"attempt {self._attempt}"] if self._attempt > 1 else []),
            f"iteration {self._row.get('training_iteration', 0)}",
            self._checkpoint or "no checkpoint yet",
            duration_text(self._elapsed_s()),
        ]
        table = aligned_pairs(shown_metrics(self._row, _METRICS_IN_A_FRAME))
        lines = [(" · ".join(facts), "bold"), *((line, "") for line in table)]
        return [(clipped(printable(text), width), style) for text, style in lines[: max(1, height)]]

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at


def end_report(name: str, result: Result, run_dir: str, elapsed_s: float) -> Iterator[str]:
    """The closing lines: how it ended, the last metrics, and where the files are."""
    metrics = result.metrics
    iterations = metrics.get("training_iteration", 0)
    yield f"{name} {result.status} after {iterations} iterations, {duration_text(elapsed_s)}"
    yield from aligned_pairs([*shown_metrics(metrics), *places(result, run_dir)])
    if result.how_to_continue:
        yield f"To continue: {result.how_to_continue}"


def aligned_pairs(pairs: list[tuple[str, str]]) -> list[str]:
    """Names and values as the lines of a table."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in pairs]


def places(result: Result, run_dir: str) -> list[tuple[str, str]]:
    """Where the newest checkpoint and the run's files are."""
    found = [("files", run_dir)]
    checkpoint_path = getattr(result.checkpoint, "path", None)
    if checkpoint_path:
        found.insert(0, ("checkpoint", str(checkpoint_path)))
    return found


def shown_metrics(row: Mapping[str, Any], limit: int | None = None) -> list[tuple[str, str]]:
    """The user's own metrics as short texts; nested ones as ``a/b``."""
    return [(name, value_text(value)) for name, value in islice(flattened(reported(row)).items(), limit)]


def workers_text(world_size: int) -> str:
    return counted(world_size, "worker")
