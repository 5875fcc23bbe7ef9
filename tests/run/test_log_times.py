"""When a worker's log was how long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paceline.run import log_times
from paceline.run.log_times import LogTimes, Times, read_times, times_path
from paceline.run.worker_logs import LogRotation, older_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank_0.log"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def watch(log: Path) -> LogTimes:
    return LogTimes({0: log}, {0: older_log(log)})


def notes(log: Path) -> Times:
    found = read_times(times_path(log))
    assert found is not None
    return found


def test_each_growth_is_noted_with_its_time(log: Path) -> None:
    times = watch(log)
    times.look(at_once=True)
    assert not times_path(log).exists(), "nothing was written"
    before = time.time()
    append(log, "one\n")
    times.look(at_once=True)
    between = time.time()
    append(log, "two\nthree\n")
    times.look(at_once=True)
    times.look(at_once=True)
    found = notes(log)
    assert (found.base, list(found.sizes)) == (0, [4, 14])
    assert before <= found.walls[0] <= between <= found.walls[1] <= time.time()
    assert (found.at(4), found.at(8), found.at(14), found.at(15)) == (
        *found.walls[:1],
        found.walls[1],
        found.walls[1],
        None,
    )
    assert (found.offset_at(before), found.offset_at(between)) == (0, 4)
    assert times_path(log).stat().st_mode & 0o777 == 0o600
    times.close()


def test_it_rarely_looks(log: Path) -> None:
    times = watch(log)
    times.look()
    append(log, "one\n")
    times.look()
    assert not times_path(log).exists()
    times.close()
    assert list(notes(log).sizes) == [4], "at the end it looks once more"


def test_with_many_logs_it_looks_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [LogTimes({rank: tmp_path / f"{rank}.log" for rank in range(1000)}, {}) for _ in range(3)]
    assert log_times._logs_here >= 3000
    for times in many:
        times.close()
        times.close()
    assert log_times._logs_here < 3000


def test_the_next_driver_continues(log: Path) -> None:
    times = watch(log)
    append(log, "one\n")
    times.close()
    with times_path(log).open("ab") as file:
        file.write(b"torn")
    append(log, "two\n")
    times = watch(log)
    times.look(at_once=True)
    append(log, "three\n")
    times.close()
    assert list(notes(log).sizes) == [4, 8, 14]
    assert times_path(log).stat().st_size == 4 * 16


def test_notes_move_with_the_content(log: Path) -> None:
    times = watch(log)
    rotation = LogRotation({0: log}, 20, [times], truncated=times.truncated)
    append(log, "one\n")
    times.look(at_once=True)
    append(log, "two, which is longer\n")
    rotation.look(at_once=True)
    rotation.wait()
    append(log, "three\n")
    times.look(at_once=True)
    assert list(notes(older_log(log)).sizes) == [4, 25]
    assert (notes(log).base, list(notes(log).sizes)) == (25, [6])
    append(log, "four, which is longer, too\n")
    rotation.look(at_once=True)
    rotation.wait()
    times.close()
    assert (notes(older_log(log)).base, list(notes(older_log(log)).sizes)) == (25, [6, 33])
    assert (notes(log).base, notes(log).is_moving) == (25 + 33, False)


def test_notes_of_what_was_dropped_go_with_it(log: Path) -> None:
    times = watch(log)
    rotation = LogRotation({0: log}, 4, [times], truncated=times.truncated)
    for text in ("one\n", "two\n", "three\n"):
        append(log, text)
        times.look(at_once=True)
    rotation.look(at_once=True)
    rotation.wait()
    append(log, "four\n")
    times.close()
    assert older_log(log).read_text() == "o\nthree\n"
    assert (notes(older_log(log)).base, list(notes(older_log(log)).sizes)) == (6, [2, 8])
    assert (notes(log).base, list(notes(log).sizes)) == (14, [5])


def test_a_driver_that_died_while_it_moved_a_log(log: Path) -> None:
    times = watch(log)
    append(log, "one\ntwo\n")
    times.pause([0])
    assert notes(log).is_moving
    os.rename(log, older_log(log))
    append(log, "three\n")
    times = watch(log)
    times.close()
    assert (notes(log).base, list(notes(log).sizes), notes(log).is_moving) == (8, [6], False)


def test_a_log_that_could_not_be_moved(log: Path) -> None:
    times = watch(log)
    append(log, "one\n")
    times.pause([0])
    times.resume({})
    append(log, "two\n")
    times.close()
    assert (list(notes(log).sizes), notes(log).is_moving) == ([4, 8], False)


def test_a_log_that_somebody_truncated(log: Path) -> None:
    times = watch(log)
    append(log, "one\ntwo\n")
    times.look(at_once=True)
    log.write_text("new\n")
    times.close()
    assert list(notes(log).sizes) == [4]


def test_a_clock_that_was_set_back_does_not_change_the_order(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = watch(log)
    for wall in (1000.0, 900.0, 1100.0):
        append(log, "line\n")
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        times.look(at_once=True)
    assert list(notes(log).walls) == [1000.0, 1000.0, 1100.0]
    times.close()


def test_a_file_that_is_not_ours(log: Path, tmp_path: Path) -> None:
    times_path(log).write_bytes(os.urandom(1000))
    found = notes(log)
    assert list(found.sizes) == sorted(found.sizes)
    append(log, "one\n")
    times_path(log).unlink()
    times_path(log).symlink_to(tmp_path / "elsewhere")
    times = watch(log)
    times.close()
    assert not (tmp_path / "elsewhere").exists()
    assert read_times(tmp_path / "nothing") is None
