"""The forms of a checkpoint, for tests that take one through several of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.air.checkpoint import Checkpoint

DATA = {"epoch": 3, "weights": [1.5, float("inf")], "nested": {"é": None}}


def memory_file(checkpoint: Checkpoint, report: dict[str, Any] | None = None) -> Checkpoint:
    attachment = Attachment.written("checkpoint", lambda file: checkpoint.write_packed(file, report=report))
    return type(checkpoint).from_attachment(attachment)


Convert = Callable[[Checkpoint, Path], Checkpoint]
CONVERSIONS: dict[str, Convert] = {
    "dict": lambda c, _: Checkpoint.from_dict(c.to_dict()),
    "directory": lambda c, tmp: Checkpoint.from_directory(c.to_directory(tmp / "converted")),
    "bytes": lambda c, _: Checkpoint.from_bytes(c.to_bytes()),
    "memory file": lambda c, _: memory_file(c),
    "file uri": lambda c, tmp: Checkpoint.from_uri(c.to_uri(f"file://{tmp}/by uri")),
    "memory uri": lambda c, tmp: Checkpoint.from_uri(c.to_uri(f"memory://{tmp.name}/checkpoint")),
    "pickle": lambda c, _: pickle.loads(pickle.dumps(c)),
}
