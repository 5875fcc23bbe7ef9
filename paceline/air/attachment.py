"""Attachment: content that travels beside a message, such as a checkpoint in memory or the rows of a dataset.

It is bytes, or a file without a name that is gone with the last process that holds it. An engine on one machine hands
the file itself over, so that all processes share its pages; others send the content. Whoever drops the last reference
to an attachment gives it back: nobody has to close one, but may.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

_PORTION_BYTES = 1 << 22
SIZE = struct.Struct("<Q")
"""The first part of an attachment that is sent in parts."""
PART_BYTES = 4 * 1024 * 1024


class Attachment:
    """Content without a name. It does not change any more."""

    __slots__ = ("__weakref__", "_content", "_descriptor")

    def __init__(self, content: bytes | bytearray | memoryview = b"") -> None:
        self._descriptor: int | None = None
        self._content: bytes | bytearray | memoryview | None = content

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Attachment:
        """What is in an open file; takes the descriptor over."""
        attachment = cls()
        attachment._descriptor, attachment._content = descriptor, None
        return attachment

    @classmethod
    def written(cls, name: str, write: Callable[[BinaryIO], Any]) -> Attachment:
        """What `write` writes, in a file in memory; `name` is what tools of the system show."""
        attachment = cls.from_descriptor(anonymous_file(name))
        with os.fdopen(os.dup(attachment.fileno()), "wb") as file:
            write(file)
        return attachment

    @property
    def size(self) -> int:
        if self._descriptor is not None:
            return os.fstat(self._descriptor).st_size
        return memoryview(self._bytes()).nbytes

    def view(self, private: bool = False) -> memoryview:
        """The content without a copy; it stays when the attachment goes. With `private` it can be written to, and
        nobody else sees that."""
        if self._descriptor is None:
            return memoryview(bytearray(self._bytes()) if private else self._bytes())
        if not self.size:  # Nothing cannot be mapped.
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY if private else mmap.ACCESS_READ))

    def open(self) -> BinaryIO:
        """A file to read the content from, with a position of its own."""
        if self._descriptor is None or not self.size:
            return io.BytesIO(b"" if self._descriptor is not None else self._bytes())
        return cast(BinaryIO, mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def write_to(self, file: BinaryIO) -> None:
        """Copy the content into an open file."""
        view = self.view()
        for start in range(0, len(view), _PORTION_BYTES):
            file.write(view[start : start + _PORTION_BYTES])

    def fileno(self) -> int:
        """The descriptor of the file, which bytes are put into first; for engines that hand it over."""
        if self._descriptor is None:
            content = self._bytes()
            self._descriptor = Attachment.written("paceline-attachment", lambda file: file.write(content))._detach()
            self._content = None
        return self._descriptor

    def _detach(self) -> int:
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None
        return descriptor

    def _bytes(self) -> bytes | bytearray | memoryview:
        if self._content is None:
            raise ValueError("the attachment is closed")
        return self._content

    def close(self) -> None:
        """Give the content back; views of it stay valid. May be called again."""
        descriptor, self._descriptor, self._content = self._descriptor, None, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        """By value, for whoever pickles it without knowing about attachments."""
        return Attachment, (bytes(self.view()),)


def anonymous_file(name: str) -> int:
    """The descriptor of a file without a name: gone with its last descriptor, whatever happens."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def parts_of(content: memoryview, part_bytes: int = PART_BYTES) -> Iterator[bytes | memoryview]:
    """What is sent of an attachment where its file cannot be handed over: its size, and then its content."""
    yield SIZE.pack(len(content))
    for start in range(0, len(content), part_bytes):
        yield content[start : start + part_bytes]


class Arrivals:
    """The attachments that have come ahead of their message, on one connection, as files or in parts."""

    def __init__(self) -> None:
        self.complete: list[Attachment] = []
        self._current: int | None = None
        """The descriptor of the one whose content is coming in."""
        self._missing = 0

    def take_in(self, body: bytes, fds: tuple[int, ...]) -> None:
        """Some files, or a part. Raises ValueError for a part that makes no sense."""
        if fds:
            self.complete += map(Attachment.from_descriptor, fds)
        elif self._missing:
            self._take_part(body)
        elif len(body) == SIZE.size:
            self._take_size(*SIZE.unpack(body))
        else:
            raise ValueError("a part of an attachment that nobody announced")

    def _take_size(self, size: int) -> None:
        if not size:
            self.complete.append(Attachment())
            return
        self._current, self._missing = anonymous_file("paceline-attachment"), size

    def _take_part(self, body: bytes) -> None:
        assert self._current is not None
        if len(body) > self._missing:
            raise ValueError("more of an attachment than was announced")
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(self._current, rest) :]
        self._missing -= len(body)
        if not self._missing:
            self.complete.append(Attachment.from_descriptor(self._current))
            self._current = None

    def take(self, fds: tuple[int, ...]) -> tuple[Attachment, ...]:
        """All attachments of a message that is here now, and came with these descriptors."""
        attachments, self.complete = [*self.complete, *map(Attachment.from_descriptor, fds)], []
        return tuple(attachments)

    def take_no_more(self) -> None:
        """The rest of the one that is coming in will not come: it is empty."""
        self._forget_current()
        self.complete.append(Attachment())

    def close(self) -> None:
        """Forget what has come."""
        self.complete = []
        self._forget_current()

    def _forget_current(self) -> None:
        self._missing = 0
        if self._current is not None:
            os.close(self._current)
            self._current = None
