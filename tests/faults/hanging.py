"""A watch over hangs that is less patient, for tests: what takes minutes takes seconds. And a debugger."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import pytest

from paceline.run import hang_watch
from paceline.run.hang_samples import HangLimits, Sample, Samples
from paceline.testing.processes import Marks

SHORT = HangLimits(
    warn_after_s=0.5,
    longest_between_warnings_s=1.0,
    auto_at_least_s=1.5,
    gap_factor=1.0,
    sample_every_s=0.25,
    longest_between_samples_s=1.0,
    confirm_after_s=0.2,
    look_every_s=0.1,
)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watches of this driver use SHORT."""
    monkeypatch.setattr(hang_watch, "LIMITS", SHORT)


def open_gate_when_sure(monkeypatch: pytest.MonkeyPatch, marks: Marks) -> None:
    """Open the gate "sure" after so many samples over so long a time that a hang would have been found twice."""
    take, times = Samples.take, []

    def counted(samples: Samples, now: float, heard: Sequence[float]) -> Sample:
        times.append(now)
        if len(times) > 10 and now - times[0] > 2 * SHORT.auto_at_least_s + 1:
            marks.open_gate("sure")
        return take(samples, now, heard)

    monkeypatch.setattr(Samples, "take", counted)


class Debugger:
    """Attached to a process by this thread."""

    SEIZE, INTERRUPT, CONTINUE, DETACH = 0x4206, 0x4207, 7, 17
    EVERY_THREAD = 0x40000000  # __WALL

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ptrace("SEIZE")

    def _ptrace(self, request: str, data: int = 0) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (ctypes.c_long(getattr(self, request)), ctypes.c_long(self._pid), None, ctypes.c_long(data))
        if libc.ptrace(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"PTRACE_{request}")

    def stop(self) -> None:
        self._ptrace("INTERRUPT")
        os.waitpid(self._pid, self.EVERY_THREAD)

    def let_run(self) -> None:
        """Pass on the signals that have come."""
        stopped, status = os.waitpid(self._pid, self.EVERY_THREAD | os.WNOHANG)
        if stopped:
            self._ptrace("CONTINUE", os.WSTOPSIG(status) if status >> 16 == 0 else 0)

    def detach(self) -> None:
        self._ptrace("DETACH")
