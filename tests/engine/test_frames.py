from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from paceline.air.attachment import SIZE, Arrivals, Attachment
from paceline.engine import protocol
from paceline.engine.frames import ATTACHED, HEADER, MAX_FDS, Frame, FrameSocket, socket_pair
from paceline.engine.worker_loop import Channel
from tests.descriptors import open_descriptors

Pair = tuple[FrameSocket, FrameSocket]
LARGE = os.urandom(1000) * 10_000  # Two and a half parts.


@pytest.fixture
def pair() -> Iterator[Pair]:
    first, second = (FrameSocket(sock) for sock in socket_pair())
    yield first, second
    first.close()
    second.close()


def read_all(frames: FrameSocket, count: int) -> list[Frame]:
    found: list[Frame] = []
    while len(found) < count:
        assert frames.wait_readable(30)
        found.extend(frames.read())
    return found


def test_many_frames_are_cut_from_one_read(pair: Pair) -> None:
    left, right = pair
    for number in range(100):
        left.send(number, b"x" * number)
    assert right.read() == [(number, b"x" * number, ()) for number in range(100)]
    assert right.read() == []
    assert not right.closed


@pytest.mark.parametrize("size", [0, 1, 65_529, 65_530, 65_531, 65_536, 65_537, 200_000, 20_000_000])
def test_bodies_of_every_size_survive(pair: Pair, size: int) -> None:
    left, right = pair
    body = os.urandom(min(size, 1000)) * (size // 1000 + 1)
    body = body[:size]

    def write() -> None:
        for tag in (1, 2, 3):
            left.send(tag, body)

    writer = threading.Thread(target=write)
    writer.start()
    found = read_all(right, 3)
    writer.join()
    assert found == [(1, body, ()), (2, body, ()), (3, body, ())]


def test_a_frame_that_comes_in_pieces_is_put_together(pair: Pair) -> None:
    left, right = pair
    data = HEADER.pack(5, 7, 0) + b"hello" + HEADER.pack(0, 8, 0)
    found: list[Frame] = []
    for index in range(len(data)):
        left.sock.sendall(data[index : index + 1])
        found.extend(right.read())
    assert found == [(7, b"hello", ()), (8, b"", ())]


def test_descriptors_stay_with_their_frame(pair: Pair) -> None:
    left, right = pair
    pipes = [os.pipe() for _ in range(3)]
    left.send(1, b"none")
    for index, (reader, writer) in enumerate(pipes):
        os.write(writer, b"pipe %d" % index)
        left.send(2, b"large" * 20_000 if index == 1 else b"small", [reader])
    left.send(3, b"none")
    found = read_all(right, 5)
    assert [len(fds) for _, _, fds in found] == [0, 1, 1, 1, 0]
    for index, frame in enumerate(found[1:4]):
        (fd,) = frame[2]
        assert not os.get_inheritable(fd)
        assert os.read(fd, 100) == b"pipe %d" % index
        os.close(fd)
    for fds in pipes:
        for fd in fds:
            os.close(fd)


def test_post_never_waits_and_flush_writes_the_rest(pair: Pair) -> None:
    left, right = pair
    reader, writer = os.pipe()
    body = b"x" * 3_000_000
    left.post(1, body)
    left.post(2, b"with a descriptor", [reader])
    os.close(reader)  # The frame keeps its own copy.
    assert left.unsent
    found: list[Frame] = []
    while len(found) < 2:
        found.extend(right.read())
        left.flush()
    assert not left.unsent
    assert found[0] == (1, body, ())
    os.write(writer, b"alive")
    assert os.read(found[1][2][0], 10) == b"alive"
    os.close(found[1][2][0])
    os.close(writer)


def test_threads_do_not_mix_their_frames(pair: Pair) -> None:
    left, right = pair
    bodies = [bytes([letter]) * 100_000 for letter in b"abcd"]
    threads = [threading.Thread(target=left.send, args=(9, body)) for body in bodies for _ in range(5)]
    for thread in threads:
        thread.start()
    found = read_all(right, 20)
    for thread in threads:
        thread.join()
    assert sorted(body for _, body, _ in found) == sorted(bodies * 5)


def test_the_end_is_seen_after_everything_sent(pair: Pair) -> None:
    left, right = pair
    left.send(1, b"last")
    left.close()
    assert right.read() == [(1, b"last", ())]
    assert right.read() == []
    assert right.closed


def test_an_oversize_frame_is_refused_on_both_sides() -> None:
    """S9."""
    left, right = (FrameSocket(sock, read_limit=1000, send_limit=1000) for sock in socket_pair())
    with pytest.raises(ValueError, match=r"1,001 bytes.*1,000"):
        left.send(1, b"x" * 1001)
    left.sock.sendall(HEADER.pack(2, 1, 0) + b"ok" + HEADER.pack(2**32 - 1, 1, 0) + b"garbage")
    assert right.read() == [(1, b"ok", ())]
    assert "1,000" in right.broken
    left.send(1, b"whatever follows")
    assert right.read() == []
    assert right.closed
    left.close()
    right.close()


def test_announced_descriptors_that_did_not_come_are_an_error(pair: Pair) -> None:
    left, right = pair
    left.sock.sendall(HEADER.pack(0, 1, 3))
    right.read()
    assert "3 descriptors" in right.broken
    with pytest.raises(ValueError, match=str(MAX_FDS)):
        left.send(1, b"", [0] * (MAX_FDS + 1))


def test_descriptors_of_a_frame_that_never_got_complete_are_closed() -> None:
    before = open_descriptors()
    left, right = (FrameSocket(sock) for sock in socket_pair())
    left.post(1, b"x" * 3_000_000, [0, 1])
    assert right.read() == []
    assert left.unsent
    left.close()
    right.close()
    assert not open_descriptors() - before


def test_descriptors_that_nobody_took_are_closed() -> None:
    before = open_descriptors()
    left, right = (FrameSocket(sock) for sock in socket_pair())
    channel = Channel(right, 0, 1)
    left.send(protocol.MESSAGE, b"taken", [0])
    assert channel.receive(10) == b"taken"
    for _ in range(3):
        left.send(protocol.MESSAGE, b"waiting", [0, 1])
    left.send(ATTACHED, b"", [0, 1])
    left.sock.sendall(HEADER.pack(4, 1, 9))  # Announces more descriptors than there are.
    assert channel.receive(10) == b"waiting"
    left.close()
    channel.close()
    assert not open_descriptors() - before


def test_a_frame_whose_descriptors_cannot_be_copied_leaves_none_open(pair: Pair) -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match="Bad file descriptor"):
        pair[0].post(1, b"", [0, 1, 9999])
    assert not open_descriptors() - before
    assert not pair[0].unsent


