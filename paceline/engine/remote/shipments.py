"""The attachments that the driver sends to an agent: each of them once, one after the other, in small pieces."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator

from paceline.air.attachment import Attachment
from paceline.engine.frames import content_of

SHARED_BYTES = 64 * 1024
"""From here on an attachment goes to the agent, for all workers of its machine; a smaller one goes to each of them."""
PIECE_BYTES = 1 << 20
"""Signs of life and other messages go between pieces."""


def is_shared(attachment: Attachment) -> bool:
    return attachment.size >= SHARED_BYTES


class Shipments:
    """They are numbered in the order in which they are sent, on both sides."""

    def __init__(self) -> None:
        self.there = 0
        """How many have been sent: those with smaller numbers."""
        self._count = itertools.count()
        self._numbers: weakref.WeakKeyDictionary[Attachment, int] = weakref.WeakKeyDictionary()
        self._outgoing: deque[Iterator[bytes | memoryview]] = deque()

    def is_known(self, attachment: Attachment) -> bool:
        return attachment in self._numbers

    def number_of(self, attachment: Attachment) -> int:
        return self._numbers[attachment]

    def is_there(self, attachment: Attachment) -> bool:
        return self._numbers[attachment] < self.there

    def add(self, attachment: Attachment) -> int:
        """Send it when those before it are sent."""
        number = self._numbers[attachment] = next(self._count)
        self._outgoing.append(content_of(attachment, PIECE_BYTES))
        return number

    def next_piece(self) -> bytes | memoryview | None:
        """None if there is nothing to send."""
        while self._outgoing:
            piece = next(self._outgoing[0], None)
            if piece is not None:
                return piece
            self._outgoing.popleft()
            self.there += 1
        return None
