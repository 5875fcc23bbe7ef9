"""Logs of workers stay below a limit, and nobody who reads along loses a line."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, session
from paceline.air.errors import ConfigError
from paceline.engine.local.crash_file import tail_of
from paceline.run import worker_logs
from paceline.run.worker_logs import LogFollower, LogRotation, older_log
from paceline.testing.processes import wait_for
from paceline.train import DataParallelTrainer
from paceline.tune import Tuner
from paceline.tune.experiment.restoring import Restoration
from paceline.tune.experiment.settling import ResumeRules
from paceline.tune.trainable.kinds import kind_of
from tests.train.quick import quick_trainer

LIMIT = 64 * 1024


def append(path: Path, text: str) -> None:
    """As a worker does."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def lines(start: int, count: int) -> str:
    return "".join(f"line {number:07d}\n" for number in range(start, start + count))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank_0.log"


def settle(rotation: LogRotation) -> None:
    """Look now, without waiting for the next look, and see it through."""
    rotation.look(at_once=True)
    rotation.wait()


def test_what_is_too_long_moves_to_the_older_file(log: Path) -> None:
    rotation = LogRotation({0: log, 1: log.with_name("rank_1.log")}, LIMIT)
    first, second = lines(0, 6000), lines(6000, 6000)
    append(log, "short\n")
    settle(rotation)
    assert log.read_text() == "short\n"
    assert not older_log(log).exists()
    append(log, first)
    settle(rotation)
    assert log.read_text() == ""
    assert older_log(log).name == "rank_0.log.1"
    assert older_log(log).read_text() == "short\n" + first
    assert older_log(log).stat().st_mode & 0o777 == 0o600
    append(log, second)
    settle(rotation)
    assert older_log(log).read_text() == second
    assert sorted(path.name for path in log.parent.iterdir()) == ["rank_0.log", "rank_0.log.1"]


def test_of_a_flood_only_the_end_is_kept(log: Path) -> None:
    follower = LogFollower({0: log})
    append(log, lines(0, 1000))
    shown = "".join(text for _, text in follower.read())
    append(log, lines(1000, 39_000))
    settle(LogRotation({0: log}, LIMIT, [follower]))
    assert older_log(log).read_text() == lines(0, 40_000)[-2 * LIMIT :]
    append(log, "new\n")
    shown += "".join(text for _, text in follower.drain())
    skipped = 39_000 * 13 - 2 * LIMIT
    notice = f"({skipped} bytes of output are not shown, there was too much of it)\n"
    assert shown == lines(0, 1000) + notice + lines(0, 40_000)[-2 * LIMIT :] + "new\n"
    follower.close()


def test_a_grandchild_that_holds_the_descriptor_goes_on(log: Path) -> None:
    """What it writes after the rotation is at the beginning of the log, without a gap."""
    with log.open("ab") as file:
        script = f"print('x' * {LIMIT}, flush=True); input(); print('later', flush=True)"
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=file)
    rotation = LogRotation({0: log}, LIMIT)
    wait_for(lambda: log.stat().st_size > LIMIT, "the child's output")
    settle(rotation)
    assert log.stat().st_size == 0
    child.communicate(b"\n", timeout=60)
    assert log.read_bytes() == b"later\n"
    assert older_log(log).read_text() == "x" * LIMIT + "\n"


def test_the_follower_loses_and_repeats_nothing(log: Path) -> None:
    follower = LogFollower({0: log})
    rotation = LogRotation({0: log}, LIMIT, [follower])
    text, written, shown = lines(0, 60_000), 0, ""
    while written < len(text):
        for size in (1, 7, 30_000, 45_001):
            append(log, text[written : written + size])
            written += size
            shown += "".join(part for _, part in follower.read())
        settle(rotation)
    shown += "".join(part for _, part in follower.drain())
    assert shown == text
    assert older_log(log).stat().st_size < len(text) / 4
    follower.close()


def test_a_follower_that_lags_by_more_than_the_older_file_says_what_it_skips(log: Path) -> None:
    follower = LogFollower({0: log})
    rotation = LogRotation({0: log}, LIMIT, [follower])
    for start in (0, 10_000, 20_000):
        append(log, lines(start, 10_000))
        settle(rotation)
    shown = "".join(part for _, part in follower.drain())
    assert shown.endswith(lines(20_000, 10_000))
    assert "(260000 bytes of output" in shown
    assert "line 0010000" not in shown
    follower.close()


def test_a_follower_whose_older_file_was_removed_goes_on(log: Path) -> None:
    follower = LogFollower({0: log})
    append(log, lines(0, 6000))
    rotation = LogRotation({0: log}, LIMIT, [follower])
    rotation.look(at_once=True)

    def was_moved() -> bool:
        assert list(follower.read()) == [], "it leaves the log alone meanwhile"
        return older_log(log).exists() and log.stat().st_size == 0

    wait_for(was_moved, "the log to be moved")
    older_log(log).unlink()
    rotation.wait()
    append(log, "new\n")
    assert list(follower.drain()) == [(0, "(78000 bytes of output are not shown, there was too much of it)\nnew\n")]
    follower.close()


