"""The attachments that the driver sends to an agent: each of them once, one after the other, in small pieces."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator

from paceline.air.attachment import SIZE, Attachment, parts_of

SHARED_BYTES = 64 * 1024
"""From here on an attachment goes to the agent, for all workers of its machine; a smaller one goes to each of them."""
PIECE_BYTES = 1 << 20
"""Signs of life and other messages go between pieces."""


def is_shared(attachment: Attachment) -> bool:
    return attachment.size >= SHARED_BYTES


class Shipments:
    """They are numbered in the order in which they are sent, on both sides. Nothing here keeps one alive: what nobody
    wants any more is not sent, or not to its end."""

    def __init__(self) -> None:
        self.there = 0
        """How many have been sent: those with smaller numbers."""
        self._count = 0
        self._numbers: weakref.WeakKeyDictionary[Attachment, int] = weakref.WeakKeyDictionary()
        self._outgoing: deque[weakref.ref[Attachment]] = deque()
        self._pieces: Iterator[bytes | memoryview] | None = None
        """What is left of the first of them, if it has been begun."""
        self.unwanted: list[int] = []
        """Of those that are there."""

    def is_known(self, attachment: Attachment) -> bool:
        return attachment in self._numbers

    def number_of(self, attachment: Attachment) -> int:
        return self._numbers[attachment]

    def is_there(self, attachment: Attachment) -> bool:
        return self._numbers[attachment] < self.there

    def add(self, attachment: Attachment) -> int:
        """Send it when those before it are sent."""
        number = self._numbers[attachment] = self._count
        self._count += 1
        self._outgoing.append(weakref.ref(attachment))
        return number

    def next_piece(self) -> bytes | memoryview | None:
        """None if there is nothing to send. Empty: the rest of the one that was begun is not sent."""
        while self._outgoing:
            piece = self._piece_of(self._outgoing[0]())
            if piece is not None:
                return piece
            if self._outgoing.popleft()() is None:
                self.unwanted.append(self.there)
            self._pieces = None
            self.there += 1
        return None

    def _piece_of(self, attachment: Attachment | None) -> bytes | memoryview | None:
        if attachment is None:
            begun, self._pieces = self._pieces, iter(())
            if begun is None:
                return SIZE.pack(0)  # It has a number: the agent must count it.
            return None if next(begun, None) is None else b""
        if self._pieces is None:
            self._pieces = parts_of(attachment.view(), PIECE_BYTES)  # Which keeps the content only.
        return next(self._pieces, None)

    def clear(self) -> None:
        """Nothing can be sent any more."""
        self._outgoing.clear()
        self._pieces = None
