"""A live view of a run in a terminal. Only imported when there is one, because `rich` is not cheap."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.run.progress import (
    Progress,
    duration_text,
    places,
    shown_metrics,
    workers_text,
)
from paceline.run.terminal import GuardedWriter, last_overwrite, printable

if TYPE_CHECKING:
    from paceline.air.result import Result
    from paceline.run.trial import Trial

DRAW_INTERVAL_S = 0.125
_METRICS_IN_VIEW = 12
_LONGEST_LINE = 2000
"""Characters shown of one line of worker output; the log file has all of it."""


class VisibleCursorConsole(Console):
    """Leaves the cursor alone: a driver that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class PrefixedOutput:
    """What workers wrote, as it may be shown in a terminal: each line with its prefix, harmless, and not endless."""

    def __init__(self) -> None:
        self._cut_lines: set[str] = set()
        """Prefixes of the workers whose output is in the middle of a line that was cut."""

    def shown(self, prefix: str, text: str) -> Text | None:
        text = self._without_rest_of_cut_line(prefix, text)
        if not text:
            return None
        shown = Text()
        for line in printable(last_overwrite(text).removesuffix("\n")).split("\n"):
            cut = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… (the log file has the whole line)"
            shown.append(prefix, "cyan")
            shown.append(f"{cut}\n")
        return shown

    def _without_rest_of_cut_line(self, prefix: str, text: str) -> str:
        """A line longer than a screen can hold comes in pieces, of which only the first is shown."""
        if prefix in self._cut_lines:
            _, newline, text = text.partition("\n")
            if newline:
                self._cut_lines.discard(prefix)
        if len(text) - text.rfind("\n") > _LONGEST_LINE:
            self._cut_lines.add(prefix)
        return text


class LiveProgress(Progress):
    """Workers, iteration, metrics, newest checkpoint and elapsed time, drawn a few times a second.

    Nothing draws in the background: `row` and `tick` draw when it is time.
    """

    def __init__(self, writer: GuardedWriter) -> None:
        self._console = VisibleCursorConsole(file=cast("IO[str]", writer), highlight=False, emoji=False)
        self._live: Live | None = None
        self._next_draw_at = 0.0
        self._row: Mapping[str, Any] = {}
        self._name = ""
        self._run_dir = ""
        self._world_size = 0
        self._attempt = 1
        self._checkpoint = ""
        self._output = PrefixedOutput()
        self._started_at = time.monotonic()

    def started(self, trial: Trial, run_dir: Path | str, world_size: int) -> None:
        self._name = str(trial)
        self._run_dir = str(run_dir)
        self._world_size = world_size
        self._started_at = time.monotonic()
        self._print(f"{self._name} started: {workers_text(world_size)}, files in {run_dir}", "bold")
        self._live = Live(self._view(), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def row(self, row: Mapping[str, Any]) -> None:
        self._row = row
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def tick(self) -> None:
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def checkpoint(self, number: int, path: Path | str) -> None:
        self._checkpoint = Path(path).name or f"checkpoint {number}"

    def attempt_failed(self, summary: str, retry: bool) -> None:
        what_next = "Starting the next attempt." if retry else "There is no further attempt."
        self._print(f"Attempt {self._attempt} failed: {printable(summary).rstrip()}\n{what_next}", "red")
        self._attempt += 1

    def output(self, rank: int, text: str) -> None:
        if shown := self._output.shown(f"(rank {rank}) ", text):
            self._console.print(shown, end="", soft_wrap=True)

    def note(self, text: str) -> None:
        self._print(printable(text), "bold")

    def warning(self, text: str) -> None:
        self._print(f"Warning: {printable(text)}", "yellow")

    def finished(self, result: Result) -> None:
        self.close()
        elapsed = duration_text(time.monotonic() - self._started_at)
        metrics = result.metrics
        ending = f"{self._name} {result.status} after {metrics.get('training_iteration', 0)} iterations, {elapsed}"
        self._print(ending, "bold green" if result.error is None else "bold red")
        if table := shown_metrics(metrics):
            self._console.print(_table(table))
        for label, place in places(result, self._run_dir):
            self._print(f"{label}: {place}")
        if result.how_to_continue:
            self._print(f"To continue: {result.how_to_continue}")

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        self._next_draw_at = time.monotonic() + DRAW_INTERVAL_S
        if self._live is not None:
            self._live.update(self._view(), refresh=True)

    def _view(self) -> Group:
        facts = [
            self._name,
            workers_text(self._world_size),
            f"iteration {self._row.get('training_iteration', 0)}",
            self._checkpoint or "no checkpoint yet",
            duration_text(time.monotonic() - self._started_at),
        ]
        if self._attempt > 1:
            facts.insert(2, f"attempt {self._attempt}")
        head = Text(" · ".join(facts), "bold", no_wrap=True, overflow="ellipsis")
        metrics = shown_metrics(self._row, _METRICS_IN_VIEW)
        return Group(head, _table(metrics)) if metrics else Group(head)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)


def _table(metrics: list[tuple[str, str]]) -> Table:
    table = Table("metric", "value", box=box.SIMPLE, header_style="dim")
    table.columns[1].justify = "right"
    for name, value in metrics:
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table
