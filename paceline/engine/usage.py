"""What a worker uses of its machine: processor time and memory, of its process and of everything below it."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """What one worker uses: its process, and what that has started, such as the workers of a DataLoader.

    It covers the descendants that are alive. Processor time of a child that has ended stays in the sum if its parent
    waited for it. Otherwise `cpu_s` can decrease.
    """

    cpu_s: float
    """Processor time used so far, in user and kernel mode. Three processes busy for a second have used 3."""
    memory_bytes: int
    """Resident memory (RSS). Pages that processes share, such as those of modules imported before a fork, count once
    for each of them."""
    peak_bytes: int
    """The most resident memory that the worker's own process has had, without what it has started."""
    processes: int = 1
    io_bytes: int = 0
    """What they have read and written so far by the system calls of that name, from files, pipes and terminals."""
    is_traced: bool = False
    """A debugger is attached to one of the processes."""
    private_bytes: int = 0
    """The part of the resident memory that is not pages of files, such as a mapped dataset."""

    @property
    def own_bytes(self) -> int:
        """The same, or all of the memory where an engine does not know it."""
        return self.private_bytes or self.memory_bytes