# Attachments


def network_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that cannot hand descriptors over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    return left, right


@pytest.fixture(params=["unix", "network"])
def either_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    first, second = map(FrameSocket, socket_pair() if request.param == "unix" else network_pair())
    yield first, second
    first.close()
    second.close()


def taken(channel: Channel) -> list[bytes]:
    return [bytes(attachment.view()) for attachment in channel.take_attachments()]


@pytest.mark.parametrize("contents", [[b"small"], [b""], [LARGE], [b"", LARGE, b"x"], [b"%d" % n for n in range(50)]])
def test_attachments_come_with_their_message(either_pair: Pair, contents: list[bytes]) -> None:
    left, right = either_pair
    channel = Channel(right, 0, 1)
    attachments = [Attachment(content) for content in contents]

    def write() -> None:
        left.send(protocol.MESSAGE, b"before")
        left.send_attached(protocol.MESSAGE, b"with", attachments)
        left.send_attached(protocol.MESSAGE, LARGE, attachments)
        left.send(protocol.MESSAGE, b"after")

    writer = threading.Thread(target=write)
    writer.start()
    for body, expected in [(b"before", []), (b"with", contents), (LARGE, contents), (b"after", [])]:
        assert channel.receive(30) == body
        assert taken(channel) == expected
    writer.join()


def test_posted_attachments_come_when_there_is_room(either_pair: Pair) -> None:
    left, right = either_pair
    channel = Channel(right, 0, 1)
    sent = Attachment.written("paceline-test", lambda file: file.write(LARGE))
    left.post(protocol.MESSAGE, b"x" * 20_000_000)  # More than the line holds.
    left.post_attached(protocol.MESSAGE, b"with", [sent, Attachment(b"small")])
    sent.close()  # The frames keep what they need.
    received: list[bytes | None] = []
    while len(received) < 2:
        left.flush()
        body = channel.receive(0)
        if body is not None:
            received.append(body)
    assert received[1] == b"with"
    assert taken(channel) == [LARGE, b"small"]
    assert not left.unsent


def test_threads_do_not_mix_their_attachments(either_pair: Pair) -> None:
    left, right = either_pair
    channel = Channel(right, 0, 1)

    def write(letter: bytes) -> None:
        for _ in range(5):
            left.send_attached(protocol.MESSAGE, letter, [Attachment(letter * 500_000), Attachment(letter)])

    threads = [threading.Thread(target=write, args=(bytes([letter]),)) for letter in b"abcd"]
    for thread in threads:
        thread.start()
    for _ in range(20):
        letter = channel.receive(30)
        assert letter is not None
        assert taken(channel) == [letter * 500_000, letter]
    for thread in threads:
        thread.join()


def test_what_is_left_of_attachments_goes_with_the_connection() -> None:
    before = open_descriptors()
    left, right = map(FrameSocket, network_pair())
    channel = Channel(right, 0, 1)
    left.send(ATTACHED, SIZE.pack(100))
    left.send(ATTACHED, b"not all of it")
    assert channel.receive(0.05) is None
    left.close()
    channel.close()
    assert not open_descriptors() - before


@pytest.mark.parametrize("bodies", [[b"who announced this?"], [SIZE.pack(3), b"more than three"]])
def test_attachments_that_make_no_sense_are_refused(bodies: list[bytes]) -> None:
    arrivals = Arrivals()
    *before, last = bodies
    for body in before:
        arrivals.take_in(body, ())
    with pytest.raises(ValueError, match="attachment"):
        arrivals.take_in(last, ())
    arrivals.close()