def test_writers_are_not_held_up_and_lines_stay_whole(log: Path) -> None:
    """A writer at full speed: what is in the two files at the end is the end of what was written."""
    end = threading.Event()
    starts = range(0, 10_000_000, 50)
    last = 0

    def write() -> None:
        nonlocal last
        for start in starts:
            if end.is_set():
                break
            append(log, lines(start, 50))
        append(log, lines(start, 50))  # the log is not touched any more, so this must be there
        last = start + 49

    def rotated() -> bool:
        settle(rotation)
        times.update([older_log(log).stat().st_mtime_ns] if older_log(log).exists() else [])
        return len(times) > 10

    times: set[int] = set()
    writer = threading.Thread(target=write)
    rotation = LogRotation({0: log}, LIMIT)
    writer.start()
    try:
        wait_for(rotated, "ten rotations")
    finally:
        end.set()
        writer.join()
    kept = older_log(log).read_text() + log.read_text()
    assert len(kept) >= LIMIT
    numbers = [int(number) for number in re.findall(r"^line (\d{7})$", kept, re.MULTILINE)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == last
    rest = re.sub(r"^line \d{7}\n", "", kept, flags=re.MULTILINE)
    assert len(rest.splitlines()) <= 3, "more than a line that was cut off, and the line that says so"


def test_what_is_lost_to_a_fast_writer_is_said(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that adds something whenever something is copied."""
    pread, mover = os.pread, "paceline-logs"
    starts = iter(range(10_000, 1_000_000, 5_000))

    def slow_pread(descriptor: int, size: int, position: int) -> bytes:
        chunk = pread(descriptor, size, position)
        if threading.current_thread().name == mover:
            append(log, lines(next(starts), 5_000))
        return chunk

    follower = LogFollower({0: log})
    append(log, lines(0, 10_000))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", slow_pread)
        patch.setattr(worker_logs, "MOST_PASSES", 1)
        settle(LogRotation({0: log}, 2 * LIMIT - 2000, [follower]))
    notice = "\n(65000 bytes of output are lost, written while this log was moved)\n"
    assert older_log(log).read_text() == lines(0, 15_000) + notice
    append(log, "new\n")
    assert "".join(text for _, text in follower.drain()) == lines(0, 15_000) + notice + "new\n"
    assert log.read_text() == "new\n"
    follower.close()


def test_a_copy_that_fails_does_not_cost_the_older_file(log: Path) -> None:
    warnings: list[str] = []
    rotation = LogRotation({0: log}, LIMIT, (), warnings.append)
    append(log, lines(0, 6000))
    settle(rotation)
    append(log, lines(6000, 6000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))  # as if the disk were full
    try:
        settle(rotation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert older_log(log).read_text() == lines(0, 6000)
    assert log.read_text() == lines(6000, 6000)
    assert sorted(path.name for path in log.parent.iterdir()) == ["rank_0.log", "rank_0.log.1"]
    (warning,) = warnings
    assert str(older_log(log)) in warning


def test_a_log_that_cannot_be_copied_stays_as_it_is(log: Path) -> None:
    older_log(log).mkdir()
    warnings: list[str] = []
    rotation = LogRotation({0: log}, LIMIT, (), warnings.append)
    append(log, lines(0, 6000))
    settle(rotation)
    settle(rotation)
    assert log.read_text() == lines(0, 6000)
    (warning,) = warnings
    assert "max_log_bytes" in warning
    assert str(older_log(log)) in warning


def test_without_a_limit_nothing_is_moved(log: Path) -> None:
    append(log, lines(0, 6000))
    settle(LogRotation({0: log}, None))
    assert log.read_text() == lines(0, 6000)


def test_the_tail_of_a_log_that_was_just_rotated(log: Path) -> None:
    append(log, lines(0, 6000))
    settle(LogRotation({0: log}, LIMIT))
    append(log, "the end\n")
    assert tail_of(str(log)).endswith("line 0005999\nthe end")
    assert len(tail_of(str(log))) <= 4096


@pytest.mark.parametrize("value", [0, -1, 1.5, "256 MiB", True])
def test_the_limit_is_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_log_bytes"):
        RunConfig(max_log_bytes=value)


def prints(bytes_per_step: int) -> Callable[[], None]:
    def loop() -> None:
        for step in range(8):
            text = f"step {step} " + "x" * 90 + "\n"
            print(text * (bytes_per_step // len(text)), end="", flush=True)
            os.system("echo from a grandchild")
            session.report({"step": step})
        print("the last line")

    return loop


def test_a_restored_run_keeps_its_limit(tmp_path: Path) -> None:
    result = quick_trainer(lambda: None, workers=1, storage_path=str(tmp_path), max_log_bytes=LIMIT).fit()
    again = DataParallelTrainer.restore(result.path, train_loop_per_worker=lambda: None)
    assert again.run_config.max_log_bytes == LIMIT


def test_a_restored_search_keeps_its_limit(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": 1}

    run_config = RunConfig(storage_path=str(tmp_path), name="search", verbose=0, max_log_bytes=LIMIT)
    grid = Tuner(trial, run_config=run_config).fit()
    restored = Restoration.of(grid.experiment_path, kind_of(trial), ResumeRules(), None, None, None, None)
    assert restored.run_config.max_log_bytes == LIMIT


@pytest.mark.parametrize("verbose", [0, 2])
def test_a_run_that_prints_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verbose: int
) -> None:
    monkeypatch.setattr(worker_logs, "LOOK_EVERY_S", 0.0)
    # A decision is asked for, so that the workers wait for the driver at each step.
    stop = {"step": 100}
    trainer = quick_trainer(
        prints(200_000), storage_path=str(tmp_path), name="run", verbose=verbose, max_log_bytes=LIMIT, stop=stop
    )
    result = trainer.fit()
    assert result.error is None
    logs = Path(result.path) / "logs"
    for rank in range(2):
        log = logs / f"rank_{rank}.log"
        kept = log.stat().st_size + older_log(log).stat().st_size
        assert kept < 8 * 200_000, "nothing was dropped"
        # Of the last line alone this cannot be said: it may be written in the moment of a truncation.
        assert "step 7 " in older_log(log).read_text() + log.read_text()
    shown = capsys.readouterr().out
    if verbose:
        assert shown.count("step 7 ") > 2
