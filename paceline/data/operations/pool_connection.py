"""How a pool and one of its processes talk: frames over a socket, rows as Arrow IPC."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from paceline.data.objects import packed, read_rows

if TYPE_CHECKING:
    from paceline.data.block import Chunk

HEADER = struct.Struct("<BQQ")
"""Kind, size of the note, size of the rows."""

TASK = 1
"""To the process: rows, and as note the spot where they are from."""
RESULT = 2
"""Rows that came out of a task; there may be several."""
DONE = 3
"""That was the last result of the task."""
FAILED = 4
"""The task failed; the note says how."""


class Connection:
    """One end. Never waits for a peer that is gone: `peer`, a descriptor that becomes readable at its death, says so.

    The end of the stream alone would not do: a grandchild that the peer forked may hold the socket open.
    """

    def __init__(self, sock: socket.socket, peer: int | None = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._peer = peer

    def close(self) -> None:
        self._socket.close()
        if self._peer is not None:
            os.close(self._peer)
            self._peer = None

    def send(self, kind: int, note: bytes = b"", rows: Chunk | None = None) -> None:
        body = memoryview(b"") if rows is None else memoryview(packed(rows.schema, [rows]))
        self._write(memoryview(HEADER.pack(kind, len(note), len(body)) + note))
        self._write(body)

    def receive(self) -> tuple[int, bytes, Chunk | None]:
        """The next frame. Raises ConnectionError at the end of the stream."""
        header = bytearray(HEADER.size)
        self._fill(memoryview(header))
        kind, note_size, body_size = HEADER.unpack(header)
        note = bytearray(note_size)
        self._fill(memoryview(note))
        if not body_size:
            return kind, bytes(note), None
        body = pa.allocate_buffer(body_size)
        self._fill(memoryview(body).cast("B"))
        _, (rows,) = read_rows(body)
        return kind, bytes(note), rows

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def _fill(self, data: memoryview) -> None:
        while data:
            try:
                size = self._socket.recv_into(data)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            if not size:
                raise ConnectionResetError("the other side hung up")
            data = data[size:]

    def _wait(self, event: int) -> None:
        poller = select.poll()
        poller.register(self._socket, event)
        if self._peer is not None:
            poller.register(self._peer, select.POLLIN)
        ready = [fd for fd, _ in poller.poll()]
        if self._socket.fileno() not in ready:
            raise ConnectionResetError("the other side ended")
