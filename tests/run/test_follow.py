"""The logs of workers, read while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.run.worker_logs import CHUNK_BYTES, LogFollower


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank_0.log"


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_when_they_are_complete(log: Path) -> None:
    follower = LogFollower({0: log})
    assert list(follower.read()) == [], "the file appears later"
    add(log, b"one\ntw")
    assert list(follower.read()) == [(0, "one\n")]
    assert list(follower.read()) == []
    add(log, b"o\nthree\nfo")
    assert list(follower.read()) == [(0, "two\nthree\n")]
    assert list(follower.drain()) == [(0, "fo")]
    assert list(follower.drain()) == []
    follower.close()


def test_every_rank_is_followed(tmp_path: Path) -> None:
    paths = {rank: tmp_path / f"rank_{rank}.log" for rank in range(3)}
    for rank in (0, 2):
        add(paths[rank], f"from {rank}\n".encode())
    follower = LogFollower(paths)
    assert list(follower.read()) == [(0, "from 0\n"), (2, "from 2\n")]
    follower.close()


def test_a_retry_starts_at_the_end(log: Path) -> None:
    add(log, b"first attempt\n")
    follower = LogFollower({0: log}, from_end=True)
    add(log, b"second attempt\n")
    assert list(follower.drain()) == [(0, "second attempt\n")]
    follower.close()


def test_one_reading_is_bounded_and_draining_gets_the_rest(log: Path) -> None:
    content = b"".join(b"line %d\n" % n for n in range(50_000))
    add(log, content)
    follower = LogFollower({0: log})
    ((_, first),) = follower.read()
    assert len(first) <= CHUNK_BYTES
    rest = [text for _, text in follower.drain()]
    assert all(text.endswith("\n") and len(text) <= 2 * CHUNK_BYTES for text in rest)
    assert (first + "".join(rest)).encode() == content
    follower.close()


def test_an_endless_line_comes_in_pieces(log: Path) -> None:
    line = "ü" * (5 * CHUNK_BYTES) + "\n"
    add(log, b"x" + line.encode() + b"next\n")
    follower = LogFollower({0: log})
    pieces = [text for _, text in follower.drain()]
    assert max(map(len, pieces)) <= 2 * CHUNK_BYTES
    assert "".join(pieces) == "x" + line + "next\n", "no character is cut in two"
    follower.close()


def test_a_slow_endless_line_does_not_pile_up(log: Path) -> None:
    follower = LogFollower({0: log})
    pieces = []
    for _ in range(8):
        add(log, b"y" * (CHUNK_BYTES // 2))
        pieces += [text for _, text in follower.read()]
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES] * 4
    follower.close()


def test_binary_output_is_shown_as_replacement_characters(log: Path) -> None:
    add(log, b"\xff\xfe\x00ok\n\xc3")
    follower = LogFollower({0: log})
    assert list(follower.drain()) == [(0, "��\x00ok\n"), (0, "�")]
    follower.close()
