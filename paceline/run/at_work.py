"""The workers of one attempt while they are at work: what they say is heard and answered, and its end noticed.

`HangWatch` notices ranks that stopped making progress while others wait for them. Its time is monotonic. A long gap in
which the driver itself did not run (a suspended laptop, a loaded machine) barely counts against the workers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from paceline.air import process
from paceline.air.errors import WorkerFailure
from paceline.engine.base import Engine
from paceline.run.alignment import Alignment
from paceline.run.attempt import Attempt
from paceline.run.decisions import INTERRUPT_WAIT_S, Decision, Stop, StopRequest
from paceline.run.history import RowFiller
from paceline.run.messages import ForTarget
from paceline.run.observers import RankState
from paceline.run.opening import OpenRun
from paceline.run.report_flow import AttemptProblem, ReportFlow
from paceline.run.spec import RunSpec
from paceline.storage.run_dir import RunDir


@dataclass(frozen=True)
class Ending:
    """How an attempt ends."""

    failures: Sequence[WorkerFailure] = ()
    """Why it failed; none if it ended well."""
    is_clean: bool = False
    """All workers have returned: there is nobody to be killed."""


COMMIT_POLL_S = 0.05
"""The longest time between two looks at a commit."""


class AtWork:
    """An attempt whose workers have started, with their reports and their clocks."""

    def __init__(self, attempt: Attempt, spec: RunSpec, parts: OpenRun, stop: StopRequest, filler: RowFiller) -> None:
        self.attempt = attempt
        size, start = attempt.world_size, attempt.start_point
        self.flow = ReportFlow(
            Alignment(size, start.index),
            filler,
            parts.files.journal,
            parts.keeper,
            parts.observers,
            parts.decider,
            parts.data.positions(size, start.index) if parts.data.datasets else None,
        )
        self._parts = parts
        self._stop = stop
        self._watch = HangWatch(size, spec.run_config.failure_config.hang_timeout_s)
        self._grace_s = spec.run_config.failure_config.stop_grace_s
        self._deadline = float("inf")
        """When workers that were asked to end are killed."""
        self._in_grace_period = False

        parts.observers.workers(self.ranks)

    def ranks(self) -> list[RankState]:
        """How far each rank is."""
        failed = {failure.rank for failure in self.attempt.failures}
        return [
            RankState(rank, index, "failed" if rank in failed else "ended" if rank in self.attempt.ended else "running")
            for rank, index in enumerate(self.flow.alignment.last_index)
        ]

    def time_to_wait(self, longest: float) -> float:
        """For how long nothing has to be done unless somebody says something."""
        if self.flow.has_committed:
            return 0.0
        nearest = min(self._deadline, self.attempt.settled_at)
        return max(0.0, min(longest, nearest - time.monotonic()))

    def listen(self, engine: Engine, timeout: float) -> Decision:
        """Hear what the workers say, act on it and answer. Returns what was decided about the run."""
        self._hear(engine, self.time_to_wait(timeout))
        mirror = self._parts.files.mirror
        if mirror is not None:  # after the commits: one that failed because of it must not cause a retry
            mirror.lease.raise_if_lost()
        decision = self.flow.take_decision()
        self._hold_if_asked_to_stop()
        if not self.attempt.failures:
            self.flow.find_mismatch()
        self._look_for_hang()
        self._start_grace_period()
        self._answer()
        self._parts.pass_on_warnings()
        self._parts.observers.catch_up()
        return decision

    def _hear(self, engine: Engine, timeout: float) -> None:
        attempt, flow = self.attempt, self.flow
        if flow.committing and attempt.group is not None:
            # The keeper wakes it when a commit is done, where the engine can be woken.
            engine.wait([attempt.group], min(timeout, COMMIT_POLL_S))
            timeout = 0.0
        for rank, message, attachments in attempt.poll(timeout):
            self._watch.progressed(rank)
            if isinstance(message, ForTarget):
                self._parts.keeper.received(rank, message, attachments, attempt.reply)
            else:
                flow.received(rank, message, attachments)
        ends_training = flow.to_ranks.ends_training and self._stop.status == "finished"
        for failure in attempt.failures:
            flow.failed(failure.rank, ends_training=ends_training)
        flow.conclude_commits()

    def _hold_if_asked_to_stop(self) -> None:
        if self.flow.to_ranks.stopping or not isinstance(self._parts.decider.between_rows(), Stop):
            return
        self.flow.to_ranks.hold()
        self._deadline = time.monotonic() + self._stop.within_s
        if self._stop.signal is not None:
            asked_by = self._stop.asked_by
            what = (
                f"A stop was requested from outside, by {asked_by}"
                if asked_by
                else signal.Signals(self._stop.signal).name
            )
            how_to_hurry = "" if asked_by else " A second signal stops it immediately."
            self._parts.warn(f"{what}: stopping at the next report (at most {INTERRUPT_WAIT_S:.0f} s).{how_to_hurry}")

    def _look_for_hang(self) -> None:
        if not self._watch.is_due():
            return
        attempt, flow = self.attempt, self.flow
        found = self._watch.find(attempt.running, attempt.ended, flow.alignment.last_index, flow.excused_ranks())
        if found is None:
            return
        stacks = stacks_text(attempt.stacks(), first=found.ranks)
        if found.is_error:
            flow.problem = AttemptProblem("hang", found.ranks[0], found.text, stacks)
        else:
            self._parts.warn(f"{found.text}.\n{stacks}")

    def _start_grace_period(self) -> None:
        if self.flow.to_ranks.stop_index is not None and not self._in_grace_period:
            self._in_grace_period = True
            self._deadline = time.monotonic() + self._grace_s

    def _answer(self) -> None:
        answers = self.flow.answers()
        if answers:
            process.fault_point("before_ack")
            for rank, answer, attachments in answers:
                self.attempt.reply(rank, answer, attachments)
        self.flow.after_answers()

    def ending(self) -> Ending | None:
        """How the attempt ends, if it does now."""
        attempt, flow = self.attempt, self.flow
        well = Ending(is_clean=not attempt.is_running and not attempt.failures)
        if flow.problem is not None:
            return Ending([failure_of(flow.problem, self._parts.files.run_dir)])
        # A checkpoint that waits for the position of a failed rank waits in vain.
        commits = flow.committing if attempt.failures else flow.commits_under_way
        if not attempt.is_running and not commits:
            return Ending(attempt.failures) if attempt.failures and not flow.to_ranks.stopping else well
        if attempt.failed and not flow.to_ranks.stopping:
            return Ending(attempt.failures)
        if attempt.failed and flow.to_ranks.stop_index is None:
            return well  # the report at which all ranks would stop never comes
        if time.monotonic() >= self._deadline and attempt.is_running:
            self._parts.warn("Workers did not end within their grace period and were killed.")
            return well
        return None

    def closing_warnings(self) -> list[str]:
        """What the user should know of an attempt that ended well."""
        warnings = [
            f"rank {failure.rank} failed while stopping: {failure.message}" for failure in self.attempt.failures
        ]
        if self.flow.alignment.only_rank_zero_reported:
            warnings.append("Only rank 0 called report(); its rows are the result.")
        if self.flow.alignment.lost_checkpoints:
            warnings.append(
                "Checkpoints were reported by other ranks but not by rank 0: only rank 0's are kept "
                "(CheckpointConfig(keep_all_ranks=True) keeps every rank's files)."
            )
        return warnings


def failure_of(problem: AttemptProblem, run_dir: RunDir) -> WorkerFailure:
    """Something that the driver found, as a failure of the rank that it concerns."""
    return WorkerFailure(
        rank=problem.rank,
        kind=problem.kind,
        message=problem.message,
        time_ns=time.monotonic_ns(),
        traceback=problem.details,
        log_path=str(run_dir.log(problem.rank)),
    )


WARN_AFTER_S = 60.0
_DRIVER_STALL_S = 1.0
"""Looks follow each other by about half a second; a longer gap is the driver's own."""
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Stall:
    """Ranks that make no progress."""

    ranks: list[int]
    text: str
    is_error: bool
    """Whether the user's time limit is exceeded; otherwise it is only worth telling."""


