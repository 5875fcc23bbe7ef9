"""Which ranks hang: by time, by what samples show, and what is no hang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.engine.usage import Usage
from paceline.run import hang_watch
from paceline.run.hang_samples import HangLimits
from paceline.run.hang_watch import HangTimeout, HangWatch, Progress, Stall
from paceline.run.positions import KnownFrames

LIMITS = HangLimits()
WARN_S = LIMITS.warn_after_s
AUTO_S = LIMITS.auto_at_least_s
KNOWN = KnownFrames(["lib.net:all_reduce", "lib.net:barrier"], ["lib.model:backward"])


def stack(line: int, *inside: str, function: str = "train") -> str:
    """Of a rank at this line of the user's program, which has called functions of a library."""
    called = [f'  File "/x/site-packages/{name}' for name in reversed(inside)]
    own = f'  File "/home/me/train.py", line {line} in {function}'
    return "\n".join(["Current thread 0x01 (most recent call first):", *called, own])


ALL_REDUCE = 'lib/net.py", line 5 in all_reduce'
BARRIER = 'lib/net.py", line 9 in barrier'
BACKWARD = 'lib/model.py", line 7 in backward'


class Scenery:
    """Ranks in a world where time passes when the test says so. Looks come every half second, as in a driver."""

    def __init__(self, world_size: int = 2) -> None:
        self.now = 1000.0
        self.stacks_of = {rank: stack(10) for rank in range(world_size)}
        self.busy: set[int] = set()
        """Ranks whose processes use a whole core."""
        self.traced: set[int] = set()
        self.reading: set[int] = set()
        self.samples = 0
        self._used = dict.fromkeys(range(world_size), Usage(0.0, 0, 0))
        self.progress = Progress(list(range(world_size)), [], [5] * world_size)
        self.each_step: Callable[[], None] = lambda: None

    def stacks(self) -> dict[int, str]:
        self.samples += 1
        return {rank: self.stacks_of[rank] for rank in self.progress.running}

    def usage(self) -> dict[int, Usage]:
        return {rank: replace_traced(self._used[rank], rank in self.traced) for rank in self.progress.running}

    def watch(self, timeout: HangTimeout = "auto", **settings: object) -> HangWatch:
        return HangWatch(len(self.stacks_of), timeout, self, KNOWN, **settings)  # type: ignore[arg-type]

    def step(self, watch: HangWatch, seconds: float = 0.5) -> Stall | None:
        self.now += seconds
        for rank, used in self._used.items():
            cpu_s = used.cpu_s + (seconds if rank in self.busy else 0.0)
            io_bytes = used.io_bytes + (10_000_000 if rank in self.reading else 0)
            self._used[rank] = Usage(cpu_s, 0, 0, io_bytes=io_bytes)
        self.each_step()
        return watch.find(self.progress)

    def run(self, watch: HangWatch, seconds: float) -> list[Stall]:
        """What was found in that time, up to what ends the attempt."""
        found: list[Stall] = []
        for _ in range(int(seconds / 0.5)):
            stall = self.step(watch)
            if stall is not None:
                found.append(stall)
                if stall.kind is not None:
                    break
        return found


def replace_traced(usage: Usage, is_traced: bool) -> Usage:
    return Usage(usage.cpu_s, 0, 0, io_bytes=usage.io_bytes, is_traced=is_traced)


@pytest.fixture
def scenery(monkeypatch: pytest.MonkeyPatch) -> Scenery:
    scenery = Scenery()
    monkeypatch.setattr(hang_watch, "time", SimpleNamespace(monotonic=lambda: scenery.now))
    return scenery


def one_behind(scenery: Scenery) -> None:
    """Rank 0 has passed report 6 and waits for rank 1, which sits at line 12."""
    scenery.progress = replace(scenery.progress, last_index=[6, 5])
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(12, function="wait_in_vain")}


def kinds(found: list[Stall]) -> list[str | None]:
    return [stall.kind for stall in found]


# -- a number


