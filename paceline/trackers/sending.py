"""Send what a tracker has not got yet, of runs that have ended."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError, RestoreError, RunLockedError
from paceline.air.plugins import made_by_name
from paceline.run.found_runs import find_run_dirs
from paceline.run.records import last_ending
from paceline.storage import lock
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.trackers.callback import TrackerCallback
from paceline.trackers.delivery import Delivery
from paceline.trackers.tracker import Tracker, outcome_of

__all__ = ["send"]


def send(path: str | os.PathLike[str], tracker: Tracker | TrackerCallback | str, *, file: str | None = None) -> int:
    """Send the rows that a tracker did not get while a run was at work, and close the tracker's run.

    `path` is the directory of a run, or one that has runs in it: a search, or an experiment. `tracker` is what was in
    `RunConfig(callbacks=[...])`. Returns how many rows were sent. What the tracker raises is raised here; calling it
    again continues where it broke off. Runs that were never tracked are sent from their beginning.

    If a run has several trackers of one kind, `file` says which one is meant: ``mlflow-2`` is the second, as in the
    run's directory `trackers`. By default it is the first.
    """
    sends = _tracker(tracker)
    name = sends.name if file is None else file
    if not re.fullmatch(rf"{re.escape(sends.name)}(-\d+)?", name):
        raise ConfigError(f"file={file!r} is not a file of this tracker: give {sends.name}, {sends.name}-2, ...")
    place = resolve_storage(path)
    if not isinstance(place, Path):
        raise ConfigError(f"{path} is a URI: give the run's directory on the machine that ran it.")
    runs = find_run_dirs(place)
    if not runs:
        raise RestoreError(f"{path} holds no run of paceline: there is no journal.jsonl in it or one level below.")
    return sum(_send(sends, run_dir, name) for run_dir in runs)


def _send(tracker: Tracker, run_dir: RunDir, file: str) -> int:
    if lock.is_held(run_dir.lock):
        raise RunLockedError(f"{run_dir.root} is at work: its driver sends its rows.")
    delivery = Delivery(tracker, run_dir, file)
    rows = delivery.rows_left()
    delivery.end(outcome_of(last_ending(run_dir)))
    while not delivery.is_done:
        delivery.advance()
    return rows


def _tracker(given: Tracker | TrackerCallback | str) -> Tracker:
    made: Any = made_by_name("trackers", given) if isinstance(given, str) else given
    if isinstance(made, TrackerCallback):
        return made.tracker
    if isinstance(made, Tracker):
        return made
    raise ConfigError(f"{given!r} is not a tracker: give the callback that was in RunConfig(callbacks=[...]).")
