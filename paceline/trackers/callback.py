"""The callback that connects a tracker with a run or a search.

``RunConfig(callbacks=[TrackerCallback(MyTracker())])``
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError
from paceline.run.callbacks import LoggerCallback
from paceline.run.spec import Trial
from paceline.storage.run_dir import RunDir
from paceline.trackers.courier import Courier, Left
from paceline.trackers.delivery import Delivery
from paceline.trackers.tracker import Tracker, outcome_of

SILENT_S = 1.0
"""How long `fit()` waits before it says what it waits for."""
AFTER_INTERRUPT_S = 5.0
"""How long a driver that was interrupted waits at most."""

_claims: set[Path] = set()
"""The cursors that are in use in this process: two trackers of one kind each need their own."""
_claiming = threading.Lock()


class TrackerCallback(LoggerCallback):
    """Sends every run to a tracker, in a thread of its own.

    It has no hook for rows, so it costs a report nothing: the thread reads them from the run's journal.
    """

    wait_at_end_s: float = 60.0
    """How long `fit()` waits at most for the last rows to arrive; 5 s after an interrupt. What is left can be sent
    later: `paceline.trackers.send`."""
    wait_when_down_s: float = 10.0
    """The same for a service that fails whenever it is called."""

    def __init__(
        self, tracker: Tracker, *, wait_at_end_s: float | None = None, wait_when_down_s: float | None = None
    ) -> None:
        _check_is_tracker(tracker)
        if wait_at_end_s is not None:
            self.wait_at_end_s = wait_at_end_s
        if wait_when_down_s is not None:
            self.wait_when_down_s = wait_when_down_s
        self.tracker = tracker
        self._couriers: dict[str, Courier] = {}
        """By experiment: the same callback may serve several at the same time."""
        self._deliveries: dict[str, tuple[Delivery, Path]] = {}
        self._warnings: list[str] = []
        self._say: Callable[[str], None] = _say_nothing

    def setup(self, *args: Any, say: Callable[[str], None] | None = None, **info: Any) -> None:
        self._say = say or _say_nothing
        with contextlib.suppress(Exception):  # what is wrong will be found again, and told, when a run begins
            self.tracker.prepare()

    def log_trial_start(self, trial: Trial) -> None:
        if trial.trial_id in self._deliveries:
            return
        run_dir = RunDir(Path(trial.local_path))
        cursor = _claim(run_dir, self.tracker.name)
        delivery = Delivery(self.tracker, run_dir, cursor.stem, name=str(trial), config=trial.config)
        self._deliveries[trial.trial_id] = delivery, cursor
        if trial.experiment_id not in self._couriers:
            self._couriers[trial.experiment_id] = Courier(self.tracker)
        self._couriers[trial.experiment_id].take(delivery)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if trial.trial_id in self._deliveries:
            delivery, cursor = self._deliveries.pop(trial.trial_id)
            delivery.end(outcome_of("failed" if failed else trial.outcome))
            _claims.discard(cursor)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        courier = self._couriers.pop(trials[0].experiment_id, None) if trials else None
        if courier is None:
            return
        is_interrupted = any(trial.outcome == "interrupted" for trial in trials)
        wait_s = min(AFTER_INTERRUPT_S, self.wait_at_end_s) if is_interrupted else self.wait_at_end_s
        silent_s = min(SILENT_S, wait_s, self.wait_when_down_s)
        if not courier.wait(silent_s):
            self._say(f"Waiting for {self.tracker.label} to take the last rows, for at most {wait_s:.0f} s")
        left = courier.finish(wait_s - silent_s, self.wait_when_down_s - silent_s)
        self._warnings += courier.take_warnings()
        if left.deliveries:
            self._warnings.append(self._how_to_send(left))
        elif courier.has_been_down:
            self._say(f"{self.tracker.label} answers again, and has all rows")

    def take_warnings(self) -> Sequence[str]:
        warnings, self._warnings = self._warnings, []
        return [*warnings, *(text for courier in self._couriers.values() for text in courier.take_warnings())]

    def _how_to_send(self, left: Left) -> str:
        directories = [delivery.run_dir.root for delivery in left.deliveries]
        is_one = len(directories) == 1
        rows = sum(delivery.rows_left() for delivery in left.deliveries)
        whose = directories[0].name if is_one else f"{len(directories)} runs"
        place = str(directories[0] if is_one else directories[0].parent)
        callback = repr(self.registered_as) if self.registered_as else f"{type(self).__name__}(...)"
        file = left.deliveries[0].file
        which = f", file={file!r}" if file != self.tracker.name else ""
        why = f" ({left.problem})" if left.problem else ""
        return (
            f"{self.tracker.label} has not taken the last {rows} rows of {whose}{why}. They are in the journal. To "
            f"send them later: paceline.trackers.send({place!r}, {callback}{which})"
        )


def _check_is_tracker(given: object) -> None:
    if not isinstance(given, Tracker):
        wanted = f"{given.__name__}(...)" if isinstance(given, type) else "an object of a class derived from Tracker"
        raise ConfigError(f"TrackerCallback({given!r}): this is not a tracker. Pass {wanted}.")


def _say_nothing(text: str) -> None:
    pass


def _claim(run_dir: RunDir, name: str) -> Path:
    """The file of a cursor that no other callback in this process uses."""
    with _claiming:
        number, path = 1, run_dir.tracker(name)
        while path in _claims:
            number += 1
            path = run_dir.tracker(f"{name}-{number}")
        _claims.add(path)
    return path