def test_a_rank_behind_is_warned_about_and_then_hangs(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(WARN_S + 10)
    assert scenery.run(watch, WARN_S) == []
    warning, error = scenery.run(watch, 20)
    assert (warning.ranks, warning.kind) == ([1], None)
    assert (error.ranks, error.kind) == ([1], "hang")
    assert error.text == (
        "no progress within hang_timeout_s=70 s: rank 1 is at /home/me/train.py:12, in wait_in_vain, after report 5; "
        "rank 0 waits in all_reduce at /home/me/train.py:20, after report 6"
    )
    assert error.stacks.startswith("-- rank 1 --")
    assert "all_reduce" in error.stacks


@pytest.mark.parametrize("stall", [1.5, 4.0, 60.0])
def test_time_in_which_the_driver_stood_still_counts_one_second(scenery: Scenery, stall: float) -> None:
    one_behind(scenery)
    watch = scenery.watch(10.0)
    assert scenery.step(watch, stall) is None
    assert scenery.run(watch, 8.5) == []
    assert kinds(scenery.run(watch, 1)) == ["hang"]


def test_a_driver_that_is_always_slow_notices_a_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(10.0)
    looks = 1
    while scenery.step(watch, 1.5) is None:
        looks += 1
    assert looks == 11


def test_an_excused_rank_does_not_hang_and_its_time_starts_anew(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(10.0)
    scenery.progress = replace(scenery.progress, excused=[0, 1])
    assert scenery.run(watch, 2 * WARN_S) == []
    scenery.progress = replace(scenery.progress, excused=[])
    assert scenery.run(watch, 9.5) == []
    assert kinds(scenery.run(watch, 1)) == ["hang"]


def test_a_rank_that_never_arrived_is_named_although_no_rank_is_behind(scenery: Scenery) -> None:
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(12)}
    (error,) = scenery.run(scenery.watch(3.0), 10)
    assert error.ranks == [1]
    assert "rank 1 is at /home/me/train.py:12" in error.text


def test_the_rank_that_others_wait_for_is_named_even_if_it_is_ahead(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.stacks_of = {0: stack(30), 1: stack(20, BARRIER)}
    (error,) = scenery.run(scenery.watch(3.0), 10)
    assert error.ranks == [0]


def test_a_rank_that_shows_no_stack_is_named(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.stacks = lambda: {0: stack(20, ALL_REDUCE)}  # type: ignore[method-assign]
    (error,) = scenery.run(scenery.watch(3.0), 10)
    assert error.ranks == [1]
    assert "rank 1 did not show its stack, after report 5" in error.text


def test_a_rank_that_asks_and_does_not_report_makes_no_progress(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(WARN_S + 10)
    scenery.each_step = lambda: watch.heard(1)
    assert kinds(scenery.run(watch, WARN_S + 20)) == [None, "hang"]
    watch = scenery.watch(10.0)
    scenery.each_step = lambda: [watch.progressed(rank) for rank in (0, 1)] and None
    assert scenery.run(watch, WARN_S + 20) == []


# -- "auto": what ends an attempt


def test_auto_ends_an_attempt_whose_rank_behind_has_stood_still(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch()
    found = scenery.run(watch, AUTO_S + 2 * LIMITS.sample_every_s)
    assert kinds(found)[-1] == "hang"
    assert set(kinds(found)[:-1]) == {None}
    assert scenery.now - 1000 >= AUTO_S
    assert found[-1].ranks == [1]
    assert 'no progress for 30 min 00 s (hang_timeout_s="auto"): rank 1 is at' in found[-1].text
    assert scenery.samples < 50


def test_auto_waits_for_ten_times_the_longest_gap_between_reports(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(longest_gap=lambda: 600.0)
    assert None in kinds(scenery.run(watch, 5900))
    assert kinds(scenery.run(watch, 300))[-1] == "hang"


def test_a_rank_that_still_runs_after_another_has_returned_is_behind(scenery: Scenery) -> None:
    scenery.progress = replace(scenery.progress, running=[0], returned=[1])
    found = scenery.run(scenery.watch(), AUTO_S + 2 * LIMITS.sample_every_s)
    assert found[-1].kind == "hang"
    assert "rank 1 returned after report 5" in found[-1].text


def test_a_rank_that_reports_does_not_keep_auto_from_ending(scenery: Scenery) -> None:
    """Rank 0 runs ahead without ever waiting for rank 1."""
    one_behind(scenery)
    watch = scenery.watch()
    scenery.each_step = lambda: watch.progressed(0)
    scenery.busy = {0}
    assert kinds(scenery.run(watch, AUTO_S + 200))[-1] == "hang"


def test_a_rank_that_waits_busily_does_not_keep_auto_from_ending(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.busy = {0}
    assert kinds(scenery.run(scenery.watch(), AUTO_S + 200))[-1] == "hang"


# -- "auto": what does not


def only_warns(scenery: Scenery, watch: HangWatch | None = None) -> bool:
    return set(kinds(scenery.run(watch or scenery.watch(), 3 * AUTO_S))) <= {None}


def test_a_busy_rank_behind_does_not_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.busy = {1}
    assert only_warns(scenery)


def test_a_rank_behind_that_reads_files_does_not_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.reading = {1}
    assert only_warns(scenery)


def test_a_rank_behind_that_moves_does_not_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.each_step = lambda: scenery.stacks_of.update({1: stack(10 + int(scenery.now) // 100 % 2)})
    assert only_warns(scenery)


def test_ranks_that_wait_for_a_busy_one_do_not_hang(scenery: Scenery) -> None:
    """Rank 0 has reported, and evaluates; rank 1 waits in a barrier before its report."""
    one_behind(scenery)
    scenery.stacks_of = {0: stack(30), 1: stack(20, BARRIER)}
    scenery.busy = {0}
    assert only_warns(scenery)


def test_ranks_that_wait_for_a_busy_one_that_asks_do_not_hang(scenery: Scenery) -> None:
    """Rank 0 asks whether to save while it evaluates."""
    one_behind(scenery)
    scenery.stacks_of = {0: stack(30), 1: stack(20, BARRIER)}
    scenery.busy = {0}
    watch = scenery.watch()
    scenery.each_step = lambda: watch.heard(0)
    assert only_warns(scenery, watch)


@pytest.mark.parametrize("inside", [(), ('lib/anything.py", line 3 in wait',)])
def test_they_may_wait_in_ways_that_nobody_knows(scenery: Scenery, inside: tuple[str, ...]) -> None:
    one_behind(scenery)
    scenery.stacks_of = {0: stack(30), 1: stack(20, *inside)}
    scenery.busy = {0}
    assert only_warns(scenery)


def test_a_rank_that_stores_a_checkpoint_does_not_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.stacks_of[1] = stack(12, '../paceline/run/staging.py", line 50 in stage')
    assert only_warns(scenery)


def test_a_rank_in_a_debugger_does_not_hang(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.traced = {1}
    assert only_warns(scenery)
    scenery.traced = set()
    scenery.stacks_of[1] = stack(12, 'debugpy/_vendored/pydevd/pydevd.py", line 3 in do_wait_suspend')
    assert only_warns(scenery)


def test_nothing_hangs_before_the_first_report(scenery: Scenery) -> None:
    scenery.progress = Progress([0], [1], [0, 0])
    assert only_warns(scenery)


def test_ranks_at_the_same_report_do_not_hang(scenery: Scenery) -> None:
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(12)}
    assert only_warns(scenery)


def test_none_only_warns(scenery: Scenery) -> None:
    one_behind(scenery)
    assert only_warns(scenery, scenery.watch(None))


def test_an_engine_that_does_not_tell_what_processes_use_only_warns(scenery: Scenery) -> None:
    one_behind(scenery)
    scenery.usage = dict  # type: ignore[method-assign]
    assert only_warns(scenery)


def test_a_suspended_watch_finds_nothing_and_begins_anew(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(10.0)
    watch.suspended = True
    assert scenery.run(watch, 3 * AUTO_S) == []
    watch.suspended = False
    assert scenery.run(watch, 9.5) == []
    assert kinds(scenery.run(watch, 1.5)) == ["hang"]


# -- a rank that has returned


@pytest.mark.parametrize("inside", [ALL_REDUCE, BACKWARD])
def test_two_samples_show_that_a_rank_waits_for_one_that_has_returned(scenery: Scenery, inside: str) -> None:
    scenery.progress = replace(scenery.progress, running=[0], returned=[1])
    scenery.stacks_of[0] = stack(20, inside)
    (found,) = scenery.run(scenery.watch(None), 30)
    assert (found.ranks, found.kind) == ([1], "report_mismatch")
    called = inside.rpartition(" ")[2]
    start = f"rank 1 returned after report 5 while rank 0 waited in {called} at /home/me/train.py:20"
    assert found.text.startswith(start)
    assert scenery.now - 1000 <= 3 * LIMITS.confirm_after_s


def test_a_rank_that_computes_where_others_wait_is_left_alone(scenery: Scenery) -> None:
    scenery.progress = replace(scenery.progress, running=[0], returned=[1])
    scenery.stacks_of[0] = stack(20, BACKWARD)
    scenery.busy = {0}
    assert scenery.run(scenery.watch(None), WARN_S - 5) == []


def test_ranks_whose_peers_leave_are_not_sampled_for_that(scenery: Scenery) -> None:
    scenery.progress = replace(scenery.progress, running=[0], returned=[1])
    scenery.stacks_of[0] = stack(20, ALL_REDUCE)
    assert scenery.run(scenery.watch(None, ranks_leave=True), WARN_S - 5) == []


def test_a_rank_that_waits_for_another_running_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenery = Scenery(3)
    monkeypatch.setattr(hang_watch, "time", SimpleNamespace(monotonic=lambda: scenery.now))
    scenery.progress = replace(scenery.progress, running=[0, 2], returned=[1])
    scenery.stacks_of[0] = stack(20, ALL_REDUCE)
    assert scenery.run(scenery.watch(None), WARN_S - 5) == []


# -- warnings


def test_ranks_that_compute_at_the_same_report_cause_no_warning(scenery: Scenery) -> None:
    scenery.busy = {0, 1}
    assert scenery.run(scenery.watch(), 3600) == []
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(12)}
    scenery.busy = {1}
    assert scenery.run(scenery.watch(), 3600) == [], "rank 0 waits for one that computes"
    assert scenery.samples < 40


def test_ranks_in_different_collective_operations_cause_a_warning(scenery: Scenery) -> None:
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(30, BARRIER)}
    (warning,) = scenery.run(scenery.watch(None), WARN_S + 10)
    assert warning.kind is None
    assert (
        "the ranks are in different collective operations: rank 0 waits in all_reduce at /home/me/train.py:20, after "
        "report 5; rank 1 waits in barrier at /home/me/train.py:30, after report 5"
    ) in warning.text
    assert "-- rank 0 --" in warning.stacks
    assert "-- rank 1 --" in warning.stacks


def test_a_rank_that_does_nothing_while_others_wait_causes_a_warning(scenery: Scenery) -> None:
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(12)}
    (warning,) = scenery.run(scenery.watch(), WARN_S + 10)
    assert warning.ranks == [1]


def test_ranks_that_wait_in_the_same_operation_cause_a_warning(scenery: Scenery) -> None:
    scenery.stacks_of = {0: stack(20, ALL_REDUCE), 1: stack(20, ALL_REDUCE)}
    (warning,) = scenery.run(scenery.watch(), WARN_S + 10)
    assert "ranks 0, 1 wait in all_reduce at /home/me/train.py:20" in warning.text


def test_stacks_are_shown_again_only_if_they_have_changed(scenery: Scenery) -> None:
    one_behind(scenery)
    watch = scenery.watch(None)
    first, second = scenery.run(watch, 3 * WARN_S + 10)
    assert "-- rank 1 --" in first.stacks
    assert second.stacks == "All stacks are as before."
    assert "rank 1 is at /home/me/train.py:12" in second.text
    scenery.stacks_of[1] = stack(14)
    assert "line 14" in scenery.run(watch, 5 * WARN_S)[0].stacks


def test_warnings_come_ever_more_rarely(scenery: Scenery) -> None:
    one_behind(scenery)
    assert 5 <= len(scenery.run(scenery.watch(None), 3600)) <= 9


def test_a_rank_that_stands_still_after_another_has_returned_is_named(scenery: Scenery) -> None:
    scenery.progress = replace(scenery.progress, running=[1], returned=[0])
    (warning,) = scenery.run(scenery.watch(None), WARN_S + 2)
    assert warning.ranks == [1]
    assert "rank 0 returned after report 5" in warning.text
    assert "the same number of steps" not in warning.text, "it is not in a collective operation"
