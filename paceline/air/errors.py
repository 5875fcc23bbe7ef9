"""Every error paceline raises, in one tree.

PacelineError
├── ConfigError (ValueError)             a setting that cannot work, rejected where it was written
│   ├── WorkerCountError                 a setting that cannot work with this number of workers
│   ├── UnknownArgumentError (TypeError) a keyword argument that does not exist, and the one that was meant
│   └── MissingDatasetError (KeyError)   a dataset that is needed or named, and was not given
├── MetricError (TypeError, ValueError)  a reported value that is not a plain value
├── SerializationError (TypeError)       something that cannot travel to a worker, with the path to it
├── SessionMisuseError (RuntimeError)    a session function used where it cannot work
├── CheckpointError
│   ├── CheckpointCorruptError           content does not match its manifest
│   └── CheckpointNotFoundError (FileNotFoundError)
├── StorageError (OSError)               the run's storage refused: full, read-only, gone
│   ├── RunLockedError                   another driver is writing this trial directory
│   └── JournalCorruptError              records in the middle of a journal are damaged
├── DataError (ValueError)               rows that cannot be read or made, with the file, column or function
│   └── DataNotFoundError (FileNotFoundError)  no such file, or a pattern that matches none
├── RestoreError (RuntimeError)          a run that cannot be continued, and why
│   ├── RunNotFoundError                 there is no run or search at a place
│   └── NewerVersionError                a newer version of paceline has written its files
├── LogsNotHereError (RuntimeError)      logs stay on the driver's machine, which is another one
├── RequestError (RuntimeError)          a live run that could not be asked for something, and why
├── EngineError (RuntimeError)           workers could not be started or were lost
│   ├── StartupTimeoutError              workers did not get ready in time
│   │   └── NoRoomError                  there was no room for them within resource_timeout_s
│   ├── StartCancelledError              the run was stopped while it waited for room
│   └── EngineLost                       the cluster is gone; a run continues on another one
├── TrainingFailedError (RuntimeError)   fit() failed for good; carries .result and .root_cause
├── TuneError (RuntimeError)             a search failed as a whole
│   └── TuneConfigError (ConfigError)    a setting of a search that cannot work
└── WorkerError (RuntimeError)           stands for what ended one worker (cause of the above)
    ├── RemoteError                      the user's exception, when its class is not loaded here
    ├── WorkerDiedError                  exit, signal, out of memory
    ├── HangError                        no progress, or no sign of life
    └── ReportMismatchError              ranks called report() a different number of times

Outside the tree, because `except Exception` must not swallow them:
StopTraining (BaseException)             raised by report() in a worker that shall stop
KeyboardInterrupt                        fit() was interrupted; carries .result (see `interruption`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from paceline.air.result import Result

FailureKind = Literal[
    "exception",  # the user's function raised
    "exit",  # the process called exit with a code other than zero
    "premature_exit",  # the process ended with code zero before its function returned
    "signal",  # the process was killed by a signal
    "oom",  # the same, and memory was near its limit
    "startup",  # the worker never got to the user's first line
    "hang",  # no progress within hang_timeout_s
    "unresponsive",  # no heartbeat: stopped, or stuck holding the interpreter
    "report_mismatch",  # ranks reported unequally often
    "storage",  # a checkpoint could not be stored
    "engine",  # the machinery that holds the workers was lost, on a machine that is still there
    "node_lost",  # the machine that the worker was on is gone; not charged to max_failures
    "preempted",  # somebody is taking the machine away, or asked the worker to end; not charged to max_failures
    "worker_count",  # an elastic run came to a size that its loop cannot work with; not charged to max_failures
]


@dataclass(frozen=True)
class WorkerFailure:
    """What ended one worker, as data: safe to log, to store and to send."""

    rank: int
    kind: FailureKind
    message: str
    """One line: what happened."""
    time_ns: int = 0
    """By the monotonic clock of the driver's machine, stamped as early as possible; 0 if unknown."""
    exception_type: str | None = None
    """Qualified name of the user's exception class, e.g. ``builtins.ValueError``."""
    exception_types: tuple[str, ...] = ()
    """The same of that class and of all that it is derived from."""
    traceback: str = ""
    """The worker's traceback or stack dump as text."""
    exit_code: int | None = None
    signal: int | None = None
    log_path: str | None = None
    attempt: int = 0
    hint: str = ""
    """What to do about it, where that is known."""
    arguments: tuple[object, ...] | None = None
    """The exception's arguments, where all of them are plain values."""
    collateral: bool = False
    """True for a failure that looks like the consequence of a peer's death."""
    step: int | None = None
    """The index of the rank's last report, counted from 1 over all attempts; None if it did not get to work."""


class PacelineError(Exception):
    """Base of every error of this library."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the user's lines without ours. Python itself does not ask for it."""
        from paceline.air.notebook_traceback import without_our_end

        return without_our_end(self)


class ConfigError(PacelineError, ValueError):
    """A setting that cannot work."""


class UnknownArgumentError(ConfigError, TypeError):
    """A keyword argument that does not exist."""


class WorkerCountError(ConfigError):
    """A setting that cannot work with this number of workers, but with others. An elastic run leaves such a size."""


class MissingDatasetError(ConfigError, KeyError):
    """A dataset that is needed or named, and was not given."""

    __str__ = Exception.__str__  # KeyError would show the text in quotes


class MetricError(PacelineError, TypeError, ValueError):
    """A reported value that is not a plain value."""


class SerializationError(PacelineError, TypeError):
    """Something the user handed over cannot travel to a worker process."""


