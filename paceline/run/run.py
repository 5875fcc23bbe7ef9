"""A Run drives one RunSpec to a Result: `step()` until `done`.

Reading order: drive.py (the only loop around a run that is alone), `Run.step` (start an
attempt, listen, act on what was heard), then `_begin` and the endings. What happens to a
report is in report_flow.py; what is decided about a run in decisions.py.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.air import faults
from paceline.air.errors import (
    EngineError,
    TrainingFailedError,
    WorkerError,
    WorkerFailure,
)
from paceline.air.result import Result, Status
from paceline.air.settings import plain_config
from paceline.engine.base import Engine, WorkerGroup
from paceline.run import root_cause, run_files
from paceline.run.alignment import Alignment
from paceline.run.attempt import Attempt, pickled_task
from paceline.run.background_work import BackgroundWork
from paceline.run.continuing import restore_line
from paceline.run.data import RunData
from paceline.run.decisions import (
    CONTINUE,
    INTERRUPT_WAIT_S,
    AllDeciders,
    Change,
    Continue,
    Decider,
    Decision,
    Donor,
    Restart,
    Stop,
    StopperDecider,
    StopRequest,
    Wait,
)
from paceline.run.embedding import ALONE, Embedding
from paceline.run.failure_policy import GiveUp
from paceline.run.failures_so_far import FailuresSoFar, closing_warnings, failure_of, failure_record
from paceline.run.fingerprint import fingerprint
from paceline.run.hang_watch import HangWatch, stacks_text
from paceline.run.history import JournalHistory, filler_of
from paceline.run.messages import ForTarget
from paceline.run.records import VERSION, Ended
from paceline.run.report_flow import Problem, ReportFlow
from paceline.run.rows import RowFiller, with_metrics_of
from paceline.run.setting_up import make_keeper
from paceline.run.spec import RunSpec
from paceline.run.start_point import (
    StartPoint,
    attempt_record,
    from_given_checkpoint,
    from_own_checkpoint,
    session_setup,
)
from paceline.run.stoppers import make_stopper
from paceline.run.summary import reached_at_end
from paceline.storage.files import write_durably

POLL_S = 0.2
"""How long a step waits for news; deaths and reports end the wait at once."""

BREAK_OFF_WAIT_S = 2.0
"""How long the end of everything waits for workers that are coming up; they end by themselves afterwards."""
STORE_WAIT_S = 10.0
"""How long a driver that was interrupted waits for a remote store to take the last state."""


class Phase(enum.Enum):
    """Where a run is between two steps."""

    STARTING = "an attempt is to be started"
    LAUNCHING = "workers are coming up"
    RUNNING = "workers are at work"
    ENDING = "workers are going"
    SUSPENDED = "there are no workers, and there will be again"
    DONE = "there is a result"


class Run:
    """The state machine of one run. Use it from one thread."""

    def __init__(self, spec: RunSpec, engine: Engine, embedding: Embedding = ALONE) -> None:
        self.spec = spec
        self.engine = engine
        self._embedding = embedding
        self.phase = Phase.STARTING
        self.result: Result | None = None
        self.is_over = False
        """The training has ended well; what remains is the end of its processes."""
        self.stop = StopRequest()
        self._data = embedding.data or RunData.prepared(spec)
        self._task = pickled_task(spec, self._data.packed, self._data.preprocessor)
        self._files = (
            run_files.reopen(spec, embedding.shared_sync)
            if spec.restore_path is not None
            else run_files.create(spec, engine.capabilities, embedding.shared_sync)
        )
        self._closed = False
        self._broken_off = False
        self._store_wait_s: float | None = None
        self._pid = os.getpid()
        self._given: StartPoint | None = None
        """Where the user's own checkpoint lets the run start."""
        try:
            self._run_dir, self._journal = self._files.run_dir, self._files.journal
            self._history = JournalHistory(self._run_dir.journal)
            self._keeper = make_keeper(spec, self._files)
            self._keeper.work_with(engine)
            self._observers = embedding.observe(spec, self._files)
            self._decider: Decider = AllDeciders(self.stop, *self._deciders())
        except BaseException:
            self._files.close()
            raise
        self._announced = False
        self._attempt: Attempt | None = None
        self._flow: ReportFlow | None = None
        self._attempts = self._files.attempts_so_far
        self._failures = FailuresSoFar(spec.backend_config.backend_cls)
        self._not_before = 0.0
        self._deadline = float("inf")
        """When workers that were asked to end are killed."""
        self._told_to_stop = False
        self._rank_metrics: dict[int, dict[str, Any]] = {}
        self._work = BackgroundWork(embedding.in_background)
        """Bringing workers up and ending them."""
        self._next: Wait | Restart | None = None
        """What follows when the workers have ended, instead of the end of the run."""
        self._reached = self._files.last_row
        """The index of the row at which the last attempt ended."""
        self._respecified = False
        self._taken_over: tuple[int, Mapping[str, Any]] | None = None
        """Since which iteration another trial's state has taken the place of this one's, and the row it came with."""

    def _deciders(self) -> list[Decider]:
        if self._embedding.decider is not None:
            return [self._embedding.decider]
        stopper = make_stopper(self.spec.run_config.stop)
        return [] if stopper is None else [StopperDecider(stopper, self._observers.trial.trial_id)]

    # -- the loop's view ------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def starting(self) -> bool:
        """True while workers are being brought up, when a signal interrupts instead of asking."""
        return self.phase in (Phase.STARTING, Phase.LAUNCHING)

    @property
    def group(self) -> WorkerGroup | None:
        """The workers that may have something to say."""
        return self._attempt.group if self._attempt is not None and self.phase is Phase.RUNNING else None

    @property
    def may_have_news(self) -> bool:
        """Something that it does in the background may be done."""
        if self.phase is Phase.RUNNING:
            return self._flow is not None and self._flow.has_committed
        return self.phase in (Phase.LAUNCHING, Phase.ENDING)

    @property
    def wakes_at(self) -> float:
        """When a step is due even though nobody says anything (monotonic time)."""
        if self.phase is Phase.STARTING:
            return self._not_before
        if self.phase is not Phase.RUNNING or self._attempt is None or self._flow is None:
            return float("inf")
        return time.monotonic() + self._time_to_wait(self._attempt, self._flow, POLL_S)

    @property
    def stopped_by_signal(self) -> int | None:
        return self.stop.signal

    def step(self, timeout: float = POLL_S) -> Decision:
        """Advance: start an attempt, or hear what the workers said and act on it. Returns what was decided thereby."""
        if self.phase is Phase.STARTING:
            self._begin(timeout)
        elif self.phase in (Phase.LAUNCHING, Phase.ENDING):
            self._work.go_on()
        elif self.phase is Phase.RUNNING:
            return self._listen(timeout)
        elif self.phase is Phase.SUSPENDED and self.stop.pending:
            self._finish(self.stop.status)
        return CONTINUE

    def _listen(self, timeout: float) -> Decision:
        attempt, flow = self._attempt, self._flow
        assert attempt is not None
        assert flow is not None
        timeout = self._time_to_wait(attempt, flow, timeout)
        if flow.committing and attempt.group is not None:
            self.engine.wait([attempt.group], timeout)  # the keeper wakes it when a commit is done
            timeout = 0.0
        for rank, message, attachments in attempt.poll(timeout):
            self._watch.progressed(rank)
            if isinstance(message, ForTarget):
                self._keeper.received(rank, message, attachments, attempt.reply)
            else:
                flow.received(rank, message, attachments)
        flow.conclude_commits()
        if self._files.mirror is not None:  # after the commits: one that failed because of it must not cause a retry
            self._files.mirror.lease.raise_if_lost()
        decision = flow.take_decision()
        self._note(decision)
        self._look_for_trouble(attempt, flow)
        self._start_grace_period(flow)
        answers = flow.answers()
        if answers:
            faults.fault_point("before_ack")
            for rank, answer, attachments in answers:
                attempt.reply(rank, answer, attachments)
        flow.after_answers()
        self._pass_on_warnings()
        self._observers.catch_up()
        self._end_if_over(attempt, flow)
        return decision

    def _note(self, decision: Decision) -> None:
        """What follows when the workers have ended."""
        if isinstance(decision, Restart) or (isinstance(decision, Wait) and not decision.keeps_workers):
            self._next = decision

    def request_stop(self, signal_number: int) -> None:
        """Ask for a graceful stop: every rank ends after the same report. Safe in a signal handler."""
        self.stop.signal = signal_number

    def stop_gracefully(self, *, interrupted: bool = False, within_s: float = INTERRUPT_WAIT_S) -> None:
        """Have every rank end after the same report, as early as possible. What was reached is the result.

        Workers that are coming up are stopped once they are there. `interrupted` says that the run is not over:
        it can be continued. Ranks that do not report within `within_s` seconds are ended without.
        """
        self._drop_change()
        self.stop.wanted, self.stop.within_s = True, within_s
        self.stop.interrupted = self.stop.interrupted or interrupted
        if self._flow is not None:
            self._flow.to_ranks.release(stop=True)

    def decided(self, decision: Decision) -> None:
        """How a run that waits continues, or that it ends: then no further step is taken, not even by a retry."""
        workers_end = self._next is not None
        self._drop_change()
        if isinstance(decision, Stop):
            self.stop.wanted = True
        elif isinstance(decision, Restart):
            self._next = decision
        elif workers_end:
            self._next = Restart()
        if self.phase is Phase.SUSPENDED and not self.stop.pending:
            self.phase = Phase.STARTING
        elif self._flow is not None:
            self._flow.to_ranks.release(stop=not isinstance(decision, Continue))

    def _drop_change(self) -> None:
        dropped, self._next = self._next, None
        if isinstance(dropped, Restart):
            dropped.change.drop()

    def donate(self) -> Donor | None:
        """The newest checkpoint with its row, kept until it is released; None without one on disk."""
        newest = self._keeper.newest
        if newest is None or self._keeper.in_memory:
            return None
        pin = self._keeper.pin(newest.number)
        return Donor(str(self._observers.trial), self._keeper.reference(newest), dict(newest.row), pin)

    def _start_grace_period(self, flow: ReportFlow) -> None:
        if flow.to_ranks.stop_index is not None and not self._told_to_stop:
            self._told_to_stop = True
            self._deadline = time.monotonic() + self.spec.run_config.failure_config.stop_grace_s

    def _time_to_wait(self, attempt: Attempt, flow: ReportFlow, timeout: float) -> float:
        if flow.has_committed:
            return 0.0
        nearest = min(self._deadline, attempt.settled_at)
        return max(0.0, min(timeout, nearest - time.monotonic()))

    # -- starting an attempt --------------------------------------------------------------

    def _begin(self, timeout: float) -> None:
        if not self._announced:
            self._announced = True
            notes = [*self._files.notes, *self.spec.backend_config.notes(self.spec.world_size)]
            self._observers.started(notes, continues=bool(self._files.records))
            if self._files.ended_as == "finished":
                self._already_finished()
                return
            for note in self._data.notes:
                self._observers.warn(note)
        if self.stop.pending:
            self._finish(self.stop.status)
            return
        delay = self._not_before - time.monotonic()
        if delay > 0:
            time.sleep(min(delay, timeout))
            return
        number, self._attempts = self._attempts, self._attempts + 1
        self._keeper.attempt = number
        self._newest_before = self._keeper.newest
        self.phase = Phase.LAUNCHING
        self._work.begin(self._launch, self._launched)

    def _launch(self) -> Attempt | WorkerFailure:
        """Bring the workers up; touches nothing but this run, so that it may happen in another thread."""
        self._make_changes()
        start = self._start_point()
        data_state = self._data.usable_state(start.data, self._keeper.warnings.append)
        attempt = Attempt(self._keeper.attempt, self.spec, self.engine, self._run_dir, start)
        setup = session_setup(
            self.spec,
            self._observers.trial,
            self._keeper,
            start,
            decides=self._decider.may_decide,
            data_state=data_state,
        )
        began = time.monotonic()
        self._attempt = attempt
        try:
            attempt.start(self._task, setup)
        except (EngineError, WorkerError) as error:
            return root_cause.startup_failure(error)
        attempt.warmup_s = time.monotonic() - began
        if self._broken_off:  # meanwhile, and nobody waited for this
            attempt.stop(grace=0.0)
        return attempt

    def _make_changes(self) -> None:
        """What was wished for between the last attempt and this one."""
        change = self._next.change if isinstance(self._next, Restart) else Change()
        self._next = None
        change.take_over(self._keeper, self._reached)
        if change.donor is not None:
            self._taken_over = (self._reached, change.donor.row)
        if change.spec is not None:
            self.spec, self._respecified = change.spec, True
            self._task = pickled_task(self.spec, self._data.packed, self._data.preprocessor)

    def _launched(self, attempt: Attempt | WorkerFailure) -> None:
        self._pass_on_warnings()
        if isinstance(attempt, WorkerFailure):
            assert self._attempt is not None
            self._attempt_failed(self._attempt, [attempt])
            return
        start = attempt.start_point
        filler = self._record_attempt(attempt)
        self._flow = ReportFlow(
            Alignment(attempt.world_size, start.index),
            filler,
            self._journal,
            self._keeper,
            self._observers,
            self._decider,
            self._data.positions(self.spec.world_size, start.index),
        )
        self._watch = HangWatch(self.spec.world_size, self.spec.run_config.failure_config.hang_timeout_s)
        self._observers.attempt_started(filler.first())
        if attempt.number > 0 or self._files.records:
            self._observers.attempt_resumed(start.index, start.checkpoint_number, self._history)
        self._deadline, self._told_to_stop = float("inf"), False
        self.phase = Phase.RUNNING

    def _start_point(self) -> StartPoint:
        own = from_own_checkpoint(self._keeper)
        if own is not None:
            return own
        if self._given is None:
            self._given = from_given_checkpoint(self.spec.resume_from)
        return self._given

    def _record_attempt(self, attempt: Attempt) -> RowFiller:
        record = attempt_record(attempt.start_point, attempt.number, attempt.places, attempt.pids, attempt.warmup_s)
        if self._files.records or self._respecified:  # the config may be another than the header's
            record.config = plain_config(self.spec.config)
        if self._files.records:
            record.version = VERSION
        if self._files.records and self.spec.place is None:
            record.code = fingerprint(self.spec.code)
        self._journal.append(record, finite=False)
        self._write_down()
        return filler_of(self._files.identity, self.spec.config, record)

    def _write_down(self) -> None:
        """What was appended survives from here on: this process, and the machine as soon as the disk has it."""
        if self._embedding.shared_sync is None:
            self._journal.sync()
        else:
            self._journal.flush()

    # -- trouble --------------------------------------------------------------------------

    def _look_for_trouble(self, attempt: Attempt, flow: ReportFlow) -> None:
        undecided = not flow.to_ranks.holding and flow.to_ranks.stop_index is None
        if undecided and isinstance(self._decider.between_rows(), Stop):
            flow.to_ranks.hold()
            self._deadline = time.monotonic() + self.stop.within_s
            if self.stop.signal is not None:
                self._observers.warn(
                    f"{signal.Signals(self.stop.signal).name}: stopping at the next report (at most "
                    f"{INTERRUPT_WAIT_S:.0f} s). A second signal stops it immediately."
                )
        if not attempt.failures:
            flow.find_mismatch()
        self._look_for_hang(attempt, flow)

    def _look_for_hang(self, attempt: Attempt, flow: ReportFlow) -> None:
        if not self._watch.is_due():
            return
        found = self._watch.find(attempt.running, attempt.ended, flow.alignment.last_index, flow.excused_ranks())
        if found is None:
            return
        stacks = stacks_text(attempt.stacks(), first=found.ranks)
        if found.is_error:
            flow.problem = Problem("hang", found.ranks[0], found.text, stacks)
        else:
            self._observers.warn(f"{found.text}.\n{stacks}")

    # -- endings --------------------------------------------------------------------------

    def _end_if_over(self, attempt: Attempt, flow: ReportFlow) -> None:
        stopping = flow.to_ranks.stop_index is not None or flow.to_ranks.holding
        if flow.problem is not None:
            self._attempt_failed(attempt, [failure_of(flow.problem, self._run_dir)])
        elif not attempt.running and not flow.commits_under_way:
            if attempt.failures and not stopping:
                self._attempt_failed(attempt, attempt.failures)
            else:
                self._attempt_succeeded(attempt, flow)
        elif attempt.failed and not stopping:
            self._attempt_failed(attempt, attempt.failures)
        elif attempt.failed and flow.to_ranks.stop_index is None:
            self._attempt_succeeded(attempt, flow)  # the report at which all ranks would stop never comes
        elif attempt.running and time.monotonic() >= self._deadline:
            self._observers.warn("Workers did not end within their grace period and were killed.")
            self._attempt_succeeded(attempt, flow)

    def _attempt_succeeded(self, attempt: Attempt, flow: ReportFlow) -> None:
        clean = not attempt.running and not attempt.failures
        end = partial(self._end_workers, attempt.finish if clean else attempt.stop)
        self.phase = Phase.ENDING
        self.is_over = self._next is None
        self._work.begin(end, partial(self._workers_ended, attempt, flow))

    def _end_workers(self, end: Callable[[], list[str]]) -> list[str]:
        """In the background, as what is left to be committed may wait for a slow disk."""
        warnings = end()
        self._keeper.wait_for_commits()
        return warnings

    def _workers_ended(self, attempt: Attempt, flow: ReportFlow, warnings: list[str]) -> None:
        warnings += self._wind_up()
        warnings += closing_warnings(attempt, flow)
        for warning in warnings:
            self._observers.warn(warning)
        self._reached = flow.alignment.last_index[0]
        if self._next is not None and not self.stop.pending:
            self.phase = Phase.SUSPENDED if isinstance(self._next, Wait) else Phase.STARTING
        else:
            self._finish(self.stop.status)

    def _wind_up(self) -> list[str]:
        """However an attempt ended: its workers are gone, what it told is kept, what it left half-done is removed."""
        attempt, flow = self._attempt, self._flow
        warnings = attempt.stop() if attempt is not None else []
        self._attempt = self._flow = None
        self._rank_metrics = flow.alignment.metrics if flow is not None else {}
        if flow is not None:
            flow.settle()
        self._keeper.settle()
        self._keeper.retire()
        self._run_dir.sweep()
        return warnings

    def _attempt_failed(self, attempt: Attempt, failures: list[WorkerFailure]) -> None:
        self.phase = Phase.ENDING
        end = partial(self._end_workers, attempt.stop)
        self._work.begin(end, lambda _warnings: self._failed(attempt, failures))

    def _failed(self, attempt: Attempt, failures: list[WorkerFailure]) -> None:
        waits = self._flow is not None and self._flow.to_ranks.waits
        self._wind_up()
        made_progress = self._keeper.newest is not self._newest_before
        failure = self._failures.add(attempt.number, failures, made_progress=made_progress)
        self._journal.append(failure_record(failure), finite=False)
        self._write_down()
        decision, cause = self._failures.decide(self.spec.run_config.failure_config), failure.root_cause
        gives_up = isinstance(decision, GiveUp) or self.stop.pending
        self._observers.attempt_failed(f"rank {cause.rank}: {cause.message}", retry=not gives_up)
        if isinstance(decision, GiveUp):
            self._finish("failed", self._failures.final_error(decision.reason, self._how_to_continue()))
        elif gives_up:
            self._finish(self.stop.status)
        else:
            self._not_before = time.monotonic() + decision.delay_s
            self.phase = Phase.SUSPENDED if waits else Phase.STARTING

    def _already_finished(self) -> None:
        """A restored run that has nothing left to do: its result is what it was."""
        self._read_back()
        self._conclude(self._make_result("finished", None))

    def _read_back(self) -> None:
        """The last row and metrics that survive, for an attempt that reported nothing itself."""
        rows = self._history.rows()
        self._observers.last_row = rows[-1] if rows else None
        self._rank_metrics = self._history.last_rank_metrics()

    def break_off(
        self,
        status: Status,
        error: Exception | None = None,
        *,
        wait_s: float = BREAK_OFF_WAIT_S,
        store_wait_s: float = STORE_WAIT_S,
    ) -> None:
        """The driver itself was interrupted, or something in it failed: end the workers, keep what was reached.

        Whatever goes wrong here is a consequence, and the first error is the one to report. Workers that are coming
        up or going are waited for at most `wait_s` seconds, and after an interrupt a remote store `store_wait_s`.
        """
        if os.getpid() != self._pid:
            return
        self._broken_off = True
        if status == "interrupted":
            self._store_wait_s = store_wait_s
        self._work.wait(wait_s)
        if self.result is None:
            with contextlib.suppress(Exception):
                self._wind_up()
            with contextlib.suppress(Exception):
                self._finish(status, error)
            with contextlib.suppress(Exception):
                self._result_without_storage(status, error)
        with contextlib.suppress(Exception):
            self.close()

    def _result_without_storage(self, status: Status, error: Exception | None) -> None:
        """A full or deleted store may refuse even the end: the error still says what was reached."""
        if self.result is None:
            with contextlib.suppress(OSError):  # rows that did not get into the journal are lost
                self._read_back()
                self._observers.trial.last_result = self._observers.last_row or {}
            self.result = self._make_result(status, error)
            if error is not None:
                vars(error)["result"] = self.result

    def _finish(self, status: Status, error: Exception | None = None) -> None:
        """Write the end down and build the result."""
        self._pass_on_warnings()
        self._journal.flush()
        if 0 not in self._rank_metrics:
            self._read_back()
        if (remark := self._decider.remark(self._observers.last_row or {})) is not None:
            self._observers.warn(remark)
        result = self._make_result(status, error)
        if error is not None:
            vars(error)["result"] = result
            text = str(error) if isinstance(error, TrainingFailedError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # for people to read; the journal has it, too
                write_durably(self._run_dir.error_txt, text.encode("utf-8", "backslashreplace") + b"\n")
        self._observers.write_out()
        self._journal.append(self._end_record(result), finite=False)
        self._write_down()
        self._conclude(result)

    def _end_record(self, result: Result) -> Ended:
        kept = [] if self._keeper.in_memory else self._keeper.committed
        cause = self._failures.last_cause or (self._files.records.last_cause if self._files.records else "")
        row = self._observers.last_row or {}
        reached = reached_at_end(row, self._attempts, kept, self._keeper.config, cause)
        return Ended(status=result.status, message=str(result.error or ""), time=time.time(), reached=reached)

    def _conclude(self, result: Result) -> None:
        self.result = result
        self._observers.finished(result, result.metrics.get("training_iteration", 0))
        self.phase = Phase.DONE
        self.close()

    def _make_result(self, status: Status, error: Exception | None) -> Result:
        observers = self._observers
        row = observers.last_row if observers.last_row is not None else observers.trial.last_result
        if self._taken_over is not None and self._taken_over[0] == self._reached:
            row = with_metrics_of(self._taken_over[1], row, self.spec.config)
        return Result(
            metrics={"config": dict(self.spec.config), **row, "done": True},  # also if no attempt came up
            checkpoint=self._keeper.newest_checkpoint(),
            error=error,
            log_dir=self._run_dir.root,
            path=self._files.mirror.filesystem.label if self._files.mirror is not None else "",
            filesystem=self.spec.run_config.storage_filesystem,
            best_checkpoints=self._keeper.best_checkpoints(),
            rank_metrics=dict(sorted(self._rank_metrics.items())),
            warnings=list(observers.warnings),
            attempts=self._attempts,
            status=status,
            how_to_continue="" if status == "finished" else self._how_to_continue(),
            _history=self._history,
        )

    def _how_to_continue(self) -> str:
        """Nothing to say of a trial, which its search continues, nor where everything was in memory only."""
        if self.spec.place is not None or self._keeper.in_memory:
            return ""
        mirror = self._files.mirror
        place = str(self._run_dir.root) if mirror is None else mirror.filesystem.label
        return restore_line(self.spec.trainer_name, place, self.spec.again)

    def close(self) -> None:
        """End everything that still runs and give the files back; safe to call at any time."""
        if self._closed or os.getpid() != self._pid:  # a forked child has no part in its parent's run
            return
        self._closed = True
        self._given = None
        with contextlib.ExitStack() as stack:  # in this order from below, each whatever becomes of the others
            stack.callback(self._close_files)
            stack.callback(self._keeper.close, complete=self.stop.signal is None and not self._broken_off)
            stack.callback(self._observers.close)
            if self._attempt is not None:
                stack.callback(self._wind_up)
            stack.callback(self._work.wait)

    def _close_files(self) -> None:
        warnings = self._files.close(self._store_wait_s)
        if self.result is not None:  # it is complete, but for what the remote store refused at the very end
            self.result.warnings += [*self._keeper.warnings, *warnings]

    def _pass_on_warnings(self) -> None:
        if self._keeper.warnings:
            warnings, self._keeper.warnings = self._keeper.warnings, []
            for warning in warnings:
                self._observers.warn(warning)
