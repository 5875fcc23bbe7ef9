"""Shipped: a value that many tasks need, pickled once; its large memory is shared by all who unpickle it."""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any

from paceline.engine.serialization import dumps, load, loads

LARGE_BYTES = 1 << 18
"""From here on content goes into a memory file, and not through the line to each worker."""
_ASIDE_BYTES = 1 << 14
"""Arrays from this size on are mapped where they are used, and not copied."""
_ALIGNMENT = 64

Span = tuple[int, int]
"""Offset and length in a memory file."""


class Shipped:
    """Stands for `value` in what is sent to workers: unpickling gives the value itself.

    A worker maps large arrays from a memory file that this process holds: all workers share the pages, and one that
    writes to them has a copy of its own of what it changed. The file is gone with this object or this process.
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
                descriptor, spans = _memory_file(content, aside)
                weakref.finalize(self, os.close, descriptor)
                self._packed = (unpacked, (os.getpid(), descriptor, spans))
        return self._packed


def unpacked(owner: int, descriptor: int, spans: Sequence[Span]) -> Any:
    """The value in a memory file that process `owner` holds."""
    with open(f"/proc/{owner}/fd/{descriptor}", "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return load(file, [memory[offset : offset + length] for offset, length in spans])


def _stays_inside(buffer: pickle.PickleBuffer, aside: list[memoryview]) -> bool:
    memory = buffer.raw()
    if memory.nbytes < _ASIDE_BYTES:
        return True
    aside.append(memory)
    return False


def _memory_file(content: bytes, aside: Sequence[memoryview]) -> tuple[int, list[Span]]:
    """The pickle, then what was put aside; gives the descriptor and where the latter are."""
    descriptor = os.memfd_create("paceline-shipped", os.MFD_CLOEXEC)
    spans: list[Span] = []
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
            for memory in aside:
                offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
                file.seek(offset)
                file.write(memory)
                spans.append((offset, memory.nbytes))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, spans
