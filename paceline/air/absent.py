"""Names that do not exist: every way of asking for one says what to write instead.

A package's ``__getattr__`` ends with ``raise no_such_name(__name__, name, ADVICE)``, which serves ``package.name``.
``hasattr`` stays False. ``from package import name`` drops the text of an AttributeError, then looks for a submodule
of that name, as ``import package.name`` does: `install` adds a finder there that repeats the text.

Python looks for submodules of packages only. A module that is a single file takes part with ``__path__ = []``;
``advise(__name__, ADVICE)`` at its end is short for that and such a ``__getattr__``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_ROOT = f"{__name__.partition('.')[0]}."
_NOTHING: Mapping[str, str] = MappingProxyType({})


class AbsentNameError(AttributeError):
    """A module does not have this name. The text says what to use instead, or which name is the closest."""


def no_such_name(module: str, name: str, advice: Mapping[str, str] = _NOTHING) -> AttributeError:
    """The error for a name that `module` does not have. `advice` says for each known name what to write instead."""
    if name in advice:
        text = f"{module}.{name} does not exist here: {advice[name].rstrip('.')}."
        return AbsentNameError(text, name=name)  # without obj=, or Python would append a guess of its own
    near = None if name.startswith("_") else _closest(sys.modules[module], name)  # inspection asks for many _names
    if near is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    return AbsentNameError(f"module {module!r} has no attribute {name!r}: did you mean {near}?", name=name)


def advise(module: str, advice: Mapping[str, str], homes: Mapping[str, str] = _NOTHING) -> None:
    """Let a module that is a single file say what to write instead of these names.

    `homes` are names that it has from another module, for old code: the import is done on first use.
    """

    def ask(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise no_such_name(module, name, advice)

    vars(sys.modules[module]).update(__path__=[], __getattr__=ask)


def _closest(module: ModuleType, name: str) -> str | None:
    import difflib

    near = difflib.get_close_matches(name, _public_names(module), n=1, cutoff=0.7)
    return near[0] if near else None


def _public_names(module: ModuleType) -> Sequence[str]:
    """What users may import from a module, without what the module itself has imported for its own use."""
    here = vars(module)
    own = [name for name, value in list(here.items()) if str(getattr(value, "__module__", "")).startswith(_ROOT)]
    exported: Sequence[str] = here.get("__all__", own)
    offered = [name for name in dir(module) if name not in here or f"{module.__name__}.{name}" in sys.modules]
    return [name for name in (*exported, *offered) if not name.startswith("_")]


class AbsentFinder:
    """The last of ``sys.meta_path``: is asked for submodules that nobody else has found.

    It finds modules under their old paths, and repeats the advice about names that do not exist.
    """

    _asked: set[str] = set()

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if not fullname.startswith(_ROOT) or name.startswith("__") or fullname in cls._asked:
            return None
        cls._asked.add(fullname)  # a __getattr__ may try to import the very module that is being looked for
        try:
            from paceline.air.old_paths import spec_of

            if spec := spec_of(fullname):
                return spec
            if name.startswith("_"):
                return None
            error = _error_of(parent, name)
        finally:
            cls._asked.discard(fullname)
        if isinstance(error, AbsentNameError):
            # With fullname as its name, `from parent import name` would ignore the error.
            raise ModuleNotFoundError(str(error), name=parent) from None
        return None


def _error_of(parent: str, name: str) -> AttributeError | None:
    """What asking a package for this name raises."""
    try:
        getattr(sys.modules[parent], name)
    except AbsentNameError as error:
        return error
    except AttributeError:  # by a package without a __getattr__ of its own
        return no_such_name(parent, name)
    return None


def install() -> None:
    """Let import statements repeat the advice; once per process."""
    if not any(getattr(finder, "__name__", "") == AbsentFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(AbsentFinder)
