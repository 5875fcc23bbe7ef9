"""Lightning has two names: `lightning.pytorch`, and `pytorch_lightning` as it was called before.

Both are usually installed, with the same code but classes of their own: a Trainer of the one takes no strategy of the
other. So what is derived from a class of Lightning's exists twice, and the package that the user's code has loaded
decides.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Union

LIGHTNING = "lightning.pytorch"
PYTORCH_LIGHTNING = "pytorch_lightning"

_DERIVED = {
    LIGHTNING: "paceline.train.lightning.for_lightning",
    PYTORCH_LIGHTNING: "paceline.train.lightning.for_pytorch_lightning",
}


def package_of(kind: type) -> str | None:
    """The package that a class is, or is derived from, a class of; None if of neither."""
    for base in kind.__mro__:
        for package in _DERIVED:
            if base.__module__ == package or base.__module__.startswith(f"{package}."):
                return package
    return None


def package_in_use() -> str:
    """The package that is loaded; `lightning` if both are, or none is and it is installed."""
    if LIGHTNING in sys.modules:
        return LIGHTNING
    if PYTORCH_LIGHTNING in sys.modules or find_spec("lightning") is None:
        return PYTORCH_LIGHTNING
    return LIGHTNING


def derived_classes(package: str) -> ModuleType:
    """The module with the classes of ours that are derived from those of `package`."""
    return importlib.import_module(_DERIVED[package])


def lightning(package: str) -> Any:
    """The package itself."""
    return importlib.import_module(package)


class DeferredClass:
    """Used like the class: called, derived from, asked by isinstance() and issubclass(), part of a type hint.

    Which class that is, is decided when it is used, not when it is imported: by then the user's code has loaded
    `lightning` or `pytorch_lightning`. Where both are loaded it is the one for `lightning`; the one for the other is in
    `paceline.train.lightning.for_pytorch_lightning`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._class()(*arguments, **keywords)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._class(),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._class())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._class())

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  # `self | other` is what is being defined

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy, pickle and the like, of this object itself
            raise AttributeError(name)
        return getattr(self._class(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeferredClass, (self._name,)

    def __repr__(self) -> str:
        return f"<class paceline.train.lightning.{self._name}>"

    def _class(self) -> type:
        found: type = getattr(derived_classes(package_in_use()), self._name)
        return found
