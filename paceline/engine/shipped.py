"""Shipped: a value that many tasks need, pickled once; its large memory is shared by all who unpickle it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, BinaryIO

from paceline.air.attachment import Attachment
from paceline.engine.serialization import dumps, load, loads

LARGE_BYTES = 1 << 18
"""From here on content is an attachment, and not part of each task."""
_ASIDE_BYTES = 1 << 14
"""Arrays from this size on are mapped where they are used, and not copied."""
_ALIGNMENT = 64

Span = tuple[int, int]
"""Offset and length in an attachment."""


class Shipped:
    """Stands for `value` in what is sent to workers: unpickling gives the value itself.

    Large content is an attachment of the task: where the engine hands attachments over without a copy, all workers
    share the pages of arrays, and one that writes to them has a copy of its own of what it changed.
    """

    def __init__(self, value: Any, what: str) -> None:
        self.value = value
        self.what = what
        """How the user knows it, for the message if it cannot be pickled."""
        self._packed: tuple[Any, tuple[Any, ...]] | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.pack()

    def pack(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle now, if that was not done yet; raises SerializationError for what cannot travel."""
        if self._packed is None:
            aside: list[memoryview] = []
            content = dumps(self.value, self.what, aside=lambda buffer: _stays_inside(buffer, aside))
            if not aside and len(content) < LARGE_BYTES:
                self._packed = (loads, (content,))
            else:
                self._packed = (unpacked, _attached(content, aside))
        return self._packed


def unpacked(attachment: Attachment, spans: Sequence[Span]) -> Any:
    """The value in an attachment."""
    memory = attachment.view(private=True)
    with attachment.open() as file:
        return load(file, [memory[offset : offset + length] for offset, length in spans])


def _stays_inside(buffer: pickle.PickleBuffer, aside: list[memoryview]) -> bool:
    memory = buffer.raw()
    if memory.nbytes < _ASIDE_BYTES:
        return True
    aside.append(memory)
    return False


def _attached(content: bytes, aside: Sequence[memoryview]) -> tuple[Attachment, list[Span]]:
    """The pickle, then what was put aside; gives the attachment and where the latter are."""
    spans: list[Span] = []

    def write(file: BinaryIO) -> None:
        file.write(content)
        for memory in aside:
            offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            file.write(memory)
            spans.append((offset, memory.nbytes))

    return Attachment.written("paceline-shipped", write), spans
