"""Which of several failures came first, and how the user is told about it."""

from __future__ import annotations

import builtins
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.air.cells import with_cells
from paceline.air.errors import (
    AttemptFailure,
    EngineError,
    EngineLost,
    NoRoomError,
    StartupTimeoutError,
    WorkerError,
    WorkerFailure,
)
from paceline.engine.base import WorkerGroup
from paceline.engine.failures import ENGINE_LOST
from paceline.engine.places import WorkerPlace
from paceline.run.backend import Backend
from paceline.run.worker_logs import older_log

_TRACEBACK_BEGINS = "Traceback (most recent call last):"
_FIRST_LINES = 7
"""Of a long traceback: its heading and two or three frames, which are the user's own."""

_CHAIN = re.compile(
    "\n(?:The above exception was the direct cause of the following exception"
    "|During handling of the above exception, another exception occurred):\n"
)
_DEATHS = ("signal", "oom", "exit", "premature_exit")
_CRASHES = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""Signals that a process brings upon itself."""
_COLLATERAL_PHRASES = (
    "connection reset",
    "connection closed by peer",
    "connection refused",
    "connection timed out",
    "no route to host",
    "broken pipe",
    "socket closed",
    "peer closed",
    "remote process exited",
    "rank has been lost",
)
"""What errors of any network layer say of a peer that is gone; a framework's Backend knows its own."""


def attempt_failure(
    attempt: int,
    failures: Sequence[WorkerFailure],
    backend: type[Backend] = Backend,
    steps: Mapping[int, int] | None = None,
) -> AttemptFailure:
    """Choose the root cause: the earliest failure that is not the echo of another.

    `steps` are the indices of the last reports, by rank.
    """
    marked = [
        replace(
            failure,
            attempt=attempt,
            collateral=is_echo(failure, failures, backend),
            traceback=with_cells(failure.traceback),
            step=(steps or {}).get(failure.rank),
        )
        for failure in failures
    ]
    ordered = sorted(marked, key=_likely_cause_first)
    cause = replace(ordered[0], collateral=False, hint=ordered[0].hint or backend.hint_for(ordered[0]))
    return AttemptFailure(
        attempt=attempt,
        root_cause=cause,
        collateral=tuple(replace(failure, collateral=True) for failure in ordered[1:]),
    )


def _likely_cause_first(failure: WorkerFailure) -> tuple[bool, bool, int, int]:
    """A process that was killed by SIGKILL is no echo of an exception elsewhere, whereas its peers' exceptions are
    its echoes, in words that no list of phrases is sure to know; and they may be stamped before its death is seen."""
    killed = failure.kind == "signal" and failure.signal == signal.SIGKILL
    return failure.collateral, not killed, failure.time_ns or sys.maxsize, failure.rank


def is_echo(failure: WorkerFailure, failures: Sequence[WorkerFailure] = (), backend: type[Backend] = Backend) -> bool:
    """True if it looks like the consequence of another failure, which may be among those given."""
    if failure.signal == signal.SIGABRT:
        # Libraries abort when a thread of theirs finds a peer gone. A death of another kind was there before.
        return any(other.kind in _DEATHS and other.signal != signal.SIGABRT for other in failures)
    if failure.kind != "exception":
        return False
    text = f"{failure.message}\n{_words_of(failure.traceback)}".lower()
    return any(phrase in text for phrase in (*_COLLATERAL_PHRASES, *backend.collateral_phrases))


def _words_of(traceback: str) -> str:
    """What the exception says, in all its lines, and what those say that it came from; frames and code are indented.

    An OSError that it came from does not count: frameworks have errors of their own for their connections, and it is
    more likely one of the user's.
    """
    *earlier, last = _CHAIN.split(traceback)
    said = [_unindented(part) for part in earlier]
    return "\n".join([*(words for words in said if not _is_os_error(words)), _unindented(last)])


def _unindented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith((" ", _TRACEBACK_BEGINS)))


