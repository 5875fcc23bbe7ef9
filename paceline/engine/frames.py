"""Frames over a stream socket: what every process of an engine talks in.

A frame is a header (length of the body, tag, number of descriptors) and a body. One read takes whatever the socket
holds and cuts it into many frames: that keeps the driver at about a microsecond per small message.

Over a Unix socket descriptors travel with the first byte of their frame, so they are always here by the time its
header is. Attachments of a message are such descriptors; over any other socket, their content goes ahead of it.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
import termios
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from paceline.air.attachment import Attachment, parts_of
from paceline.air.errors import EngineError
from paceline.air.process import own_pid

HEADER = struct.Struct("<IBB")
HEADER_SIZE = HEADER.size
READ_SIZE = 64 * 1024
LARGE_BODY = 64 * 1024
"""From here on a body is read straight into its own buffer instead of being pieced together."""
LARGE_READ_PER_CALL = 16 * 1024 * 1024
"""One large body must not keep the driver from serving the other workers."""
MAX_FDS = 16
"""In one frame; attachments beyond that go ahead of it in frames of their own."""
ATTACHED = 0
"""The tag of frames that bring attachments of the next message: some descriptors, or one of the `parts_of` it."""
SHARED = 255
"""The tag of a frame that stands for an attachment of the next message that comes in another way: from the agent of the
machine, which has it for all workers there."""
MAX_BODY = 2**32 - 1
ANCILLARY_SIZE = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
READ_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Frame = tuple[int, bytes, tuple[int, ...]]
Part = tuple[int, bytes | memoryview, Sequence[int]]


class FrameSocket:
    """One end of a connection.

    `send` waits until everything is written and may be called from any thread: for workers.
    `post` never waits, what does not fit is kept and written by `flush`: for the driver and
    the warden, which must not hang on a process that does not read. An end uses one of the two.
    """

    def __init__(self, sock: socket.socket, *, read_limit: int = MAX_BODY, send_limit: int = MAX_BODY) -> None:
        self.sock = sock
        self._pid = own_pid()
        self._passes_descriptors = sock.family == socket.AF_UNIX
        self.closed = False
        """True once the other side has hung up and everything it sent has been read."""
        self.broken = ""
        """What was wrong, if the other side sent something that cannot be understood."""
        self.took_something = False
        """Whether the last read took anything from the socket, be it a part of a frame."""
        self._read_limit = read_limit
        self._send_limit = send_limit
        self._rest = b""
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_head: tuple[int, tuple[int, ...]] = (0, ())
        self._fds: deque[int] = deque()
        self._send_lock = threading.Lock()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.closed = True
        close_all(self._fds)
        self._fds.clear()
        close_all(self._large_head[1])  # Of a frame that never got complete.
        self._large_head = (0, ())
        for _, fds in self._unsent:
            close_all(fds)
        self._unsent.clear()
        self.sock.close()

    def _check_owner(self) -> None:
        """A forked child would take frames from its parent, or write into the middle of one."""
        if own_pid() != self._pid:
            raise EngineError(f"this connection belongs to process {self._pid}, not to its forked child {own_pid()}")

    # Reading

    def read(self) -> list[Frame]:
        """The frames that are here by now; never waits. Sets `closed` at the end of the stream.

        One call may take only a part of a large frame: `took_something` says whether to call again.
        """
        self._check_owner()
        self.took_something = False
        if self.broken:
            return []
        if self._large is not None:
            return self._read_large()
        try:
            chunk, ancillary, _, _ = self.sock.recvmsg(READ_SIZE, ANCILLARY_SIZE, READ_FLAGS)
        except BlockingIOError:
            return []
        except OSError:
            chunk, ancillary = b"", []
        for _level, _kind, data in ancillary:
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            self._fds.extend(received)
        if not chunk:
            self.closed = True
            return []
        self.took_something = True
        return self._cut(self._rest + chunk)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        unpack = HEADER.unpack_from
        position, end = 0, len(data)
        while end - position >= HEADER_SIZE:
            length, tag, fd_count = unpack(data, position)
            body_start = position + HEADER_SIZE
            next_position = body_start + length
            if next_position > end:
                if length > self._read_limit:
                    self._refuse(f"a message of {length:,} bytes; the limit is {self._read_limit:,}")
                elif length > LARGE_BODY:
                    self._begin_large(length, tag, fd_count, memoryview(data)[body_start:])
                    position = end
                break
            frames.append((tag, data[body_start:next_position], self._take_fds(fd_count) if fd_count else ()))
            position = next_position
        self._rest = data[position:]
        return frames

    def _begin_large(self, length: int, tag: int, fd_count: int, beginning: memoryview) -> None:
        self._large_head = (tag, self._take_fds(fd_count))
        self._large = bytearray(length)
        self._large[: len(beginning)] = beginning
        self._large_filled = len(beginning)

    def _read_large(self) -> list[Frame]:
        assert self._large is not None
        view = memoryview(self._large)
        stop = min(len(view), self._large_filled + LARGE_READ_PER_CALL)
        while self._large_filled < stop:
            try:
                size = self.sock.recv_into(view[self._large_filled :], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                size = 0
            if size == 0:
                self.closed = True
                return []
            self._large_filled += size
            self.took_something = True
        if self._large_filled < len(view):
            return []
        (tag, fds), self._large_head = self._large_head, (0, ())
        body = bytes(view)
        view.release()
        self._large = None
        return [(tag, body, fds)]

    def _take_fds(self, count: int) -> tuple[int, ...]:
        if count > len(self._fds):
            self._refuse(f"a message announced {count} descriptors but {len(self._fds)} came")
            return ()
        return tuple(self._fds.popleft() for _ in range(count))

    def _refuse(self, reason: str) -> None:
        """Nothing after this can be understood: read no more."""
        self.broken = reason
        self.closed = True

    # Writing

    def send(self, tag: int, body: bytes, fds: Sequence[int] = ()) -> None:
        """Write one frame, waiting while the other side is behind. Any thread may call this."""
        self._check_owner()
        parts = self._pack(tag, body, fds)
        with self._send_lock:
            self._write(parts, fds)

    def send_attached(self, tag: int, body: bytes, attachments: Sequence[Attachment]) -> None:
        """The same for a frame with attachments; nothing gets between them and the frame."""
        if not attachments:
            self.send(tag, body)
            return
        self._check_owner()
        self._pack(tag, body, ())  # Refused before anything is sent, if it is too large.
        with self._send_lock:
            for frame_tag, content, fds in self._with_attachments(tag, body, attachments):
                self._write(self._pack(frame_tag, content, fds), fds)

    def _write(self, parts: list[memoryview], fds: Sequence[int]) -> None:
        first = parts[0]
        if fds:
            sent = self.sock.sendmsg([first], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            first = first[sent:]
        self.sock.sendall(first)
        for part in parts[1:]:
            self.sock.sendall(part)

    def send_unless_busy(self, tag: int, body: bytes = b"") -> None:
        """Write a small frame unless another thread is writing: then that frame is sign of life enough."""
        if self._send_lock.acquire(blocking=False):
            try:
                self.sock.sendall(self._pack(tag, body, ())[0])
            finally:
                self._send_lock.release()

    def post(self, tag: int, body: bytes, fds: Sequence[int] = ()) -> None:
        """Write one frame without waiting; `unsent` says whether `flush` must be called later."""
        self._check_owner()
        self._queue(tag, body, fds)
        self.flush()

    def post_attached(self, tag: int, body: bytes, attachments: Sequence[Attachment]) -> None:
        """The same for a frame with attachments."""
        if not attachments:
            self.post(tag, body)
            return
        self._check_owner()
        self._pack(tag, body, ())
        for frame_tag, content, fds in self._with_attachments(tag, body, attachments):
            self._queue(frame_tag, content, fds)
        self.flush()

    def queue(self, tag: int, body: bytes | memoryview = b"") -> None:
        """Leave a frame to be written by the next `post` or `flush`."""
        self._check_owner()
        self._queue(tag, body, ())

    def _queue(self, tag: int, body: bytes | memoryview, fds: Sequence[int]) -> None:
        parts = self._pack(tag, body, fds)
        self._unsent.append((parts[0], _duplicates(fds)))  # The caller may close its own before they are sent.
        self._unsent.extend((part, ()) for part in parts[1:])

    def _with_attachments(self, tag: int, body: bytes, attachments: Sequence[Attachment]) -> Iterator[Part]:
        """The frames that bring attachments, the one with the body last."""
        fds: list[int] = []
        if self._passes_descriptors:
            fds = [attachment.fileno() for attachment in attachments]
            while len(fds) > MAX_FDS:
                yield ATTACHED, b"", fds[:MAX_FDS]
                fds = fds[MAX_FDS:]
        else:
            for attachment in attachments:
                for part in parts_of(attachment.view()):
                    yield ATTACHED, part, ()
        yield tag, body, fds

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        return sum(len(data) for data, _ in self._unsent)

    def flush(self) -> None:
        """Write as much of what was posted as the socket takes."""
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                if fds:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    sent = self.sock.sendmsg([data], rights, socket.MSG_DONTWAIT)
                else:
                    sent = self.sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                sent = len(data)  # The other side is gone; reading says so, nobody waits for this.
            close_all(fds)
            if sent < len(data):
                self._unsent[0] = (data[sent:], ())
            else:
                self._unsent.popleft()

    def _pack(self, tag: int, body: bytes | memoryview, fds: Sequence[int]) -> list[memoryview]:
        if len(body) > self._send_limit:
            raise ValueError(f"a message of {len(body):,} bytes is too large; the limit is {self._send_limit:,}")
        if len(fds) > MAX_FDS:
            raise ValueError(f"a message can carry {MAX_FDS} descriptors, not {len(fds)}")
        header = HEADER.pack(len(body), tag, len(fds))
        if len(body) < LARGE_BODY:
            return [memoryview(header + body)]
        return [memoryview(header), memoryview(body)]

    # Waiting

    @property
    def unread_bytes(self) -> int:
        """How much is here that nobody has read."""
        if self.closed:
            return 0
        return int(struct.unpack("i", fcntl.ioctl(self.sock, termios.FIONREAD, b"\0" * 4))[0])

    def wait_readable(self, timeout: float | None) -> bool:
        """Wait until there is something to read; False once `timeout` seconds have passed."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    """All of them or none."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        close_all(made)
        raise
    return tuple(made)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that no exec'ed program inherits."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
