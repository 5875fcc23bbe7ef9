"""Functions and Trainable classes need no connection between workers: there is one. It has loaded what they import."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.run.backend import Backend, BackendConfig

_OURS = (
    "paceline.tune.trainable.function",
    "paceline.tune.trainable.class_loop",
    "paceline.tune.trainable.legacy_session",
)
_SLOW_TO_IMPORT = frozenset(["numpy", "pandas", "scipy", "sklearn"])
_ONLY_ONE_OF = ("torch", "xgboost", "lightgbm")
"""Each brings threads of its own kind: two of them are not loaded into one process that forks."""
_IMPORTED_LATER = ("torch._dynamo", "torch.profiler._cupti_monitor", "torch.utils.serialization.config")
"""Pulled in by the first optimizer and the first torch.save: hundreds of modules, seconds in each trial."""
_NOT_THE_USERS = frozenset([*_SLOW_TO_IMPORT, *_ONLY_ONE_OF, *sys.stdlib_module_names, "paceline"])
"""Packages whose inside is not looked into."""
_MOST_VISITED = 1000


class TrainableBackend(Backend):
    """Has the modules that every such trial needs loaded before it is forked."""

    preload: ClassVar[tuple[str, ...]] = _OURS


@dataclass
class TrainableBackendConfig(BackendConfig):
    """What is to be loaded besides."""

    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        later = _IMPORTED_LATER if any(name.partition(".")[0] == "torch" for name in self.modules) else ()
        names = {"preload": (*_OURS, *self.modules, *later)}
        self._backend: type[Backend] = type("TrainableBackend", (TrainableBackend,), names)

    @property
    def backend_cls(self) -> type[Backend]:
        return self._backend


def libraries_of(*values: Any) -> tuple[str, ...]:
    """Well-known libraries that functions, classes and other values refer to. Each trial would import them anew, which
    can take longer than the trial itself; code of the user's own is not imported before it is used."""
    seen: set[int] = set()
    named = {name for value in values for name in _names_in(value, seen)}
    roots = {name.partition(".")[0] for name in named}
    single = next((name for name in _ONLY_ONE_OF if name in roots), None)
    wanted = _SLOW_TO_IMPORT | {"paceline"} | ({single} if single else set())
    return tuple(sorted(name for name in named if name.partition(".")[0] in wanted))


def _names_in(value: Any, seen: set[int]) -> Iterator[str]:
    """Modules that the value comes from, or that its code names."""
    if value is None or id(value) in seen or len(seen) > _MOST_VISITED:
        return
    seen.add(id(value))
    if isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, type | types.FunctionType):
        yield value.__module__
        if "<locals>" not in value.__qualname__:
            yield from _imported_with(value.__module__, seen)
        if value.__module__.partition(".")[0] not in _NOT_THE_USERS:
            for part in _parts_of_class(value) if isinstance(value, type) else _parts_of_function(value):
                yield from [part] if isinstance(part, str) else _names_in(part, seen)
    elif isinstance(value, types.MethodType):
        yield from _names_in(value.__func__, seen)
        yield from _names_in(value.__self__, seen)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _names_in(each, seen)
    elif isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            yield from _names_in(each, seen)
    else:
        yield type(value).__module__
        yield from _imported_with(type(value).__module__, seen)


def _imported_with(module_name: str, seen: set[int]) -> Iterator[str]:
    """What a module of the user's imports at its top: a worker that finds something there by name imports all of it."""
    module = sys.modules.get(module_name)
    if module is None or id(module) in seen or module_name == "__main__":
        return
    if module_name.partition(".")[0] in _NOT_THE_USERS:
        return
    seen.add(id(module))
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _parts_of_class(value: type) -> Iterator[Any]:
    yield from value.__bases__
    yield from (part for part in vars(value).values() if not isinstance(part, str))


def _parts_of_function(value: types.FunctionType) -> Iterator[Any]:
    for name in _names_in_code(value.__code__):
        yield name
        yield value.__globals__.get(name)
    for cell in value.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _names_in_code(code: types.CodeType) -> Iterator[str]:
    """Names in it, among which are those of the modules that it imports."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in_code(constant)
