"""A Run drives one RunSpec to a Result: `step()` until `done`.

Reading order: `drive` (the only loop), `Run.step` (start an attempt, listen, act on what
was heard), `_on_report` to `_conclude_row` (the driver's half of report()), `_end_*`.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from paceline.air import faults
from paceline.air.errors import (
    AttemptFailure,
    CheckpointError,
    EngineError,
    FailureKind,
    MetricError,
    RestoreError,
    StartupTimeoutError,
    StorageError,
    TrainingFailedError,
    TrainingInterrupted,
    WorkerError,
    WorkerFailure,
)
from paceline.air.result import Result
from paceline.engine.base import Engine
from paceline.run import interrupts, root_cause, trial_files
from paceline.run.alignment import Alignment, reduce_metrics
from paceline.run.attempt import Attempt, StartPoint, pickled_task, plain_resources
from paceline.run.callbacks import CallbackList
from paceline.run.checkpoint_keeper import CheckpointKeeper, Commit
from paceline.run.failure_policy import GiveUp, decide
from paceline.run.follow import LogFollower
from paceline.run.hang_watch import HangWatch
from paceline.run.history import JournalHistory, filler_of
from paceline.run.loggers import default_loggers
from paceline.run.messages import Acknowledged, CheckpointReady, Decision, Hold, Report, SessionSetup, ToWorker
from paceline.run.progress import make_progress
from paceline.run.rows import RowFiller, node_ip
from paceline.run.spec import RunSpec
from paceline.run.staging import memory_file
from paceline.run.stoppers import make_stopper
from paceline.run.trial import Trial

POLL_S = 0.2
"""How long a step waits for news; deaths and reports end the wait at once."""
INTERRUPT_WAIT_S = 30.0
"""How long an interrupted run waits for its ranks to reach their next report."""
_ACKNOWLEDGE_EVERY = 250


class Phase(enum.Enum):
    """Where a run is between two steps."""

    STARTING = "an attempt is to be started"
    RUNNING = "workers are at work"
    STOPPING = "workers were told to stop and have a grace period"
    DONE = "there is a result"


@dataclass
class _PendingCommit:
    commit: Commit
    conclude: Callable[[], None]


class Run:
    """The state machine of one run. Use it from one thread."""

    def __init__(self, spec: RunSpec, engine: Engine) -> None:
        self.spec = spec
        self.engine = engine
        self.phase = Phase.STARTING
        self.result: Result | None = None
        self.stopped_by_signal: int | None = None
        self._task = pickled_task(spec)
        self._files = (
            trial_files.reopen(spec) if spec.restore_path is not None else trial_files.create(spec, engine.name)
        )
        self._run_dir, self._journal = self._files.run_dir, self._files.journal
        self._history = JournalHistory(self._run_dir.journal)
        self._keeper = self._make_keeper()
        self._trial = self._make_trial()
        self._callbacks = CallbackList(spec.run_config.callbacks, default_loggers())
        self._stopper = make_stopper(spec.run_config.stop)
        self._progress = make_progress(spec.run_config.verbose)
        self._failures: list[AttemptFailure] = []
        self._attempt: Attempt | None = None
        self._attempts = self._files.attempts_so_far
        self._without_progress = 0
        self._not_before = 0.0
        self._last_row: dict[str, Any] | None = None
        self._rank_metrics: dict[int, dict[str, Any]] = {}
        self._warnings: list[str] = []
        self._resume_file: int | None = None
        """The checkpoint to resume from as a memory file, if it is not a directory."""
        self._announced = False
        self._closed = False

    def _make_keeper(self) -> CheckpointKeeper:
        config = self.spec.run_config.checkpoint_config
        keeper = CheckpointKeeper(config, self._run_dir, self._journal, self._files.mirror)
        if self._files.records:
            if keeper.in_memory and self._files.ended_as is None:
                raise RestoreError(
                    "This run kept its checkpoints in memory only (num_to_keep=0); they went with its driver. "
                    "Start it anew, and give num_to_keep another value to be able to restore."
                )
            keeper.load(self._files.records)
        elif self.spec.resume_from is not None:
            number = self.spec.resume_from.number
            keeper.next_number = 0 if number is None else number + 1
        return keeper

    def _make_trial(self) -> Trial:
        identity = self._files.identity
        return Trial(
            trial_id=identity.trial_id,
            trainable_name=self.spec.trainer_name,
            local_path=str(self._run_dir.root),
            experiment_id=identity.experiment_id,
            experiment_name=self._files.experiment_name,
            experiment_tag=identity.experiment_tag,
            config=dict(self.spec.config),
        )

    # -- the loop's view ------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def starting(self) -> bool:
        """True while workers are being brought up, when a signal interrupts instead of asking."""
        return self.phase is Phase.STARTING

    def step(self, timeout: float = POLL_S) -> None:
        """Advance: start an attempt, or hear what the workers said and act on it."""
        if self.phase is Phase.STARTING:
            self._begin()
            return
        attempt = self._attempt
        assert attempt is not None
        for rank, message, descriptors in attempt.poll(self._time_to_wait(timeout)):
            if isinstance(message, Report):
                self._on_report(rank, message, descriptors)
            elif isinstance(message, CheckpointReady):
                self._on_checkpoint_ready(message)
            else:
                self._alignment.finish(rank, message.reports)
        self._conclude_commits()
        self._look_for_trouble(attempt)
        self._send_answers()
        self._hand_rows_to_loggers()
        self._show_output()
        self._end_if_over(attempt)

    def request_stop(self, signal_number: int) -> None:
        """Ask for a graceful stop: every rank ends after the same report. Safe in a signal handler."""
        self.stopped_by_signal = signal_number

    # -- starting an attempt --------------------------------------------------------------

    def _begin(self) -> None:
        if not self._announced:
            self._announce()
            if self._files.ended_as == "finished":
                self._finish("finished", already=True)
                return
        delay = self._not_before - time.monotonic()
        if delay > 0:
            time.sleep(min(delay, POLL_S))
            return
        number = self._attempts
        self._attempts += 1
        start = self._start_point()
        self._keeper.attempt = number
        self._alignment = Alignment(self.spec.world_size, start.index)
        self._decided = start.index
        self._stop_index: int | None = None
        self._holding = False
        self._deadline = float("inf")
        self._outbox: list[tuple[int, ToWorker]] = []
        self._new_rows: list[dict[str, Any]] = []
        self._commits: deque[_PendingCommit] = deque()
        self._following: dict[int, dict[str, Any]] = {}
        self._followed = 0
        self._acknowledged = [start.index] * self.spec.world_size
        self._newest_before = self._keeper.newest
        self._attempt = Attempt(number, self.spec, self.engine, self._run_dir, start)
        began = time.monotonic()
        try:
            self._attempt.start(self._task, self._session_setup(number, start))
        except (EngineError, WorkerError) as error:
            self._attempt_failed([_startup_failure(error)])
            return
        self._filler = self._record_attempt(number, start, time.monotonic() - began)
        self._watch = HangWatch(self.spec.world_size, self.spec.run_config.failure_config.hang_timeout_s)
        self._next_watch = 0.0
        if self._last_row is None:
            self._trial.last_result = self._filler.first()
        if number > 0:
            self._callbacks.rewind(self._trial, start.index, self._history.rows_from)
            self._callbacks.on_trial_restore(start.index, self._trial)
        self.phase = Phase.RUNNING

    def _announce(self) -> None:
        self._announced = True
        self._progress.started(self._trial, self._run_dir.root, self.spec.world_size)
        for note in self._files.notes:
            self._progress.warning(note)
        self._follower = LogFollower(
            {rank: self._run_dir.log(rank) for rank in range(self.spec.world_size)},
            from_end=bool(self._files.records),
        )
        self._trial.status = "RUNNING"
        self._callbacks.setup(stop=self.spec.run_config.stop, num_samples=1, total_num_samples=1)
        self._callbacks.on_trial_start(0, self._trial)

    def _start_point(self) -> StartPoint:
        newest = self._keeper.newest_valid()
        self._take_warnings()
        if newest is not None:
            return StartPoint(
                index=newest.iteration,
                time_s=float(newest.row.get("time_total_s", 0.0)),
                checkpoint_number=newest.number,
                path=None if self._keeper.in_memory else str(self._run_dir.checkpoint(newest.number)),
                memory_file=self._keeper.memory_file,
            )
        resume = self.spec.resume_from
        if resume is None:
            return StartPoint()
        if resume.kind == "local_path":
            return StartPoint(path=resume.path)
        if resume.kind == "uri":
            return StartPoint(uri=resume.uri)
        if self._resume_file is None:
            self._resume_file = memory_file(resume)
        return StartPoint(memory_file=self._resume_file)

    def _session_setup(self, number: int, start: StartPoint) -> SessionSetup:
        config = self.spec.run_config.checkpoint_config
        return SessionSetup(
            world_rank=0,
            world_size=self.spec.world_size,
            local_rank=0,
            local_world_size=self.spec.world_size,
            node_rank=0,
            trial_name=str(self._trial),
            trial_id=self._trial.trial_id,
            trial_dir=str(self._run_dir.root),
            experiment_name=self._trial.experiment_name,
            resources=plain_resources(self.spec.scaling),
            metadata=dict(self.spec.metadata),
            attempt=number,
            start_index=start.index,
            next_number=self._keeper.next_number,
            decides=self._stopper is not None,
            resume_path=start.path,
            resume_uri=start.uri,
            resume_in_memory=start.memory_file is not None,
            checkpoints_in_memory=self._keeper.in_memory,
            async_save=config.async_save,
            keep_all_ranks=config.keep_all_ranks,
            score_attribute=config.checkpoint_score_attribute,
        )

    def _record_attempt(self, number: int, start: StartPoint, warmup_s: float) -> RowFiller:
        assert self._attempt is not None
        record = {
            "kind": "attempt",
            "attempt": number,
            "start_index": start.index,
            "start_time_s": start.time_s,
            "checkpoint": start.checkpoint_number,
            "world_size": self.spec.world_size,
            "time": time.time(),
            "warmup_time": warmup_s,
            "hostname": socket.gethostname(),
            "node_ip": node_ip(),
            "pid": self._attempt.pids.get(0, os.getpid()),
        }
        self._journal.append(record)
        self._journal.sync()
        identity = self._files.identity
        header = {
            "trial_id": identity.trial_id,
            "experiment_id": identity.experiment_id,
            "experiment_tag": identity.experiment_tag,
            "settings": {"config": dict(self.spec.config)},
        }
        return filler_of(header, record)

    # -- the driver's half of report() ----------------------------------------------------

    def _on_report(self, rank: int, report: Report, descriptors: tuple[int, ...]) -> None:
        self._alignment.received(rank, report)
        self._watch.progressed(rank)
        self._rank_metrics[rank] = report.metrics
        if rank != 0:
            self._journal_row(rank, report)
        gathers = report.reduce or (report.checkpoint is not None and self._keeper.config.keep_all_ranks)
        if gathers:
            reports = self._alignment.gather(rank, report)
            if reports is not None:
                self._decide_row(reports[0], reports, descriptors)
        elif rank == 0:
            self._decide_row(report, {}, descriptors)

    def _decide_row(self, report: Report, gathered: dict[int, Report], descriptors: tuple[int, ...]) -> None:
        """Rank 0's row of an index is complete: write it down, commit its checkpoint, then conclude."""
        metrics, reduced = report.metrics, None
        if report.reduce:
            try:
                reduced = reduce_metrics(gathered)
            except MetricError as error:
                self._fail("exception", 0, str(error))
                return
            metrics = {**metrics, **reduced}
        self._journal_row(0, report, metrics if reduced else None)
        row = self._filler.fill(report.index, metrics, report.stamp, report.elapsed)
        if report.checkpoint_follows:
            self._following[report.index] = row
        if report.checkpoint is None:
            self._conclude_row(report, row, reduced, None)
            return
        parts = {rank: each.checkpoint for rank, each in gathered.items() if rank and each.checkpoint}
        try:
            if self._keeper.in_memory:
                commit = self._keeper.commit_in_memory(report.checkpoint, descriptors[0], report.index, row)
            else:
                commit = self._keeper.commit(report.checkpoint, parts, report.index, row)
        except (StorageError, CheckpointError) as error:
            self._fail("storage", 0, str(error))
            return
        self._commits.append(_PendingCommit(commit, lambda: self._conclude_row(report, row, reduced, commit)))

    def _on_checkpoint_ready(self, message: CheckpointReady) -> None:
        """A checkpoint that was written in the background arrived; its row has long been concluded."""
        row = self._following.pop(message.index)
        try:
            commit = self._keeper.commit(message.checkpoint, {}, message.index, row)
        except (StorageError, CheckpointError) as error:
            self._fail("storage", 0, str(error))
            return

        def conclude() -> None:
            self._followed += 1
            self._announce_checkpoint(message.index, commit)
            self._outbox.append((0, Acknowledged(self._alignment.last_index[0], self._followed)))

        self._commits.append(_PendingCommit(commit, conclude))

    def _conclude_commits(self) -> None:
        while self._commits and self._commits[0].commit.done:
            pending = self._commits.popleft()
            try:
                pending.commit.check()
            except (StorageError, OSError) as error:
                self._fail("storage", 0, f"the checkpoint could not be uploaded: {error}")
                return
            pending.conclude()

    def _conclude_row(
        self, report: Report, row: dict[str, Any], reduced: dict[str, float] | None, commit: Commit | None
    ) -> None:
        """Observers see the row, then it is decided whether the run goes on, once for all ranks."""
        index = report.index
        callbacks = self._callbacks
        if callbacks.wants_rows:
            callbacks.on_step_begin(index)
            callbacks.on_trial_result(index, self._trial, row)
        self._trial.last_result = self._last_row = row
        self._new_rows.append(row)
        self._progress.row(row)
        if commit is not None:
            self._announce_checkpoint(index, commit)
        if callbacks.wants_rows:
            callbacks.on_step_end(index)
        self._decided = index
        if self._stopper is not None and self._stop_index is None and self._stopper_says_stop(row):
            self._stop_at(index)
        self._answer_waiting(reduced)

    def _stopper_says_stop(self, row: dict[str, Any]) -> bool:
        assert self._stopper is not None
        return bool(self._stopper(self._trial.trial_id, row) or self._stopper.stop_all())

    def _announce_checkpoint(self, index: int, commit: Commit) -> None:
        kept = commit.kept
        checkpoint = self._keeper.reference(kept)
        self._trial.checkpoint = checkpoint
        self._progress.checkpoint(kept.number, checkpoint.path or "memory")
        self._callbacks.on_checkpoint(index, self._trial, checkpoint)

    def _answer_waiting(self, reduced: dict[str, float] | None = None) -> None:
        """Answer every rank that waits on an index that is decided."""
        alignment = self._alignment
        for rank, index in list(alignment.waiting.items()):
            if index > self._decided:
                continue
            if self._holding and self._stop_index is None and index > alignment.highest_free:
                # All ranks stop after the same report: the first one that no rank has passed yet.
                if not alignment.everyone_waits_at(index):
                    continue
                self._stop_at(index)
            stop = self._stop_index is not None and index >= self._stop_index
            self._outbox.append((rank, Decision(index, stop, reduced if index == self._decided else None)))
            alignment.answered(rank)

    def _stop_at(self, index: int) -> None:
        self._stop_index = index
        self.phase = Phase.STOPPING
        self._deadline = time.monotonic() + self.spec.run_config.failure_config.stop_grace_s

    def _journal_row(self, rank: int, report: Report, reduced: dict[str, Any] | None = None) -> None:
        record: dict[str, Any] = {
            "kind": "row",
            "attempt": self._keeper.attempt,
            "index": report.index,
            "rank": rank,
            "stamp": report.stamp,
            "elapsed": report.elapsed,
            "metrics": report.metrics,
        }
        if reduced is not None:
            record["reduced"] = reduced
        self._journal.append(record, finite=report.finite)

    def _send_answers(self) -> None:
        """Rows reach the journal's file before anybody is told that they arrived."""
        self._answer_waiting()
        attempt = self._attempt
        if attempt is None:
            return
        for rank, last in enumerate(self._alignment.last_index):
            if last - self._acknowledged[rank] >= _ACKNOWLEDGE_EVERY:
                self._acknowledged[rank] = last
                self._outbox.append((rank, Acknowledged(last, self._followed if rank == 0 else 0)))
        self._journal.flush()
        if self._outbox:
            faults.fault_point("before_ack")
            for rank, message in self._outbox:
                attempt.reply(rank, message)
            self._outbox.clear()
            self._keeper.retire()
            self._take_warnings()

    def _hand_rows_to_loggers(self) -> None:
        if self._new_rows:
            self._callbacks.log_rows(self._trial, self._new_rows)
            self._new_rows = []

    def _show_output(self) -> None:
        for rank, text in self._follower.read():
            self._progress.output(rank, text)
        self._progress.tick()

    # -- trouble --------------------------------------------------------------------------

    def _look_for_trouble(self, attempt: Attempt) -> None:
        if self.stopped_by_signal is not None and not self._holding and self.phase is Phase.RUNNING:
            self._begin_graceful_stop()
        mismatch = self._alignment.mismatch() if not attempt.failures and self.phase is Phase.RUNNING else None
        if mismatch is not None:
            counts = self._alignment.counts()
            self._fail("report_mismatch", counts.index(min(counts)), mismatch)
        now = time.monotonic()
        if now >= self._next_watch:
            self._next_watch = now + 1.0
            self._look_for_hang(attempt)

    def _begin_graceful_stop(self) -> None:
        self._holding = True
        self._deadline = time.monotonic() + INTERRUPT_WAIT_S
        name = signal.Signals(self.stopped_by_signal or signal.SIGINT).name
        self._progress.warning(
            f"{name}: stopping at the next report (at most {INTERRUPT_WAIT_S:.0f} s). Once more ends it at once."
        )
        self._outbox += [(rank, Hold()) for rank in range(self.spec.world_size)]

    def _look_for_hang(self, attempt: Attempt) -> None:
        running = attempt.running
        last = self._alignment.last_index
        furthest = max(last)
        behind = [rank for rank in running if last[rank] < furthest or (attempt.ended and last[rank] == furthest)]
        warn, hung = self._watch.look(behind, running)
        if not warn and not hung:
            return
        stacks = "\n".join(f"-- rank {rank} --\n{text}" for rank, text in sorted(attempt.stacks().items()))
        if hung:
            timeout = self.spec.run_config.failure_config.hang_timeout_s
            ranks = ", ".join(str(rank) for rank in hung)
            self._fail(
                "hang",
                hung[0],
                f"no progress within hang_timeout_s={timeout:g} s: rank(s) {ranks} did not report "
                f"(last report of each rank: {last})",
                stacks,
            )
        else:
            self._warn(
                f"Rank(s) {', '.join(map(str, warn))} have not reported for 60 s while others wait for them "
                f"(last report of each rank: {last}).\n{stacks}"
            )

    def _fail(self, kind: FailureKind, rank: int, message: str, traceback: str = "") -> None:
        """A failure that the driver itself found."""
        assert self._attempt is not None
        failure = WorkerFailure(
            rank=rank,
            kind=kind,
            message=message,
            time_ns=time.monotonic_ns(),
            traceback=traceback,
            log_path=str(self._run_dir.log(rank)),
        )
        self._attempt_failed([failure])

    # -- endings --------------------------------------------------------------------------

    def _end_if_over(self, attempt: Attempt) -> None:
        if self._attempt is not attempt:
            return  # it failed while its messages were being handled
        over = self.phase is Phase.STOPPING or self.stopped_by_signal is not None
        if not attempt.running and not self._commits:
            if attempt.failures and not over:
                self._attempt_failed(attempt.failures)
            else:
                self._attempt_succeeded(attempt)
        elif attempt.failed and not over:
            self._attempt_failed(attempt.failures)
        elif time.monotonic() >= self._deadline:
            self._warn("Workers did not end within their grace period and were killed.")
            self._attempt_succeeded(attempt)

    def _attempt_succeeded(self, attempt: Attempt) -> None:
        self._attempt = None
        clean = not attempt.running and not attempt.failures
        warnings = attempt.finish() if clean else attempt.stop()
        warnings += [f"rank {each.rank} failed while stopping: {each.message}" for each in attempt.failures]
        for warning in warnings:
            self._warn(warning)
        if self._alignment.only_rank_zero_reported:
            self._warn("Only rank 0 called report(); its rows are the result.")
        interrupted = self.stopped_by_signal is not None and (self._holding or self.phase is Phase.STOPPING)
        self._finish("interrupted" if interrupted else "finished")

    def _attempt_failed(self, failures: list[WorkerFailure]) -> None:
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        attempt.stop()
        self._journal.flush()
        self._hand_rows_to_loggers()
        self._drain_output()
        self._run_dir.sweep()
        failure = root_cause.attempt_failure(attempt.number, failures)
        self._failures.append(failure)
        self._without_progress = (0 if self._keeper.newest is not self._newest_before else self._without_progress) + 1
        cause = failure.root_cause
        self._journal.append(
            {
                "kind": "failure",
                "attempt": attempt.number,
                "rank": cause.rank,
                "cause": cause.kind,
                "message": cause.message,
                "traceback": cause.traceback,
            }
        )
        self._journal.sync()
        decision = decide(self.spec.run_config.failure_config, self._failures, self._without_progress)
        retry = not isinstance(decision, GiveUp) and self.stopped_by_signal is None
        self._progress.attempt_failed(f"rank {cause.rank}: {cause.message}", retry)
        if isinstance(decision, GiveUp):
            self._finish("failed", reason=decision.reason)
        elif self.stopped_by_signal is not None:
            self._finish("interrupted")
        else:
            self._not_before = time.monotonic() + decision.delay_s
            self.phase = Phase.STARTING

    def _finish(self, status: str, reason: str = "", already: bool = False) -> None:
        """Write the end down, tell the observers, build the result."""
        self._drain_output()
        error = None
        if status == "failed":
            message = root_cause.describe(self._failures, reason)
            error = TrainingFailedError(message, failures=tuple(self._failures))
            error.__cause__ = root_cause.cause_exception(self._failures[-1].root_cause)
            self._run_dir.error_txt.write_text(message + "\n")
        self._take_warnings()
        result = self._make_result(error, already)
        if not already:
            self._journal.append({"kind": "end", "status": status, "message": str(error or ""), "time": time.time()})
            self._journal.sync()
        self._trial.status = "ERROR" if error else "TERMINATED"
        if result.metrics:
            self._trial.last_result = result.metrics
        if error:
            error.result = result
            self._callbacks.on_trial_error(self._alignment.start_index, self._trial)
        else:
            self._callbacks.on_trial_complete(len(self._rank_metrics), self._trial)
        self._callbacks.close(failed=error is not None)
        self._callbacks.on_experiment_end()
        self._keeper.close()
        self._run_dir.processes.unlink(missing_ok=True)
        self._progress.finished(result)
        self.result = result
        self.phase = Phase.DONE
        self.close()

    def _make_result(self, error: Exception | None, already: bool) -> Result:
        if already:
            stored = self._history.rows()
            self._last_row = stored[-1] if stored else None
            self._rank_metrics = self._history.last_rank_metrics()
        row = self._last_row if self._last_row is not None else dict(self._trial.last_result)
        return Result(
            metrics={**row, "done": True},
            checkpoint=self._keeper.newest_checkpoint(),
            error=error,
            log_dir=self._run_dir.root,
            best_checkpoints=self._keeper.best_checkpoints(),
            rank_metrics=dict(sorted(self._rank_metrics.items())),
            warnings=list(self._warnings),
            attempts=self._attempts,
            _history=self._history,
        )

    def close(self) -> None:
        """End everything that still runs and give the files back; safe to call at any time."""
        if self._closed:
            return
        self._closed = True
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.stop()
            self._run_dir.sweep()
            self._callbacks.close(failed=True)
        self._progress.close()
        if self._announced:
            self._follower.close()
        if self._resume_file is not None:
            os.close(self._resume_file)
        self._keeper.close()
        self._files.close()

    # -- small things ---------------------------------------------------------------------

    def _time_to_wait(self, timeout: float) -> float:
        attempt = self._attempt
        assert attempt is not None
        nearest = min(self._deadline, attempt.next_deadline)
        if self._commits:
            timeout = min(timeout, 0.01)
        return max(0.0, min(timeout, nearest - time.monotonic()))

    def _drain_output(self) -> None:
        for rank, text in self._follower.drain():
            self._progress.output(rank, text)

    def _take_warnings(self) -> None:
        warnings, self._keeper.warnings = self._keeper.warnings, []
        for warning in warnings:
            self._warn(warning)

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self._progress.warning(text)


