"""``paceline stop``: asks the driver of a live run or search to end it at the next report."""

from __future__ import annotations

import argparse
import time

from paceline.cli.arguments import seconds
from paceline.cli.output import add_format, note, write, write_csv, write_json
from paceline.cli.places import add_path, driven_at, is_alive, live_at, shown_place
from paceline.run.decisions import INTERRUPT_WAIT_S, KILLED
from paceline.run.found_runs import RunSummary
from paceline.run.requests import request_stop
from paceline.tune.experiment.summary import ExperimentSummary
from paceline.view.catalog import run_facts

DESCRIPTION = """\
Asks for a graceful stop, as Ctrl-C in the driver's terminal does: every rank ends at its next report, and the run can
be continued later. Of a search, all its trials stop. The command returns when the driver has agreed.
"""

_POLL_S = 0.2
PATIENCE_S = 2.0
"""A run that takes longer to stop is worth a word."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a live run, trial or search")
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="for the answer (default: %(default)s)"
    )
    parser.add_argument("--wait", action="store_true", help="return when the run has ended")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Ask, and say so."""
    live = live_at(given.path)
    request_stop(driven_at(live), timeout_s=given.timeout)
    if given.wait:
        _wait(live)
    row = {"path": live.path, "stop": "requested", "ended": given.wait}
    if given.format == "json":
        write_json(row)
    elif given.format == "csv":
        write_csv([row])
    elif given.wait:
        killed = " Ranks that came to no report were killed." if _were_killed(live) else ""
        write(f"{shown_place(live.path)} has stopped.{killed}")
    else:
        write(f"{shown_place(live.path)} stops at its next report.")
    return 0


def _wait(live: RunSummary | ExperimentSummary) -> None:
    began, is_told = time.monotonic(), False
    while is_alive(live):
        if not is_told and time.monotonic() - began >= PATIENCE_S:
            note(f"waiting for the next report. Ranks that come to none within {INTERRUPT_WAIT_S:g} s are killed.")
            is_told = True
        time.sleep(_POLL_S)


def _were_killed(live: RunSummary | ExperimentSummary) -> bool:
    return isinstance(live, RunSummary) and KILLED in run_facts(live.path).warnings
