"""Reporters for ``RunConfig(progress_reporter=...)``: tables with chosen columns, or a class of the user's own."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from paceline.air.cells import shell
from paceline.air.checks import check_choice, check_seconds, names_what_was_meant, whole_number
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.metrics import nested_get
from paceline.air.words import counted, duration_text
from paceline.run.display import GuardedWriter
from paceline.tune.progress.table import NEVER, Column, metric_columns, parameter_columns, table_of
from paceline.tune.progress.texts import parameters_text, shown_value

if TYPE_CHECKING:
    from paceline.run.spec import Trial

_ORDER = ("RUNNING", "PAUSED", "TERMINATED", "ERROR", "PENDING")
_WIDEST_TABLE = 400


class ProgressReporter:
    """Shows an experiment in the user's own way: derive from it and write `should_report` and `report`."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Called once when the experiment begins. `start_time` is in seconds since 1970.

        Further keywords may be added; `verbose` is one of them.
        """

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """Take metric and mode of the search; False where the reporter has its own."""
        return True

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Whether `report` shall be called now. Asked several times a second, and at the end with `done`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method should_report(self, trials, done=False).")

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Show the trials. `sys_info` are lines about resources and scheduler."""
        raise NotImplementedError(f"{type(self).__name__} needs a method report(self, trials, done, *sys_info).")


