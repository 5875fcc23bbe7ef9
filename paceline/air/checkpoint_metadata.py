"""The small file beside a checkpoint's content: its class, its report, the user's notes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paceline.air.errors import CheckpointCorruptError, CheckpointError

T = TypeVar("T")

_MARK = "paceline"
"""Top-level key that tells our layout from a bare dict of notes written by other tools."""


@dataclass
class CheckpointMetadata:
    """What `.metadata.json` says."""

    class_name: str | None = None
    """Qualified name of the Checkpoint subclass that wrote it; None for Checkpoint itself."""
    report: dict[str, Any] | None = None
    """timestamp, number and iteration, once it went through a report."""
    user: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, content: bytes | None, where: str) -> CheckpointMetadata:
        if content is None:
            return cls()
        try:
            data = json.loads(content)
        except ValueError as error:
            raise CheckpointCorruptError(f"The metadata file of {where} is damaged: {error}.") from error
        if not isinstance(data, dict):
            raise CheckpointCorruptError(f"The metadata file of {where} holds no JSON object.")
        if _MARK not in data:
            return cls(user=data)
        name, report, user = data.get("class"), data.get("report"), data.get("user", {})
        well_formed = (
            (name is None or isinstance(name, str))
            and (report is None or isinstance(report, dict))
            and isinstance(user, dict)
        )
        if not well_formed:
            raise CheckpointCorruptError(f"The metadata file of {where} has unexpected content.")
        return cls(name, report, user)

    def encode(self) -> bytes:
        data: dict[str, Any] = {_MARK: 1}
        if self.class_name is not None:
            data["class"] = self.class_name
        if self.report is not None:
            data["report"] = self.report
        if self.user:
            data["user"] = self.user
        return json.dumps(data, ensure_ascii=False).encode()


def checked_notes(notes: Any) -> dict[str, Any]:
    """The user's metadata as it will come back, or CheckpointError."""
    if not isinstance(notes, dict):
        raise CheckpointError(f"Metadata must be a dict, not {type(notes).__name__}.")
    try:
        plain = json.loads(json.dumps(notes))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"Metadata must be JSON (numbers, text, lists, dicts): {error}.") from error
    assert isinstance(plain, dict)
    return plain


def qualified_name(kind: type) -> str:
    """What a file calls a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def loaded_class(name: str | None, wanted: type[T]) -> type[T]:
    """The subclass of `wanted` that has this name, among classes that are loaded; else `wanted`.

    A file can name a class but never make one be imported.
    """
    if name is None:
        return wanted
    candidates = [wanted]
    while candidates:
        kind = candidates.pop()
        if qualified_name(kind) == name:
            return kind
        candidates.extend(kind.__subclasses__())
    return wanted
