"""The faults that chaos() knows: their settings, and what air/faults.py is told about them."""

from __future__ import annotations

import builtins
import difflib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.checks import check_choice, is_number, near_miss, whole_number
from paceline.air.errors import ConfigError

WHERE = {"checkpoint": ("stage_write",), "journal": ("before_journal_append",), "store": ("store_operation",)}
"""Where storage is slow or fails, and the fault points of that place."""


@dataclass(frozen=True)
class Described:
    """One fault as the user described it."""

    text: str
    points: tuple[str, ...]
    conditions: Mapping[str, Any]
    action: str
    does: Callable[[], object] | None = None
    """What the action `CALL` does, in the driver."""

    def specs(self, name: str) -> list[str]:
        """For PACELINE_FAULT; `name` is what the fault calls itself when it notes that it fired."""
        listed = [f"{key}={value}" for key, value in {**self.conditions, "id": name}.items() if value is not None]
        return [":".join([point, *listed, self.action]) for point in self.points]


CALL = "call=paceline.testing.chaos_kit.carry_out"


class _Settings:
    """The settings of one fault, checked as they are taken."""

    def __init__(self, kind: str, given: Mapping[str, Any]) -> None:
        self.kind = kind
        self.text = f"{kind}={dict(given)!r}"
        self._left = dict(given)
        self._known: list[str] = []

    def take(self, name: str, default: Any = None, *, required: bool = False) -> Any:
        self._known.append(name)
        if required and name not in self._left:
            meant = difflib.get_close_matches(name, self._left, 1)
            raise ConfigError(f"chaos({self.text}) needs {name!r}{f', not {meant[0]!r}' if meant else ''}.")
        return self._left.pop(name, default)

    def number(self, name: str, *, least: int, required: bool = False, default: int | None = None) -> int | None:
        value = self.take(name, default, required=required)
        return None if value is None else whole_number(value, self._named(name), least=least)

    def rank(self, *, required: bool, driver: str = "") -> int | str | None:
        value = self.take("rank", required=required)
        if value == "driver" and not driver:
            return "driver"
        if value == "driver":
            raise ConfigError(f"chaos({self.text}): {driver}")
        return None if value is None else whole_number(value, self._named("rank"), least=0)

    def seconds(self, name: str, *, required: bool = False) -> float | None:
        value = self.take(name, required=required)
        if value is not None and not (is_number(value) and value > 0):
            raise ConfigError(f"chaos({self.text}): {name} must be a number above 0.")
        return None if value is None else float(value)

    def choice(self, name: str, choices: Sequence[str], default: str | None) -> str | None:
        value = self.take(name, default)
        if value is not None:
            check_choice(value, self._named(name), choices)
        return None if value is None else str(value)

    def end(self) -> None:
        """Reject what nobody took."""
        for name in self._left:
            raise ConfigError(f"chaos({self.text}) has no setting {name!r}{near_miss(name, self._known)}")

    def _named(self, name: str) -> str:
        return f"chaos({self.kind}={{{name!r}: ...}})"


def described(kind: str, given: Any) -> list[Described]:
    """The faults of one argument of chaos()."""
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(one, Mapping) for one in given):
        raise ConfigError(f"chaos({kind}=...) takes a dict of settings or a list of such dicts, not {given!r}.")
    faults = []
    for one in given:
        settings = _Settings(kind, one)
        faults.append(KINDS[kind](settings))
        settings.end()
    return faults


_NO_DRIVER = (
    "the driver is the process of this test. Run a driver in a process of its own (paceline.testing.processes.Driver) "
    "and kill that."
)


def _at_a_step(settings: _Settings, action: str, rank: int | str | None) -> Described:
    """A fault inside report(), or in the driver when rank 0's report arrives."""
    conditions = {
        "rank": rank,
        "step": settings.number("step", least=1, required=True),
        "attempt": settings.number("attempt", least=0),
        "limit": settings.number("times", least=1, default=1),
        "times": "every",
        "spare": None if rank == "driver" else os.getpid(),
    }
    return Described(settings.text, ("report_received" if rank == "driver" else "report",), conditions, action)


def _kill(settings: _Settings) -> Described:
    return _at_a_step(settings, "SIGKILL", settings.rank(required=True, driver=_NO_DRIVER))


def _sigterm(settings: _Settings) -> Described:
    return _at_a_step(settings, "SIGTERM", settings.rank(required=True))