class TableReporter(ProgressReporter):
    """What the reporters of this module have in common: the text of a report, and when one is due."""

    @names_what_was_meant(columns="did you mean metric_columns?")
    def __init__(
        self,
        *,
        metric_columns: Sequence[str] | Mapping[str, str] | None = None,
        parameter_columns: Sequence[str] | Mapping[str, str] | None = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        """Columns are lists of names or {name: title}; None shows what was searched and reported.

        `infer_limit` says how many reported metrics are shown then. A report comes every
        `max_report_frequency` seconds; `print_intermediate_tables` False keeps its tables for
        the end (None: by `verbose`). `sort_by_metric` puts the best trials first.
        """
        self._metric_columns = None if metric_columns is None else _titles(metric_columns, "metric_columns")
        self._parameter_columns = None if parameter_columns is None else _titles(parameter_columns, "parameter_columns")
        self._added_metrics: dict[str, str] = {}
        self._added_parameters: dict[str, str] = {}
        self._total_samples = total_samples
        self._max_progress_rows = whole_number(max_progress_rows, "max_progress_rows", least=1)
        self._max_error_rows = whole_number(max_error_rows, "max_error_rows", least=1)
        self._max_column_length = whole_number(max_column_length, "max_column_length", least=1)
        check_seconds(max_report_frequency, "max_report_frequency", zero_allowed=True)
        self._interval_s = max_report_frequency
        self._infer_limit = whole_number(infer_limit, "infer_limit", least=0)
        self._intermediate_tables = print_intermediate_tables
        if mode is not None:
            check_choice(mode, "mode", ("min", "max"))
        self._metric = metric
        self._mode = mode
        self._sort_by_metric = sort_by_metric
        self._started_at = time.time()
        self._last_report_at = float("-inf")

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._started_at = self._started_at if start_time is None else start_time
        self._total_samples = self._total_samples or total_samples
        self.set_search_properties(metric, mode)
        if self._intermediate_tables is None:
            self._intermediate_tables = kwargs.get("verbose", 2) > 1

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        return True

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show another metric beside the others."""
        self._added_metrics[metric] = metric if representation is None else representation

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show another parameter beside the others."""
        self._added_parameters[parameter] = parameter if representation is None else representation

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        now = time.monotonic()
        if not done and now < self._last_report_at + self._interval_s:
            return False
        self._last_report_at = now
        return True

    def _text(self, trials: list[Trial], done: bool, sys_info: Iterable[str]) -> str:
        groups = {status: [trial for trial in trials if trial.status == status] for status in _ORDER}
        lines = [self._headline(trials, groups), *(line for line in sys_info if line)]
        if best := self._best(trials):
            found = f"{self._metric} {shown_value(nested_get(best.last_result, self._metric or ''))}"
            lines.append(f"Best trial: {best}, {found}, {parameters_text(best.evaluated_params)}")
        if trials and (done or self._intermediate_tables is not False):
            lines += ["", *self._progress_table(trials, groups)]
        if groups["ERROR"]:
            lines += ["", *self._error_table(groups["ERROR"])]
        return "\n".join(lines) + "\n"

    def _headline(self, trials: list[Trial], groups: Mapping[str, list[Trial]]) -> str:
        trials_text = counted(len(trials), "trial")
        if self._total_samples:
            trials_text = f"{len(trials)}/{counted(self._total_samples, 'trial')}"
        statuses = ", ".join(f"{len(members)} {status}" for status, members in groups.items() if members)
        elapsed = duration_text(max(0.0, time.time() - self._started_at))
        return f"== {trials_text} ({statuses or 'none yet'}), {elapsed} =="

    def _progress_table(self, trials: list[Trial], groups: Mapping[str, list[Trial]]) -> list[str]:
        if self._sort_by_metric and self._metric:
            ordered = sorted(trials, key=self._goodness, reverse=True)
        else:
            ordered = [trial for members in groups.values() for trial in reversed(members)]
        shown = ordered[: self._max_progress_rows]
        inferred = metric_columns(shown, self._metric, self._infer_limit, self._metric_columns)
        columns = [
            Column("trial", str, whole=True),
            Column("status", lambda trial: trial.status),
            *parameter_columns(shown, self._parameter_columns),
            *parameter_columns(shown, self._added_parameters),
            *(column for column in inferred if column.rank != NEVER),  # beyond infer_limit: as the user wishes
            *metric_columns(shown, self._metric, 0, self._added_metrics),
        ]
        columns = list({column.title: column for column in columns}.values())  # an added one may be shown anyway
        table = table_of(columns, shown, _WIDEST_TABLE, self._max_column_length)
        lines = table.lines
        if more := len(ordered) - len(shown):
            lines.append(f"… {more} more {'trial' if more == 1 else 'trials'}")
        if missing := table.missing_line(_WIDEST_TABLE):
            lines.append(missing)
        return lines

    def _error_table(self, failed: list[Trial]) -> list[str]:
        shown = failed[: self._max_error_rows]
        columns = [
            Column("failed trial", str, whole=True),
            Column("iter", lambda trial: str(trial.last_result.get(TRAINING_ITERATION, 0)), right=True),
            Column("error file", lambda trial: f"{trial.local_path}/error.txt", whole=True),
        ]
        lines = table_of(columns, shown, sys.maxsize, self._max_column_length).lines
        if len(failed) > len(shown):
            lines.append(f"… {len(failed) - len(shown)} more failed")
        return lines

    def _best(self, trials: list[Trial]) -> Trial | None:
        if not self._metric or not self._mode:
            return None
        best = max(trials, key=self._goodness, default=None)
        return best if best is not None and isfinite(self._goodness(best)) else None

    def _goodness(self, trial: Trial) -> float:
        """Higher is better; without a usable value, worst."""
        value = nested_get(trial.last_result, self._metric or "")
        if not isinstance(value, int | float) or not isfinite(value):
            return float("-inf")
        return -value if self._mode == "min" else value


class CLIReporter(TableReporter):
    """Prints tables of the trials to standard output."""

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        GuardedWriter(sys.stdout).write(self._text(trials, done, sys_info))


class JupyterNotebookReporter(TableReporter):
    """Shows the tables in the notebook's cell; with `overwrite`, in one place. Elsewhere it prints them."""

    def __init__(self, overwrite: bool = True, **columns_and_limits: Any) -> None:
        """The other arguments are those of CLIReporter."""
        super().__init__(**columns_and_limits)
        self._overwrite = overwrite
        self._handle: Any = None

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        text = self._text(trials, done, sys_info)
        if not self._display(f"<pre>{html.escape(text)}</pre>"):
            GuardedWriter(sys.stdout).write(text)

    def _display(self, content: str) -> bool:
        """Show it in the cell; False where there is no notebook."""
        if shell() is None:
            return False
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(content), display_id=True)
        elif self._overwrite:
            self._handle.update(HTML(content))
        else:
            display(HTML(content))
        return True


def _titles(columns: Any, what: str) -> dict[str, str]:
    """{key: title} of a list of keys or of such a dict."""
    if isinstance(columns, str) or not isinstance(columns, Mapping | Sequence):
        raise ConfigError(f"{what} is {columns!r}: give a list of names, or a dict from names to titles.")
    titles = dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}
    for key, title in titles.items():
        if not isinstance(key, str) or not isinstance(title, str):
            raise ConfigError(f"{what} holds {key!r}: {title!r}, but names and titles of columns are strings.")
    return titles
