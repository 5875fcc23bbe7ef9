"""What workers import: which modules a function refers to, what is loaded once for all, and corrections afterwards."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import islice
from types import ModuleType
from typing import Any

_LIBRARIES = (
    "flax",
    "horovod",
    "jax",
    "keras",
    "lightgbm",
    "numpy",
    "optax",
    "orbax",
    "paceline",
    "pandas",
    "scipy",
    "sklearn",
    "tensorflow",
    "tf_keras",
    "torch",
    "xgboost",
)
_NOT_THE_USERS = frozenset([*_LIBRARIES, *sys.stdlib_module_names])
"""Packages whose inside is not looked into."""
_MOST_VISITED = 1000
_PLAIN = (bool, int, float, str, bytes)


def referred_modules(*values: Any) -> set[str]:
    """Names of modules that functions, classes and other values come from or name in their code. Nothing is
    imported to find out, and names that merely read like a module's are among them."""
    seen: set[int] = set()
    return {name for value in values for name in _names_in(value, seen)}


def _names_in(value: Any, seen: set[int]) -> Iterator[str]:
    """Modules that the value comes from, or that its code names."""
    if value is None or isinstance(value, _PLAIN) or id(value) in seen or len(seen) > _MOST_VISITED:
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
    else:
        for part in _parts_of_object(value):
            yield from _names_in(part, seen)


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


def _parts_of_object(value: Any) -> Iterator[Any]:
    """What an object holds: of a collection its first items, of one of the user's own class its attributes."""
    if isinstance(value, dict):
        yield from islice(value.values(), _MOST_VISITED)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from islice(value, _MOST_VISITED)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    else:
        yield type(value)
        if type(value).__module__.partition(".")[0] not in _NOT_THE_USERS:
            yield getattr(value, "__dict__", None)


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


FOR_TORCH_TRAINING = (
    "torch",
    # Pulled in by the first optimizer step or DDP model: hundreds of modules, seconds.
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    # torch.save and torch.load, a DataLoader with worker processes.
    "torch.utils.serialization.config",
    "multiprocessing.popen_fork",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    # What every worker of ours goes through, besides what all runs load.
    "xxhash",
    "paceline.train.functions",
)


# -- corrections of a framework's modules ----------------------------------------------------------


Action = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """For each module, by name, what is done with it once it has run. The import stays that of the other finders."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = actions
        self._done: set[ModuleType] = set()

    def install(self) -> None:
        """Modules that are loaded already get their turn now."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name in self._actions:
            module = sys.modules.get(name)
            if module is not None and module not in self._done:
                self.act(module)

    def remove(self) -> None:
        """What was done stays done."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def act(self, module: ModuleType) -> None:
        self._actions[module.__name__](module)
        self._done.add(module)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._actions:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenAct(spec.loader, self)
                return spec
        return None


class _ThenAct(Loader):
    def __init__(self, loader: Loader, hook: AfterImport) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._hook.act(module)


# -- tree libraries without scikit-learn -----------------------------------------------------------
# The libraries load scikit-learn, where it is there, for their classes in that style: most of the second that their
# import takes. A worker that is given parameters trains a booster and has no use for them. scikit-learn itself can be
# imported afterwards as ever, for example by a metric of the user's.


def import_without_sklearn(library: str) -> None:
    blocked = "sklearn" not in sys.modules and library not in sys.modules
    if blocked:
        sys.modules["sklearn"] = None  # type: ignore[assignment]  # what Python takes for "cannot be imported"
    try:
        importlib.import_module(library)
    finally:
        if blocked:
            del sys.modules["sklearn"]
