"""The workers of one attempt while they are at work: what they say is heard and answered, and its end noticed."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from paceline.air.errors import WorkerFailure
from paceline.air.faults import fault_point, watched_point
from paceline.engine.base import Engine
from paceline.run.alignment import Alignment
from paceline.run.attempt import Attempt
from paceline.run.debug_console import TYPING_POLL_S, DebugConsole
from paceline.run.debug_messages import ForConsole
from paceline.run.decisions import KILLED, Decision, Stop, StopRequest
from paceline.run.early_return import waited_in_vain
from paceline.run.hang_watch import HangWatch, Progress
from paceline.run.history import RowFiller
from paceline.run.messages import ASIDES, ForTarget, FromWorker, Question, Report, Terminated
from paceline.run.observers import RankState
from paceline.run.opening import OpenRun
from paceline.run.preemption import Preempting, signalled
from paceline.run.report_flow import AttemptProblem, ReportFlow
from paceline.run.spec import RunSpec
from paceline.run.usage_watch import UsageWatch
from paceline.storage.lease import Lease
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

    def __init__(
        self,
        attempt: Attempt,
        spec: RunSpec,
        parts: OpenRun,
        stop: StopRequest,
        filler: RowFiller,
        *,
        others_report: bool,
    ) -> None:
        """`others_report`: in an earlier attempt, a rank other than 0 has reported."""
        self.attempt = attempt
        self.preempting = Preempting(parts.decider, parts.loop_asks)
        size, start = attempt.world_size, attempt.start_point
        self.flow = ReportFlow(
            Alignment(size, start.index, others_report=others_report),
            filler,
            parts.files.journal,
            parts.keeper,
            parts.observers,
            self.preempting,
            parts.data.positions(size, start.index) if parts.data.datasets else None,
            partial(parts.validations.ask, attempt.number),
        )
        self._parts = parts
        self._stop = stop
        self._backend = spec.backend_config.backend_cls
        hang_timeout = spec.run_config.failure_config.hang_timeout_s
        self.hang_watch = HangWatch(
            size,
            None if hang_timeout == "auto" and attempt.in_driver_process else hang_timeout,
            attempt,
            attempt.known_frames,
            longest_gap=self._longest_gap,
            ranks_leave=attempt.ranks_leave,
        )
        self._grace_s = spec.run_config.failure_config.stop_grace_s
        self._preemption_grace_s = spec.run_config.failure_config.preemption_grace_s
        self._deadline = float("inf")
        """When workers that were asked to end are killed."""
        self._in_grace_period = False
        self._usage = UsageWatch(attempt.number)
        self._store_is_away = False
        self._fault_at_report = watched_point("report_received")
        self.debugger = DebugConsole(size, attempt.reply, parts.observers, stop)
        self._last_listened = time.monotonic()

        parts.observers.workers(self.ranks)

    def ranks(self) -> list[RankState]:
        """How far each rank is."""
        failed = {failure.rank for failure in self.attempt.failures}
        ended = self.attempt.ended
        return [
            RankState(
                rank,
                index,
                "failed" if rank in failed else "ended" if rank in ended else "running",
                self.flow.last_times.get(rank),
                self._usage.newest.get(rank) if rank not in ended and rank not in failed else None,
            )
            for rank, index in enumerate(self.flow.alignment.last_index)
        ]

    def time_to_wait(self, longest: float) -> float:
        """For how long nothing has to be done unless somebody says something."""
        if self.flow.has_committed:
            return 0.0
        if self.debugger.is_active:
            return min(longest, TYPING_POLL_S)
        nearest = min(self._deadline, self.attempt.settled_at)
        return max(0.0, min(longest, nearest - time.monotonic()))

    def listen(self, engine: Engine, timeout: float) -> Decision:
        """Hear what the workers say, act on it and answer. Returns what was decided about the run."""
        self._hear(engine, self.time_to_wait(timeout))
        mirror = self._parts.files.mirror
        if mirror is not None:  # after the commits: one that failed because of it must not cause a retry
            mirror.lease.raise_if_lost()
            self._warn_of_outage(mirror.lease)
        decision = self.flow.take_decision()
        self._hold_if_asked_to_stop()
        if not self.attempt.failures:
            self.flow.find_mismatch()
        self._serve_debugger()
        self._look_for_hang()
        if (used := self._usage.look(self.attempt.usage, self.flow.alignment.last_index)) is not None:
            self._parts.files.journal.append(used)
        self._parts.warn(*self._usage.take_warnings())
        self._start_grace_period()
        self._answer()
        self._parts.pass_on_warnings()
        self._parts.observers.catch_up()
        return decision

    def _warn_of_outage(self, lease: Lease) -> None:
        """Once per outage, and only where the run outlasts it."""
        if lease.patience_s and bool(lease.failing) != self._store_is_away:
            self._store_is_away = not self._store_is_away
            if self._store_is_away:
                self._parts.warn(
                    "The store is out of reach. Training continues; up to two checkpoints wait on this disk until it "
                    f"answers again, for at most {lease.patience_s:.0f} s: {lease.failing}"
                )

    def _hear(self, engine: Engine, timeout: float) -> None:
        attempt, flow = self.attempt, self.flow
        if flow.committing and attempt.group is not None:
            # The keeper wakes it when a commit is done, where the engine can be woken.
            engine.wait([attempt.group], min(timeout, COMMIT_POLL_S))
            timeout = 0.0
        for rank, message, attachments in attempt.poll(timeout):
            (self.hang_watch.heard if isinstance(message, ASIDES) else self.hang_watch.progressed)(rank)
            if isinstance(message, Report):  # Most are.
                if message.with_checkpoint:
                    self.preempting.saved(rank, message.index)
                flow.received(rank, message, attachments)
            elif isinstance(message, Question):
                self.preempting.asked(rank, message, flow.to_ranks)
            elif isinstance(message, Terminated):
                self._preempted(signalled(message.signal, rank), rank)
            elif isinstance(message, ForTarget):
                self._parts.keeper.received(rank, message, attachments, attempt.reply)
            elif isinstance(message, ForConsole):
                self.debugger.received(rank, message)
            elif isinstance(message, FromWorker):
                flow.received(rank, message, attachments)
            if self._fault_at_report is not None and isinstance(message, Report) and rank == 0:
                self._fault_at_report(step=message.index)
        if (drains := attempt.drains) is not None:
            self._preempted(f"{drains.node} drains", drains.rank, drains.seconds_left)
        ends_training = flow.to_ranks.ends_training and self._stop.status == "finished"
        for failure in attempt.failures:
            if failure.signal == signal.SIGTERM:  # The process did not handle it, and is gone.
                self._preempted(signalled(failure.signal, failure.rank), failure.rank)
            flow.failed(failure.rank, ends_training=ends_training)
        flow.conclude_commits()
        if (newest := self._parts.keeper.newest) is not None:
            self.preempting.stored(newest.iteration)

    def _hold_if_asked_to_stop(self) -> None:
        if self.flow.to_ranks.stopping or not isinstance(self._parts.decider.between_rows(), Stop):
            return
        stop = self._stop
        within_s = self._preemption_grace_s if stop.preempts else stop.within_s
        self._deadline = time.monotonic() + within_s
        if stop.preempts:
            self.preempting.begin(signalled(stop.signal or signal.SIGTERM), within_s, self.flow.to_ranks)
        else:
            self.flow.to_ranks.hold()
        if stop.signal is not None and not stop.asked_in_debugger:
            what = signal.Signals(stop.signal).name
            if stop.asked_by:
                what = f"A stop was requested from outside, by {stop.asked_by}"
            second = "SIGTERM" if what == "SIGUSR1" else "signal"  # SIGUSR1 may come several times.
            how_to_hurry = "" if stop.asked_by else f" A second {second} stops it immediately."
            self._parts.warn(f"{what}: stopping {self._when()} (at most {within_s:g} s).{how_to_hurry}")

    def _when(self) -> str:
        return "with the next checkpoint" if self.flow.to_ranks.awaits_checkpoint else "at the next report"

    def _preempted(self, reason: str, rank: int, within_s: float | None = None) -> None:
        """Somebody wants a worker gone: all of them stop, and others continue. None: within the usual time."""
        if self.preempting.has_begun or self.flow.to_ranks.stopping:
            return
        within_s = self._preemption_grace_s if within_s is None else within_s
        self._deadline = time.monotonic() + within_s
        self.preempting.begin(reason, within_s, self.flow.to_ranks, rank)
        self._parts.warn(
            f"Preempted ({reason}): all workers stop {self._when()} (at most {within_s:.3g} s). New workers continue, "
            "unless the driver is told to stop as well. This does not count as a failure."
        )

    def _serve_debugger(self) -> None:
        """While a rank is in the debugger, no time runs out."""
        before, self._last_listened = self._last_listened, time.monotonic()
        if self.debugger.is_active:
            self._deadline += self._last_listened - before
            self.debugger.serve(self.attempt.ended.union(failure.rank for failure in self.attempt.failures))

    def _look_for_hang(self) -> None:
        if not self.hang_watch.is_due():
            return
        alignment = self.flow.alignment
        self.hang_watch.suspended = self.debugger.is_active
        found = self.hang_watch.find(
            Progress(
                self.attempt.running,
                self.attempt.ended,
                alignment.last_index,
                alignment.start_index,
                self.flow.excused_ranks(),
            )
        )
        if found is None:
            return
        if found.kind is not None:
            self.flow.problem = AttemptProblem(found.kind, found.ranks[0], found.text, found.stacks)
        else:
            self._parts.warn(f"{found.text}.\n{found.stacks}")

    def _longest_gap(self) -> float:
        self._parts.files.journal.flush()
        return self._parts.history.longest_gap_s()

    def _start_grace_period(self) -> None:
        if self.flow.to_ranks.stop_index is not None and not self._in_grace_period:
            self._in_grace_period = True
            began = self.preempting.has_begun
            self._deadline = self.preempting.ends_at if began else time.monotonic() + self._grace_s

    def _answer(self) -> None:
        answers = self.flow.answers()
        if answers:
            fault_point("before_ack")
            for rank, answer, attachments in answers:
                self.attempt.reply(rank, answer, attachments)
        self.flow.after_answers()

    def ending(self) -> Ending | None:
        """How the attempt ends, if it does now."""
        attempt, flow = self.attempt, self.flow
        if self.debugger.is_active:
            return None  # What the user looks at is not taken away.
        if flow.problem is not None:
            return Ending([failure_of(flow.problem, self._parts.files.run_dir)])
        # A checkpoint that waits for the position of a failed rank waits in vain.
        commits = flow.committing if attempt.failures else flow.commits_under_way
        if not attempt.is_running and not commits:
            failed = attempt.failures and not flow.to_ranks.stopping
            return Ending(self._failures()) if failed else self._ended_as_asked()
        if attempt.failed and not flow.to_ranks.stopping:
            return Ending(self._failures())
        if attempt.failed and flow.to_ranks.stop_index is None:
            return self._ended_as_asked()  # the report at which all ranks would stop never comes
        if time.monotonic() >= self._deadline and attempt.is_running:
            self._parts.warn(KILLED)
            return self._ended_as_asked()
        return None

    def _ended_as_asked(self) -> Ending:
        """Well, or by a preemption after which others continue."""
        attempt, to_ranks = self.attempt, self.flow.to_ranks
        is_clean = not attempt.is_running and not attempt.failures
        by_itself = (is_clean and to_ranks.stop_index is None) or to_ranks.ends_training
        if not self.preempting.has_begun or self._stop.pending or by_itself:
            return Ending(is_clean=is_clean)
        self._parts.warn(*self._failed_while_stopping())
        return Ending([self.preempting.failure()], is_clean)

    def _failures(self) -> list[WorkerFailure]:
        """Those of the workers, and before them what the driver knows of their cause."""
        attempt, alignment = self.attempt, self.flow.alignment
        returned = attempt.ended.union(alignment.finished)
        problem = waited_in_vain(attempt, returned, alignment.last_index, self._backend)
        known = [] if problem is None else [failure_of(problem, self._parts.files.run_dir)]
        return [*known, *map(self._usage.explained, attempt.failures)]

    def _failed_while_stopping(self) -> list[str]:
        return [
            f"rank {failure.rank} failed while stopping: {failure.message}"
            for failure in self.attempt.failures
            if not (self._stop.asked_in_debugger and failure.exception_type == "bdb.BdbQuit")
        ]

    def close(self) -> None:
        """The workers are gone."""
        self.debugger.close()
        self.flow.settle()
        if (used := self._usage.last_record()) is not None:
            self._parts.files.journal.append(used)

    def closing_warnings(self) -> list[str]:
        """What the user should know of an attempt that ended well."""
        warnings = self._failed_while_stopping()
        if self.flow.alignment.only_rank_zero_reported:
            warnings.append("Only rank 0 called report(); its rows are the result.")
        if self._parts.loop_asks.budget is not None and not self._parts.loop_asks.seen:
            warnings.append(
                "CheckpointConfig(max_overhead=...) has no effect: the train function never called "
                "train.should_checkpoint(), which says when to save."
            )
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
