"""Control groups of the kernel, which limit the memory of processes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from paceline.testing.processes import wait_for


class ControlGroups:
    """Makes groups, and removes them when their processes are gone."""

    def __init__(self) -> None:
        first = Path("/sys/fs/cgroup/memory")
        self._root, self._limit = (
            (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
        )
        self._made: list[Path] = []

    def make(self, limit: int) -> Path:
        """A group whose processes have so many bytes of memory together. Skips the test where that is not possible."""
        group = self._root / f"paceline-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
            self._made.append(group)
            (group / self._limit).write_text(str(limit))
        except OSError as error:
            self.remove()
            pytest.skip(f"control groups cannot be made here: {error}")
        return group

    def killed(self, group: Path) -> bool:
        """Whether the kernel has ended a process of the group because of its memory."""
        counts = group / ("memory.oom_control" if "limit_in_bytes" in self._limit else "memory.events")
        return any(line.split() > ["oom_kill", "0"] for line in counts.read_text().splitlines() if "oom_kill " in line)

    def remove(self) -> None:
        """The kernel keeps a process that has just ended in its group for a moment."""
        for group in self._made:
            wait_for(lambda group=group: not (group / "cgroup.procs").read_text(), "the control group to be empty")
            group.rmdir()
        self._made.clear()