def _fail(settings: _Settings) -> Described:
    error = settings.take("error", "RuntimeError")
    name = error.__name__ if isinstance(error, type) else error
    kind = getattr(builtins, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ConfigError(f"chaos({settings.text}): error must be an exception of Python itself, such as 'ValueError'.")
    return _at_a_step(settings, f"raise={name}", settings.rank(required=True, driver=_NO_DRIVER))


def _stall(settings: _Settings) -> Described:
    seconds = settings.seconds("seconds")
    how = settings.choice("how", ("sleep", "sigstop"), "sleep")
    if how == "sigstop" and seconds is not None:
        raise ConfigError(f"chaos({settings.text}): a stopped process cannot continue by itself. Leave out seconds.")
    action = "stop" if how == "sigstop" else f"sleep={'inf' if seconds is None else seconds}"
    return _at_a_step(settings, action, settings.rank(required=True, driver=_NO_DRIVER))


def _slow(settings: _Settings) -> Described:
    conditions = {
        "rank": settings.rank(required=True, driver=_NO_DRIVER),
        "attempt": settings.number("attempt", least=0),
        "first": settings.number("first_step", least=1),
        "last": settings.number("last_step", least=1),
        "times": "every",
    }
    return Described(settings.text, ("report",), conditions, f"sleep={settings.seconds('seconds', required=True)}")


def _corrupt_checkpoint(settings: _Settings) -> Described:
    file = settings.take("file")
    if file is not None and (not isinstance(file, str) or set(file) & set(":;=")):
        raise ConfigError(f"chaos({settings.text}): file must be a pattern for a file name, without ':', ';' and '='.")
    conditions = {
        "step": settings.number("step", least=1),
        "limit": settings.number("times", least=1, default=1),
        "times": "every",
        "file": file,
    }
    how = settings.choice("how", ("flip", "truncate", "empty", "delete"), "flip")
    return Described(settings.text, ("checkpoint_committed",), conditions, f"damage={how}")


def _slow_storage(settings: _Settings) -> Described:
    seconds, pace = settings.seconds("seconds"), settings.seconds("bytes_per_second")
    if (seconds is None) == (pace is None):
        raise ConfigError(f"chaos({settings.text}) needs either 'seconds' or 'bytes_per_second'.")
    where = settings.choice("where", [*WHERE], None if pace is None else "checkpoint")
    if pace is not None and where != "checkpoint":
        raise ConfigError(f"chaos({settings.text}): bytes_per_second is for where='checkpoint'; use seconds.")
    points = WHERE[where] if where else tuple(point for points in WHERE.values() for point in points)
    conditions = {"rank": settings.rank(required=False), "times": "every"}
    return Described(settings.text, points, conditions, f"pace={pace}" if pace else f"sleep={seconds}")


def _fail_storage(settings: _Settings) -> Described:
    error = settings.take("error", "EIO")
    if not isinstance(getattr(errno, str(error), None), int):
        raise ConfigError(f"chaos({settings.text}): error must be a name such as 'EIO', 'ENOSPC' or 'ECONNRESET'.")
    where = settings.choice("where", [*WHERE], "checkpoint")
    step = settings.number("step", least=1)
    if step is not None and where != "checkpoint":
        raise ConfigError(f"chaos({settings.text}): only files of checkpoints belong to a step.")
    conditions = {
        "rank": settings.rank(required=False),
        "step": step,
        "attempt": settings.number("attempt", least=0),
        "limit": settings.number("times", least=1, default=1),
        "times": "every",
    }
    return Described(settings.text, WHERE[str(where)], conditions, f"errno={error}")


def _lose_node(settings: _Settings) -> Described:
    node = settings.take("node", required=True)
    engine = settings.take("engine", required=True)
    if not callable(getattr(engine, "lose_node", None)):
        raise ConfigError(
            f"chaos({settings.text}): engine must be the engine object of the run, with a method lose_node(), such as "
            "paceline.testing.elastic_engine.ElasticEngine."
        )
    nodes = getattr(engine, "nodes", None)
    if isinstance(nodes, Mapping) and node not in nodes:
        raise ConfigError(f"chaos({settings.text}): the engine has no node {node!r}{near_miss(node, list(nodes))}")
    conditions = {"step": settings.number("step", least=1, required=True), "limit": 1, "times": "every"}
    return Described(settings.text, ("report_received",), conditions, CALL, lambda: engine.lose_node(node))


KINDS: dict[str, Callable[[_Settings], Described]] = {
    "kill": _kill,
    "sigterm": _sigterm,
    "fail": _fail,
    "stall": _stall,
    "slow": _slow,
    "corrupt_checkpoint": _corrupt_checkpoint,
    "slow_storage": _slow_storage,
    "fail_storage": _fail_storage,
    "lose_node": _lose_node,
}
