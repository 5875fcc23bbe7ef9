"""What is left of a fault handler's dump when it is shown to a user."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from paceline.engine import worker_loop
from paceline.engine.local import boot, crash_file
from paceline.engine.local.crash_file import CrashFile, user_stacks, wait_until_written

PULSE = f"""Thread 0x00007f47238ff6c0 (most recent call first):
  File "{worker_loop.__file__}", line 155 in beat
  File "{threading.__file__}", line 982 in run
"""
USERS = """Current thread 0x00007f4725250b80 (most recent call first):
  File "/home/me/train.py", line 5 in inner
  File "/home/me/train.py", line 9 in loop"""
CALLERS = f"""
  File "{worker_loop.__file__}", line 132 in _try_task
  File "{boot.__file__}", line 28 in <module>
"""


def test_only_the_users_part_is_left() -> None:
    assert user_stacks(f"{PULSE}\n{USERS}{CALLERS}") == USERS


def test_the_reason_of_a_crash_stays_and_the_list_of_modules_goes() -> None:
    dump = f"Fatal Python error: Segmentation fault\n\n{PULSE}\n{USERS}{CALLERS}\nExtension modules: a, b (total: 2)"
    assert user_stacks(dump) == f"Fatal Python error: Segmentation fault\n\n{USERS}"


def test_what_the_user_called_of_ours_stays() -> None:
    inside = USERS.replace("call first):\n", f'call first):\n  File "{worker_loop.__file__}", line 50 in receive\n')
    assert user_stacks(inside + CALLERS) == inside


def test_the_current_thread_comes_first_and_other_threads_of_the_user_stay() -> None:
    other = USERS.replace("Current thread", "Thread")
    assert user_stacks(f"{other}\n\n{USERS}{CALLERS}") == f"{USERS}\n\n{other}"


def test_a_current_thread_of_ours_stays_whole() -> None:
    ours = f"Current thread 0x1 (most recent call first):{CALLERS}".rstrip()
    assert user_stacks(f"{PULSE}\n{ours}") == ours


def test_without_any_frame_of_the_users_the_dump_stays() -> None:
    assert user_stacks(PULSE) == PULSE
    assert user_stacks("") == ""


def pieces_read(pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is read if one piece is written whenever the reader waits."""
    file, rest = CrashFile(), list(pieces)

    def write_next(_: float) -> None:
        if rest:
            os.write(file.fileno(), rest.pop(0).encode())

    clock = iter(range(100))
    monkeypatch.setattr(crash_file, "time", SimpleNamespace(sleep=write_next, monotonic=lambda: next(clock)))
    try:
        wait_until_written([file], 50)
        return file.read()
    finally:
        file.close()


def test_stacks_are_complete_when_the_thread_that_was_asked_shows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    heading, frames = USERS.split("\n", 1)
    assert pieces_read([PULSE, "", f"{heading}\n", "", "", f"{frames}\n"], monkeypatch) == f"{PULSE}{USERS}"


def test_a_thread_without_python_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [PULSE, *[""] * 20, "too late"]
    assert pieces_read(late, monkeypatch) == PULSE.strip()
