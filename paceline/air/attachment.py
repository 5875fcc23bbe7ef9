"""Attachment: content that travels beside a message, such as a checkpoint in memory or the rows of a dataset.

It is bytes, or a file without a name that is gone with the last process that holds it. An engine on one machine hands
the file itself over, so that all processes share its pages; others send the content. Whoever drops the last reference
to an attachment gives it back: nobody has to close one, but may.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, cast

_PORTION_BYTES = 1 << 22


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