def _is_os_error(words: str) -> bool:
    kind = getattr(builtins, words.lstrip().partition(":")[0], None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def startup_failure(error: EngineError | WorkerError) -> WorkerFailure:
    """Why an attempt did not come up: what was done to its workers from outside, else a failure of the start itself,
    which is not retried because it would happen again."""
    failure = error.failure if isinstance(error, WorkerError) else None
    if failure is not None and failure.kind == "signal" and failure.signal == signal.SIGTERM:
        return replace(failure, kind="preempted")
    if failure is not None:
        return failure if _came_from_outside(failure) else replace(failure, kind="startup")
    hint = "raise FailureConfig(start_timeout_s=...)" if isinstance(error, StartupTimeoutError) else ""
    if isinstance(error, NoRoomError):
        hint = "Free some room, or ask for fewer workers. FailureConfig(resource_timeout_s=None) waits without limit."
    return WorkerFailure(
        rank=0,
        kind="startup",
        message=str(error),
        time_ns=time.monotonic_ns(),
        exception_type=ENGINE_LOST if isinstance(error, EngineLost) else None,
        hint=hint,
    )


def with_lost_nodes(
    failures: Sequence[WorkerFailure], group: WorkerGroup | None, places: Sequence[WorkerPlace]
) -> list[WorkerFailure]:
    """The same failures; where a whole machine turns out to be gone, they say so. May take a few seconds."""
    if group is None:
        return list(failures)
    lost: dict[str, bool] = {}
    for failure in failures:
        node = places[failure.rank].node.node_id
        if failure.kind == "engine" and failure.exception_type != ENGINE_LOST and node not in lost:
            lost[node] = group.has_lost_node(failure.rank)
    return [
        replace(failure, kind="node_lost", message=f"{failure.message}: its machine was lost")
        if failure.kind == "engine" and lost.get(places[failure.rank].node.node_id)
        else failure
        for failure in failures
    ]


def _came_from_outside(failure: WorkerFailure) -> bool:
    """Killed or stopped by somebody or for its memory, or the warden or the machine was lost. A crash of its own code
    would come again."""
    if failure.kind == "signal":
        return failure.signal not in _CRASHES
    return failure.kind in ("oom", "engine", "node_lost", "preempted", "unresponsive")


def describe(failures: Sequence[AttemptFailure], reason: str, *, with_traceback: bool = True) -> str:
    """One screen: what happened, where in the user's code, what followed, where the logs are."""
    last = failures[-1]
    cause = last.root_cause
    lines = [f"Training failed: rank {cause.rank}: {cause.message}"]
    if len(failures) > 1 or reason not in ("", "max_failures is 0"):
        lines.append(f"(attempt {last.attempt + 1}; {reason})")
    if with_traceback and len(cause.traceback.strip().splitlines()) > 1:  # otherwise it only repeats the message
        lines += ["", *excerpt(cause.traceback, 20)]
    if cause.hint:
        lines += ["", f"Hint: {cause.hint}"]
    lines += _other_ranks(last)
    if len(failures) > 1:
        lines += ["", "Earlier attempts:"]
        lines += [
            f"  attempt {failure.attempt + 1}: rank {failure.root_cause.rank}: "
            f"{_first_line(failure.root_cause.message)}"
            for failure in failures[:-1][-6:]
        ]
    if cause.log_path and not _is_empty(Path(cause.log_path)):
        lines += ["", f"Full output of rank {cause.rank}: {cause.log_path}"]
        if (older := older_log(Path(cause.log_path))).exists():
            lines.append(f"Earlier output: {older}")
    return "\n".join(lines)


def _is_empty(log: Path) -> bool:
    """Whether the rank wrote nothing; False for a log that is on another machine."""
    try:
        return log.stat().st_size == 0 and not older_log(log).exists()
    except OSError:
        return False


def _other_ranks(failed: AttemptFailure) -> list[str]:
    """Who failed in the same way, and what else followed."""
    cause = failed.root_cause
    same = [failure for failure in failed.collateral if _is_same(failure, cause)]
    others = [failure for failure in failed.collateral if not _is_same(failure, cause)]
    lines: list[str] = []
    if same:
        ranks = ", ".join(str(failure.rank) for failure in sorted(same, key=lambda failure: failure.rank)[:16])
        more = f" and {len(same) - 16} more" if len(same) > 16 else ""
        lines += ["", f"The same on rank{'s' if len(same) > 1 else ''} {ranks}{more}"]
    if others:
        lines += ["", "As a consequence:"]
        lines += [f"  rank {failure.rank}: {_first_line(failure.message)}" for failure in others[:6]]
        if len(others) > 6:
            lines.append(f"  and {len(others) - 6} more")
    return lines


def _is_same(failure: WorkerFailure, cause: WorkerFailure) -> bool:
    return (failure.kind, failure.exception_type, failure.message) == (cause.kind, cause.exception_type, cause.message)


def _first_line(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 160 else line[:157] + "..."


def excerpt(text: str, count: int) -> list[str]:
    """The part next to the failure: of a traceback the user's first frames and the end, of a stack dump
    the beginning."""
    lines = text.rstrip().splitlines()
    if len(lines) <= count:
        return lines
    if "most recent call first" in text:
        return [*lines[:count], "  ..."]
    begin = max((number for number, line in enumerate(lines) if line == _TRACEBACK_BEGINS), default=0)
    if len(lines) - begin <= count:  # The last of a chain fits.
        return ["  ...", *lines[-count:]]
    return [*lines[begin : begin + _FIRST_LINES], "  ...", *lines[_FIRST_LINES - count :]]