def _startup_failure(error: EngineError | WorkerError) -> WorkerFailure:
    """Why an attempt did not come up, as a failure that is not tried again."""
    failure = error.failure if isinstance(error, WorkerError) else None
    hint = "raise FailureConfig(start_timeout_s=...)" if isinstance(error, StartupTimeoutError) else ""
    if failure is not None:
        return replace(failure, kind="startup")
    return WorkerFailure(rank=0, kind="startup", message=str(error), time_ns=time.monotonic_ns(), hint=hint)


def drive(run: Run, raise_on_error: bool = True) -> Result:
    """Step a run to its end; the error, an interruption and a signal come out of here."""
    try:
        with interrupts.handled(run):
            while not run.done:
                run.step()
    except KeyboardInterrupt as interrupt:
        if run.result is None and not isinstance(interrupt, TrainingInterrupted):
            raise TrainingInterrupted("training was interrupted") from None
        raise
    finally:
        run.close()
    result = run.result
    assert result is not None
    if run.stopped_by_signal == signal.SIGINT:
        raise TrainingInterrupted(f"training was interrupted; what was reached is in {result.path}", result)
    if run.stopped_by_signal is not None:
        raise SystemExit(128 + run.stopped_by_signal)
    if result.error is not None and raise_on_error:
        raise result.error
    return result