class SessionMisuseError(PacelineError, RuntimeError):
    """A session function used where it cannot work."""


class CheckpointError(PacelineError):
    """A checkpoint that cannot be used."""


class CheckpointCorruptError(CheckpointError):
    """A checkpoint whose content does not match its manifest."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint that is not where it should be."""


class StorageError(PacelineError, OSError):
    """The run's storage refused an operation."""


class RunLockedError(StorageError):
    """Another driver is writing this trial directory."""


class JournalCorruptError(StorageError):
    """A journal with a record that does not match its checksum, though whole records follow."""


class DataError(PacelineError, ValueError):
    """Rows that cannot be read or made: names the file, the column or the function."""


class DataNotFoundError(DataError, FileNotFoundError):
    """There is no such file, or nothing matches the pattern."""


class RestoreError(PacelineError, RuntimeError):
    """A run that cannot be continued."""


class NewerVersionError(RestoreError):
    """Files that a newer version of paceline has written."""


class LogsNotHereError(PacelineError, RuntimeError):
    """The logs of a run are on another machine."""


class RequestError(PacelineError, RuntimeError):
    """A driver was asked for something and cannot do it, or nobody drives the run."""


class RunNotFoundError(RestoreError):
    """There is no run or search at a place, or no such place."""


class EngineError(PacelineError, RuntimeError):
    """Workers could not be started, or the engine lost them."""


class StartupTimeoutError(EngineError):
    """Workers did not get ready in time."""


class NoRoomError(StartupTimeoutError):
    """There was no room for the workers within resource_timeout_s."""


class StartCancelledError(EngineError):
    """The run was stopped while it waited for room for its workers."""


class EngineLost(EngineError):  # noqa: N818  (it is a state of the engine, which one waits for or leaves)
    """The cluster that held the workers is gone. A run can be restored on another one."""


class WorkerError(PacelineError, RuntimeError):
    """What ended one worker; `.failure` holds the facts."""

    def __init__(self, message: str, failure: WorkerFailure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class RemoteError(WorkerError):
    """Stands in for a worker's exception whose class is not loaded in the driver."""


class WorkerDiedError(WorkerError):
    """A worker process ended without delivering a result."""


class HangError(WorkerError):
    """A worker made no progress, or gave no sign of life."""


class NoSuchMetricError(ConfigError, RuntimeError):
    """A metric was asked for that no row has."""


class ReportMismatchError(WorkerError):
    """Ranks called report() a different number of times."""


@dataclass(frozen=True)
class AttemptFailure:
    """Why one attempt ended: its root cause and what followed from it."""

    attempt: int
    root_cause: WorkerFailure
    collateral: tuple[WorkerFailure, ...] = field(default=())
    is_charged: bool = True
    """Whether it counts towards max_failures."""
    made_progress: bool = False
    """Whether the attempt came further than those before it."""


class TrainingFailedError(PacelineError, RuntimeError):
    """Training failed for good.

    `.result` is what was reached (its `.error` is this error), `.root_cause` the
    failure that ended the last attempt, `.failures` one entry per failed attempt.

    Where the class of the user's exception is loaded in the driver, the error that fit() raises is an instance of that
    class too, so that `except ValueError` works. `.cause` is the user's exception itself.
    """

    def __init__(
        self,
        message: str,
        *,
        result: Result | None = None,
        failures: tuple[AttemptFailure, ...] = (),
    ) -> None:
        super().__init__(message)
        self.result = result
        self.failures = failures
        self.brief = ""
        """The message without the traceback of the worker, for who shows that in another way."""

    def _render_traceback_(self) -> list[str]:
        """The user's lines on the rank that failed."""
        from paceline.air.notebook_traceback import rendered

        return rendered(self)

    @property
    def root_cause(self) -> WorkerFailure | None:
        return self.failures[-1].root_cause if self.failures else None

    @property
    def collateral(self) -> tuple[WorkerFailure, ...]:
        return self.failures[-1].collateral if self.failures else ()

    @property
    def cause(self) -> BaseException | None:
        """The user's exception built again, or what stands in for it."""
        return self.__cause__

    @property
    def rank(self) -> int | None:
        """The rank that failed first."""
        return self.root_cause.rank if self.root_cause is not None else None

    @property
    def step(self) -> int | None:
        """The index of that rank's last report, from 1; 0 before the first one, None if it did not get to work."""
        return self.root_cause.step if self.root_cause is not None else None

    @property
    def traceback(self) -> str:
        """That rank's traceback or stack as text."""
        return self.root_cause.traceback if self.root_cause is not None else ""


class TuneError(PacelineError, RuntimeError):
    """A search failed as a whole: a setting or a callback was wrong, trials of `tune.run` ended with errors, or
    `fail_fast` asked for it."""


class TuneConfigError(ConfigError, TuneError):
    """A setting of a search that cannot work."""


class StopTraining(BaseException):
    """Raised by report() in a worker when the run shall stop; `finally` blocks run."""

    continues = False
    """Another attempt follows, which starts from the newest checkpoint: the run was preempted, for one."""


def interruption(message: str, result: Result | None) -> KeyboardInterrupt:
    """What fit() raises after Ctrl-C: a KeyboardInterrupt whose `.result` is what was reached.

    Not a subclass: only for KeyboardInterrupt itself does the interpreter exit as
    interrupted programs do (130 in a shell).
    """
    raised = KeyboardInterrupt(message)
    raised.result = result  # type: ignore[attr-defined]
    return raised
