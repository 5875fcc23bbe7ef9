"""One validation, in a thread of its own: it waits for room, brings workers up, hears what they return, ends them.

Nothing here changes the run: the outcome is a value that the run's own thread acts on (validations.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError, EngineError, StartCancelledError, WorkerError, WorkerFailure
from paceline.engine.serialization import Pickled
from paceline.run import root_cause
from paceline.run.alignment import Meetings
from paceline.run.attempt import Attempt, SetupOfGroup
from paceline.run.checkpoint_target import SharedPath
from paceline.run.messages import AnyFromWorker, CheckpointWanted, Meeting, ValidationReturned, Warned
from paceline.run.validation_room import Place, ValidationRoom
from paceline.run.worker_logs import LogRotation
from paceline.storage.run_dir import RunDir

LISTEN_EVERY_S = 0.05
"""Between two looks at the workers. A thread that waited for them would take turns with the training's."""
ROOM_EVERY_S = 0.5
"""Between two looks whether there is room."""


class ValidationDir(RunDir):
    """A run's directory as the workers of one validation see it: directories and logs of their own."""

    def __init__(self, root: Path, number: int) -> None:
        super().__init__(root)
        self._name = f"validation_{number:06d}"

    def log(self, rank: int) -> Path:
        return self.logs_dir / f"{self._name}_rank_{rank}.log"

    def rank_dir(self, rank: int) -> Path:
        return self.root / self._name / f"rank_{rank}"

    def remove_empty(self) -> None:
        """Most validations leave no files in their working directories."""
        for path in [*(self.root / self._name).glob("rank_*"), self.root / self._name]:
            try:
                path.rmdir()
            except OSError:
                continue


@dataclass(frozen=True)
class Outcome:
    """What came of a validation. Neither metrics nor failures: nobody waited for it."""

    returned: ValidationReturned | None = None
    failures: Sequence[WorkerFailure] = ()
    warnings: list[str] = field(default_factory=list)
    duration_s: float = 0.0


@dataclass
class ValidationJob:
    """What a thread needs to validate one checkpoint."""

    room: ValidationRoom
    place: Place
    make_attempt: Callable[[Place], Attempt]
    """May be called again: workers that have no room yet give way to those of the training."""
    task: Pickled
    setup_of: SetupOfGroup
    directory: ValidationDir
    checkpoint: Path
    cancelled: threading.Event
    timeout_s: float | None
    max_log_bytes: int | None

    def run(self) -> Outcome:
        """Validate; returns early once it is cancelled."""
        try:
            while not self.cancelled.is_set():
                if self.room.enter(self.place) and (outcome := self._validate()) is not None:
                    return outcome
                self.cancelled.wait(ROOM_EVERY_S)
            return Outcome()
        finally:
            self.room.leave(self.place)

    def _validate(self) -> Outcome | None:
        """None if the workers had no room after all."""
        began = time.monotonic()
        attempt = self.make_attempt(self.place)
        try:
            attempt.start(self.task, self.setup_of)
            self.place.has_workers = True
            return self._hear(attempt, began)
        except StartCancelledError:
            self.room.give_way(self.place)
            return None
        except (EngineError, WorkerError) as error:
            return Outcome(failures=[root_cause.startup_failure(error)])
        except (ConfigError, OSError) as error:
            return Outcome(failures=[_failure("startup", str(error))])
        finally:
            attempt.stop()
            self.directory.remove_empty()

    def _hear(self, attempt: Attempt, began: float) -> Outcome:
        meetings = Meetings(attempt.world_size)
        reader = SharedPath(self.directory)
        reader.start = self.checkpoint
        returned: ValidationReturned | None = None
        warnings: list[str] = []
        logs = {rank: self.directory.log(rank) for rank in range(attempt.world_size)}
        rotation = LogRotation(logs, self.max_log_bytes, (), warnings.append)
        while attempt.is_running:
            rotation.look()
            for rank, message, _ in attempt.poll(0.0):
                if isinstance(message, ValidationReturned):
                    returned = message
                elif isinstance(message, Warned):
                    warnings.append(message.text)
                else:
                    _answer(attempt, meetings, reader, rank, message)
            failures = list(attempt.failures) if attempt.failed else self._problem(attempt, meetings, began)
            if failures:
                return Outcome(None, root_cause.with_lost_nodes(failures, attempt.group, attempt.places), warnings)
            if self.cancelled.wait(LISTEN_EVERY_S):
                return Outcome()
        if returned is None:
            return Outcome(failures=attempt.failures or [_failure("engine", "rank 0 ended without a result")])
        warnings += attempt.finish()
        return Outcome(returned, (), warnings, time.monotonic() - began)

    def _problem(self, attempt: Attempt, meetings: Meetings, began: float) -> list[WorkerFailure]:
        """What the driver finds wrong while no rank has failed by itself."""
        missed = None
        if meetings.anyone_waits:
            missed = meetings.disagreement() or meetings.left_alone(attempt.ended)
        if missed is not None:
            return [_failure("report_mismatch", missed[1], missed[0])]
        if self.timeout_s is not None and time.monotonic() - began > self.timeout_s:
            stacks = "\n".join(text for _, text in sorted(attempt.stacks().items()))
            return [_failure("hang", f"it did not return within timeout_s={self.timeout_s:g} s", stacks=stacks)]
        return []


def _answer(attempt: Attempt, meetings: Meetings, reader: SharedPath, rank: int, message: AnyFromWorker) -> None:
    if isinstance(message, Meeting):
        for each, answer in meetings.arrived(rank, message):
            attempt.reply(each, answer)
    elif isinstance(message, CheckpointWanted):
        reader.received(rank, message, (), attempt.reply)


def _failure(kind: Any, message: str, rank: int = 0, stacks: str = "") -> WorkerFailure:
    return WorkerFailure(rank=rank, kind=kind, message=message, time_ns=time.monotonic_ns(), traceback=stacks)
