"""Packages whose names are loaded on first use, written as ordinary imports.

    with lazy_imports(__name__, modules=("config",), advice=_ADVICE):
        from paceline.air.checkpoint import Checkpoint as Checkpoint

Type checkers and readers see imports. At run time they are only noted: the package's ``__getattr__`` carries out the
one that is asked for. So there is one list of names, and importing the package stays cheap.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from paceline.air.absent import no_such_name

_NO_ADVICE: Mapping[str, str] = MappingProxyType({})
_one_at_a_time = threading.RLock()


class _Later:
    """What an import statement gets instead of a module, and the names that it takes from it."""

    def __init__(self, module: str, name: str = "") -> None:
        self.module = module
        self.name = name

    def __getattr__(self, name: str) -> _Later:
        if name.startswith("__"):  # the import system looks whether this is a package
            raise AttributeError(name)
        return _Later(f"{self.module}.{self.name}" if self.name else self.module, name)

    def load(self, package: str) -> Any:
        if self.module == package:  # `from package import module as module`
            return importlib.import_module(f"{package}.{self.name}")
        return getattr(importlib.import_module(self.module), self.name)


@contextmanager
def lazy_imports(
    package: str, modules: Sequence[str] = (), advice: Mapping[str, str] | Callable[[], Mapping[str, str]] = _NO_ADVICE
) -> Iterator[None]:
    """Put off the imports of the block until somebody asks the package for their names.

    The names become the package's ``__all__``. `modules` are submodules that are attributes without having been
    imported, too. `advice` says what to write instead of names that do not exist (see absent.py).
    """
    namespace = vars(sys.modules[package])
    with _one_at_a_time, _noted_imports(namespace):
        yield
    noted = {name: value for name, value in namespace.items() if isinstance(value, _Later)}
    for name in noted:
        del namespace[name]

    def find(name: str) -> Any:
        if name in noted:
            value = namespace[name] = noted[name].load(package)
            return value
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if callable(advice) and not name.startswith("_"):  # inspection asks for many _names
            raise no_such_name(package, name, advice())
        raise no_such_name(package, name, _NO_ADVICE if callable(advice) else advice)

    namespace["__getattr__"] = find
    namespace["__dir__"] = lambda: sorted({*namespace, *noted, *modules})
    namespace["__all__"] = sorted(noted)


@contextmanager
def _noted_imports(namespace: dict[str, Any]) -> Iterator[None]:
    """Import statements of this namespace give placeholders. Those of other threads do what they always do."""
    original = builtins.__import__

    def note(
        name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        if globals is not namespace:
            return original(name, globals, locals, fromlist or (), level)
        return _Later(name if fromlist else name.partition(".")[0])

    builtins.__import__ = note
    try:
        yield
    finally:
        builtins.__import__ = original
