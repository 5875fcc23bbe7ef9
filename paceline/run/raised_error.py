"""The exception that fit() raises: a TrainingFailedError that is also of the user's own type.

`except ValueError` then works around fit() as it does around the train function. The classes are made here, from those
that are loaded already; nothing is imported or unpickled.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

from paceline.air.errors import (
    AttemptFailure,
    EngineLost,
    HangError,
    RemoteError,
    ReportMismatchError,
    StorageError,
    TrainingFailedError,
    WorkerDiedError,
    WorkerFailure,
)
from paceline.engine.failures import ENGINE_LOST, is_plain_import_error

_NOT_AS_TYPE = (OSError, StopIteration, StopAsyncIteration, SyntaxError)
"""What they hold apart from a message would be lost, or mislead whoever catches or shows them: see `error.cause`."""


def training_failed(message: str, failures: Sequence[AttemptFailure]) -> TrainingFailedError:
    """The error of a run, with the cause of its last attempt as its `__cause__`."""
    cause = cause_exception(failures[-1].root_cause)
    error = _as_users_type(message, tuple(failures), cause) if failures[-1].root_cause.kind == "exception" else None
    error = error or TrainingFailedError(message, failures=tuple(failures))
    error.__cause__ = cause
    return error


def cause_exception(failure: WorkerFailure) -> BaseException:
    """The exception that `raise ... from` shows: the user's own class where it is loaded here."""
    if failure.kind == "exception":
        return _rebuilt(failure) or RemoteError(failure.message, failure)
    if failure.exception_type == ENGINE_LOST:
        return EngineLost(failure.message)
    if failure.kind in ("hang", "unresponsive"):
        return HangError(failure.message, failure)
    if failure.kind == "report_mismatch":
        return ReportMismatchError(failure.message, failure)
    if failure.kind == "storage":
        return StorageError(failure.message)
    return WorkerDiedError(failure.message, failure)


def _rebuilt(failure: WorkerFailure) -> BaseException | None:
    """The exception built again from plain arguments; never by importing or unpickling."""
    if failure.exception_type is None or failure.arguments is None:
        return None
    module_name, _, name = failure.exception_type.rpartition(".")
    module = builtins if module_name in ("", "builtins") else sys.modules.get(module_name)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        arguments: dict[str, Any] = {}
        if is_plain_import_error(kind) and len(failure.arguments) == 3:
            arguments = dict(zip(("name", "path"), failure.arguments[1:], strict=True))
        return kind(*failure.arguments[: 1 if arguments else None], **arguments)
    except Exception:  # the class wants other arguments than it stores: RemoteError stands in
        return None


def _as_users_type(
    message: str, failures: tuple[AttemptFailure, ...], cause: BaseException
) -> TrainingFailedError | None:
    """The error as an object of both classes; None if there can be none, or need not be."""
    kind = type(cause)
    if isinstance(cause, (RemoteError, *_NOT_AS_TYPE)) or issubclass(TrainingFailedError, kind):
        return None
    try:
        both: Any = type(TrainingFailedError.__name__, (TrainingFailedError, kind), dict(_AS_IN_TRAINING_FAILED))
        error: TrainingFailedError = both(message, failures=failures)
        _copy_attributes(cause, error)
        return error if str(error) == message and isinstance(error, kind) else None
    except Exception:  # layouts or metaclasses that exclude each other, or a class that allows no others
        return None


def _copy_attributes(cause: BaseException, error: TrainingFailedError) -> None:
    """What the user's own handler may read. Where a name is one of ours, ours counts."""
    for name, value in vars(cause).items():
        if not hasattr(TrainingFailedError, name):
            vars(error).setdefault(name, value)
    for base in type(cause).__mro__:  # what is not in a dict: slots, and what classes in C hold
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType) and name not in _OWN and not hasattr(TrainingFailedError, name):
                with suppress(AttributeError):  # an empty slot, or one that can only be read
                    setattr(error, name, getattr(cause, name))


def _init(self: Any, message: str, *, failures: tuple[AttemptFailure, ...]) -> None:
    """As TrainingFailedError does it; the user's `__init__` may want anything."""
    self.args = (message,)
    self.result, self.failures, self.brief = None, failures, ""


def _pickled(self: TrainingFailedError) -> tuple[Any, ...]:
    """As the plain class: whoever unpickles it may not have the user's."""
    return TrainingFailedError, self.args, vars(self)


_OWN = ("result", "failures", "brief")
_AS_IN_TRAINING_FAILED: dict[str, Any] = {
    "__module__": TrainingFailedError.__module__,
    "__qualname__": TrainingFailedError.__qualname__,
    "__doc__": TrainingFailedError.__doc__,
    "__init__": _init,
    "__str__": Exception.__str__,  # KeyError would show the text in quotes
    "__repr__": Exception.__repr__,
    "__reduce__": _pickled,
    "__reduce_ex__": lambda self, protocol: _pickled(self),
    "__eq__": object.__eq__,
    "__hash__": object.__hash__,  # a dataclass has none
}
"""What a class of the user's must not change."""
