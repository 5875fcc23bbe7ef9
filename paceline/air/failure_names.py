"""The names by which settings speak of failures: exception classes and failure kinds.

A class becomes its qualified name where it is written, and is compared with the names that a worker sends. Nothing is
ever imported to find out.
"""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, get_args

from paceline.air.errors import (
    ConfigError,
    FailureKind,
    HangError,
    ReportMismatchError,
    StorageError,
    WorkerDiedError,
    WorkerFailure,
)

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
FailureNames: TypeAlias = Sequence[type[BaseException] | str] | type[BaseException] | str

_RAISED_FOR: dict[FailureKind, type[Exception]] = {
    "hang": HangError,
    "unresponsive": HangError,
    "report_mismatch": ReportMismatchError,
    "storage": StorageError,
}
"""Kinds of failures for which there is no exception of the user's; WorkerDiedError for all others."""


def failure_names(given: Any, setting: str) -> tuple[str, ...]:
    """What `retry_on` and `never_retry` take, as names: one or several classes, qualified names or kinds."""
    if isinstance(given, str | type):
        given = [given]
    try:
        each = list(given)
    except TypeError:
        raise ConfigError(f"{setting} is {given!r}: {_WHAT_IT_TAKES}") from None
    names = (name for value in each for name in (_name_of(value, setting), *_name_in_worker(value)))
    return tuple(dict.fromkeys(names))


def _name_in_worker(value: Any) -> Iterator[str]:
    """A class of a script or of a function is sent by value, and arrives without what it was nested in."""
    if isinstance(value, type):
        if "." in value.__qualname__ and (value.__module__ == _SCRIPT or "<locals>" in value.__qualname__):
            yield f"{value.__module__}.{value.__name__}"
    elif value.startswith(f"{_SCRIPT}.") and value.count(".") > 1:
        yield f"{_SCRIPT}.{value.rpartition('.')[2]}"


_SCRIPT = "__main__"
_WHAT_IT_TAKES = "give exception classes, qualified names such as 'requests.ConnectionError', or kinds of failures."


def _name_of(value: Any, setting: str) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        return qualified_name(value)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{setting} contains {value!r}: {_WHAT_IT_TAKES}")
    if value in KINDS or "." in value:
        return value
    found = getattr(builtins, value, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return qualified_name(found)
    near = difflib.get_close_matches(value, [*KINDS, *(name for name in vars(builtins) if name.endswith("Error"))], n=1)
    meant = f": did you mean {near[0]!r}?" if near else "."
    raise ConfigError(
        f"{setting} contains {value!r}, which is neither a builtin exception nor a kind of failure{meant} "
        f"Kinds are {', '.join(KINDS)}. Give other exceptions by qualified name, such as 'package.module.MyError'."
    )


def qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def names_of_bases(kind: type[BaseException]) -> tuple[str, ...]:
    """The qualified names of an exception class and of those that it is derived from."""
    return tuple(qualified_name(each) for each in kind.__mro__ if each is not object)


def named_in(failure: WorkerFailure, names: Iterable[str]) -> str:
    """Which of these names fits the failure; empty if none does. Builtins are shown without their module."""
    own = {failure.kind, *failure.exception_types, *filter(None, [failure.exception_type])}
    if failure.kind != "exception":
        own.update(names_of_bases(_RAISED_FOR.get(failure.kind, WorkerDiedError)))
    return next((name.removeprefix("builtins.") for name in names if name in own), "")
