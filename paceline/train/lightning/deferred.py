"""DeferredClass: stands for a class that is derived from one of Lightning's, without loading Lightning."""

from __future__ import annotations

from typing import Any, Union

from paceline.train.lightning.packages import derived_classes, package_in_use


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