class HangWatch:
    """Progress of the ranks of one attempt, measured by their reports."""

    def __init__(self, world_size: int, hang_timeout_s: float | None) -> None:
        now = time.monotonic()
        self._timeout = hang_timeout_s
        self._last_progress = [now] * world_size
        self._last_look = now
        self._next_warning = now + WARN_AFTER_S

    def progressed(self, rank: int) -> None:
        self._last_progress[rank] = time.monotonic()

    def is_due(self) -> bool:
        """Cheap enough to be asked at every step."""
        return time.monotonic() - self._last_look >= _LOOK_EVERY_S

    def find(
        self, running: list[int], ended: Collection[int], last_index: Sequence[int], excused: Collection[int] = ()
    ) -> Stall | None:
        """Ranks that hold the others up, if there is something to say about them now."""
        furthest = max(last_index)
        behind = [rank for rank in running if last_index[rank] < furthest or ended]
        warn, hung = self.look(behind, running, excused)
        if not hung and not warn:
            return None
        reports = f"(last report of each rank: {list(last_index)})"
        if hung:
            ranks = ", ".join(map(str, hung))
            limit = f"no progress within hang_timeout_s={self._timeout:g} s"
            return Stall(hung, f"{limit}: rank(s) {ranks} did not report {reports}", is_error=True)
        return Stall(warn, f"{_remark(warn, ended)} {reports}", is_error=False)

    def look(self, behind: list[int], running: list[int], excused: Collection[int] = ()) -> tuple[list[int], list[int]]:
        """(ranks to warn about, ranks that hang).

        `behind` are the running ranks that others have overtaken; `running` all that have
        not finished. `excused` are ranks that cannot make progress through no fault of their
        own, such as one that waits for the driver: their time starts anew when they no longer
        are. Without a time limit nothing is an error: a long epoch is not a hang.
        """
        now = time.monotonic()
        stall = now - self._last_look
        self._last_look = now
        excess = stall - _DRIVER_STALL_S
        if excess > 0:  # The rest counts, or a driver that is slow again and again would never notice anything.
            self._last_progress = [moment + excess for moment in self._last_progress]
            self._next_warning += excess
        for rank in excused:
            self._last_progress[rank] = now
        hung: list[int] = []
        if self._timeout is not None:
            late = [rank for rank in running if now - self._last_progress[rank] > self._timeout]
            # The ranks that are behind hold the others up; with none behind, all hang together.
            hung = sorted(set(behind).intersection(late)) or late
        warn: list[int] = []
        if now >= self._next_warning:
            warn = [rank for rank in behind if now - self._last_progress[rank] > WARN_AFTER_S]
            if warn:
                self._next_warning = now + WARN_AFTER_S
        return warn, hung


def _remark(late: Collection[int], ended: Collection[int]) -> str:
    ranks = ", ".join(map(str, late))
    if not ended:
        return f"Rank(s) {ranks} have not reported for 60 s while others wait for them"
    gone = ", ".join(map(str, sorted(ended)))
    return (
        f"Rank(s) {ranks} have not reported for 60 s, and rank(s) {gone} have returned from the train function. A rank "
        "that waits for one of those in a collective operation waits for ever: let every rank take the same number of "
        "steps. FailureConfig(hang_timeout_s=...) ends such a run"
    )


def stacks_text(stacks: Mapping[int, str], first: Sequence[int]) -> str:
    """Every rank's stack under its name, those of `first` before the others: they are what is looked for."""
    order = [rank for rank in first if rank in stacks] + [rank for rank in sorted(stacks) if rank not in first]
    return "\n".join(f"-- rank {rank} --\n{stacks[rank]}" for rank in order)
