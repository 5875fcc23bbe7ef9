"""The text of a config object: what differs from the defaults."""

from __future__ import annotations

import dataclasses
from typing import Any


class ShortRepr:
    """A dataclass that derives from this and sets ``repr=False`` shows the fields that were set."""

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # only its subclasses are dataclasses
            if field.repr and not _is_default(getattr(self, field.name), field)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        return type(value) is type(default) and bool(value == default)
    return value is field.default or (type(value) is type(field.default) and bool(value == field.default))
