"""What every engine must say about the processor time and memory that its workers use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from paceline.engine.base import WorkerChannel, WorkerGroup
from paceline.testing.engine_tools import PATIENCE_S, EngineTests, collect, collect_to_end, run_task

BUSY_S = 0.3
ROUNDING_S = 0.05
"""The system counts in hundredths of a second, user and kernel mode apart."""
BLOCK_BYTES = 64 << 20


class UsageContract(EngineTests):
    """The numbers of `WorkerGroup.usage`."""

    @pytest.fixture(autouse=True)
    def _needs_proc(self, request: pytest.FixtureRequest) -> None:
        if "usage" in request.node.name and not (self.shows_usage and os.path.exists("/proc/self/stat")):
            pytest.skip("the engine, or the system, does not show what workers use")

    def test_usage_counts_the_processor_time_of_each_rank(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.receive()
            end = time.process_time() + BUSY_S
            while time.process_time() < end:
                pass
            channel.send(b"worked")
            channel.receive()

        run_task(group, task)
        for rank in range(self.max_workers):  # One after the other: the rest must not look busy.
            before = group.usage(PATIENCE_S)
            assert sorted(before) == list(range(self.max_workers))
            group.reply(rank, b"")
            collect(group, lambda events: len(events) == 1)
            after = group.usage(PATIENCE_S)
            grown = {other: after[other].cpu_s - before[other].cpu_s for other in after}
            assert grown.pop(rank) > BUSY_S - ROUNDING_S
            assert all(seconds < BUSY_S - ROUNDING_S for seconds in grown.values())
        for rank in range(self.max_workers):
            group.reply(rank, b"")
        collect_to_end(group)

    def test_usage_includes_what_a_rank_has_started(self, group: WorkerGroup) -> None:
        script = (
            f"import time\nwhile time.process_time() < {BUSY_S}: pass\n"
            f"block = bytearray({BLOCK_BYTES})\nprint('worked', flush=True)\ninput()"
        )

        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.receive()
            with subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == "worked\n"
                channel.send(b"")
                channel.receive()
                child.communicate("\n")
            channel.send(b"")
            channel.receive()

        run_task(group, task)
        before = group.usage(PATIENCE_S)
        for rank in range(self.max_workers):
            group.reply(rank, b"")
        collect(group, lambda events: len(events) == self.max_workers)
        during = group.usage(PATIENCE_S)
        for rank in range(self.max_workers):
            group.reply(rank, b"")
        collect(group, lambda events: len(events) == self.max_workers)
        after = group.usage(PATIENCE_S)
        for rank in range(self.max_workers):
            assert during[rank].processes > before[rank].processes
            assert during[rank].memory_bytes - before[rank].memory_bytes > BLOCK_BYTES
            assert during[rank].cpu_s - before[rank].cpu_s > BUSY_S - ROUNDING_S
            assert after[rank].cpu_s >= during[rank].cpu_s - ROUNDING_S, "what a child has used is not forgotten"
            group.reply(rank, b"")
        collect_to_end(group)

    def test_usage_shows_memory_and_its_peak(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.receive()
            block = bytearray(BLOCK_BYTES)
            channel.send(b"")
            channel.receive()
            del block
            channel.send(b"")
            channel.receive()

        run_task(group, task)
        shown = []
        for _ in range(2):
            shown.append(group.usage(PATIENCE_S))
            for rank in range(self.max_workers):
                group.reply(rank, b"")
            collect(group, lambda events: len(events) == self.max_workers)
        shown.append(group.usage(PATIENCE_S))
        for rank in range(self.max_workers):
            empty, full, emptied = (usages[rank] for usages in shown)
            assert full.memory_bytes - empty.memory_bytes > BLOCK_BYTES / 2
            assert full.memory_bytes - emptied.memory_bytes > BLOCK_BYTES / 2
            assert min(emptied.peak_bytes, full.peak_bytes) > BLOCK_BYTES
            assert not full.is_traced
            group.reply(rank, b"")
        collect_to_end(group)

    def test_usage_of_a_group_that_is_gone_is_unknown(self, group: WorkerGroup) -> None:
        assert group.usage(PATIENCE_S)
        group.shutdown()
        assert group.usage() == {}
