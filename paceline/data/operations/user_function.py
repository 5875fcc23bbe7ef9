"""What the user hands to map, filter and the like: a function, or a class of which each process makes one instance."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.errors import ConfigError, DataError
from paceline.engine.failures import describe_exception


@dataclass(frozen=True)
class Spot:
    """Which rows a function was working on, for messages. Rows are counted from the beginning of the block."""

    place: str
    first: int
    rows: int
    fresh: bool = False
    """Nobody else refers to the memory of the rows: the function may have it as it is."""

    def row(self, index: int) -> Spot:
        return Spot(self.place, self.first + index, 1)

    def part(self, start: int, rows: int) -> Spot:
        return Spot(self.place, self.first + start, rows, self.fresh)

    def __str__(self) -> str:
        if self.rows == 1:
            return f"row {self.first} of {self.place}"
        return f"rows {self.first} to {self.first + self.rows - 1} of {self.place}"


class UserFunction:
    """A callable with the arguments that come after the batch or row.

    Picklable as far as the callable is. The instance of a class does not travel: each process makes its own, once.
    """

    def __init__(
        self,
        method: str,
        function: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        constructor_args: Iterable[Any] | None = None,
        constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        _check(method, function, bool(constructor_args or constructor_kwargs))
        self.function = function
        self.args = _positional(method, "fn_args", args)
        self.kwargs = _named(method, "fn_kwargs", kwargs)
        self.constructor_args = _positional(method, "fn_constructor_args", constructor_args)
        self.constructor_kwargs = _named(method, "fn_constructor_kwargs", constructor_kwargs)
        self.method = method
        self.label = f"{method}({_name_of(function)})"
        self.origin = _origin_of(function)
        self._instance: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_instance", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._instance = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """How messages name it: ``map_batches(normalise) at train.py:12``."""
        return f"{self.label} at {self.origin}" if self.origin else self.label

    def ready(self) -> Callable[..., Any]:
        """What to call with a batch or row (and `args`, `kwargs`)."""
        if not isinstance(self.function, type):
            return self.function
        with self._lock:
            if self._instance is None:
                try:
                    self._instance = self.function(*self.constructor_args, **self.constructor_kwargs)
                except Exception as error:
                    raise DataError(f"{self}: making an instance failed: {_told(error)}") from error
            return self._instance

    def outputs(self, batch: Any, spot: Spot) -> Iterator[Any]:
        """What the function returns for a batch, or each thing that it yields."""
        function = self.ready()
        try:
            output = function(batch, *self.args, **self.kwargs)
        except Exception as error:
            raise self.failure(error, spot, batch) from error
        if not isinstance(output, types.GeneratorType):
            yield output
            return
        while True:
            try:
                part = next(output)
            except StopIteration:
                return
            except Exception as error:
                raise self.failure(error, spot, batch) from error
            yield part

    def failure(self, error: Exception, spot: Spot, given: Any = None) -> DataError:
        """The error for an exception of the user's code."""
        import numpy as np

        hint = ""
        if isinstance(error, KeyError) and hasattr(given, "keys"):
            hint = f" It was given the columns {list(given.keys())}."
        elif isinstance(error, AttributeError) and type(error.obj) in (dict, np.ndarray):
            if self.method == "map":
                hint = ' It was given a dict, a value per column: row["x"].'
            elif self.method in ("map_batches", "map_groups"):
                hint = ' It was given a dict of numpy arrays; batch_format="pandas" gives it a DataFrame.'
        return DataError(f"{self} failed on {spot}: {_told(error)}.{hint}")


def _told(error: BaseException) -> str:
    """Type and message, whatever its `__str__` does."""
    return describe_exception(error, rank=0, time_ns=0).message.rstrip(".")


def _positional(method: str, name: str, values: Any) -> tuple[Any, ...]:
    if values is None:
        return ()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{method}: {name} is {values!r}: give a list or tuple of arguments, such as {name}=[3].")
    return tuple(values)


def _named(method: str, name: str, values: Any) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(each, str) for each in values):
        raise ConfigError(f"{method}: {name} is {values!r}: give a dict of arguments by name.")
    return dict(values)


def _check(method: str, function: Any, has_constructor_args: bool) -> None:
    if not callable(function):
        raise ConfigError(f"{method}: give a function or a class with a __call__ method, not {function!r}.")
    if isinstance(function, type):
        if "__call__" not in dir(function):  # what calling the class itself uses is not in it
            raise ConfigError(
                f"{method}: class {function.__name__} has no __call__ method; it is called with each batch or row."
            )
    elif has_constructor_args:
        raise ConfigError(
            f"{method}: fn_constructor_args and fn_constructor_kwargs are for classes, and {_name_of(function)} is "
            f"none. Arguments of a function go to fn_args and fn_kwargs."
        )
    called = function.__call__ if isinstance(function, type) else function
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"{method}: {_name_of(function)} is async; give a plain function.")


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _origin_of(function: Any) -> str:
    """File and line of the definition; empty for what is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):  # a class, or an object that can be called
        function = getattr(function, "__call__", function)  # noqa: B004
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
