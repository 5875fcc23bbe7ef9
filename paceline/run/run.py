"""A Run drives one RunSpec to a Result: `step()` until `done`.

Reading order: drive.py (the only loop around a run that is alone), `Run.step`, and the methods below it in the order
of the phases. opening.py has what a run works with, at_work.py what happens while workers work, report_flow.py what
happens to a report, decisions.py what is decided about a run, failure_policy.py what follows from a failure,
endings.py the result.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

from paceline.air import faults
from paceline.air.errors import ConfigError, EngineError, NoRoomError, StartCancelledError, WorkerError, WorkerFailure
from paceline.air.result import Result, Status
from paceline.engine.base import Engine, WorkerGroup
from paceline.run import root_cause
from paceline.run.at_work import AtWork, Ending
from paceline.run.attempt import Attempt
from paceline.run.decisions import (
    CONTINUE,
    INTERRUPT_WAIT_S,
    Continue,
    Decision,
    Donor,
    Restart,
    Stop,
    StopRequest,
    Wait,
)
from paceline.run.endings import ReachedSoFar
from paceline.run.failure_policy import GiveUp, is_charged
from paceline.run.inbox import Answer, Inbox
from paceline.run.opening import ALONE, Embedding, InBackground, OpenRun, open_run
from paceline.run.phases import Phase
from paceline.run.request_desk import RequestDesk, stacks_answer
from paceline.run.sizing import LOOK_S, Sizing
from paceline.run.spec import RunSpec

POLL_S = 0.2
"""How long a step waits for news; deaths and reports end the wait at once."""
BREAK_OFF_WAIT_S = 2.0
"""How long the end of everything waits for workers that are coming up; they end by themselves afterwards."""
STORE_WAIT_S = 10.0
"""How long a driver that was interrupted waits for a remote store to take the last state."""


Launched = Attempt | WorkerFailure | NoRoomError | ConfigError | None
"""What came of starting an attempt."""


class Run:
    """The state machine of one run. Use it from one thread."""

    @classmethod
    def open(cls, spec: RunSpec, engine: Engine, embedding: Embedding = ALONE) -> Run:
        """A run with everything prepared that needs no workers. Raises what cannot work; nothing is started then."""
        stop = StopRequest()
        return cls(spec, engine, open_run(spec, engine, embedding, stop), stop, embedding.in_background)

    def __init__(
        self, spec: RunSpec, engine: Engine, parts: OpenRun, stop: StopRequest, in_background: InBackground
    ) -> None:
        self.engine = engine
        self.phase = Phase.OPENED
        self.stop = stop
        self.result: Result | None = None
        self._parts = parts
        self.inbox = Inbox(parts.files.run_dir.requests, parts.files.lock.holder)
        self.inbox.clear()
        self._desk = RequestDesk(self.inbox, stop) if spec.place is None else None
        """What is asked about a trial its search answers."""
        self._reached = ReachedSoFar(spec, parts)
        self._sizing = Sizing(engine, parts.warn, is_trial=spec.place is not None, before=self._reached.world_size)
        self._in_background = in_background
        self._attempt: Attempt | None = None
        self._at_work: AtWork | None = None
        self._job: Future[Any] | None = None
        """Bringing workers up, or ending them: another thread may do it."""
        self._ending = Ending()
        self._next: Wait | Restart | None = None
        """What follows when the workers have ended, instead of the end of the run."""
        self._not_before = 0.0

    # -- the loop's view ------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def starting(self) -> bool:
        """True while workers are being brought up, when a signal interrupts instead of asking."""
        return self.phase in (Phase.OPENED, Phase.STARTING, Phase.LAUNCHING)

    @property
    def is_over(self) -> bool:
        """The training has ended well; what remains is the end of its processes, and validations."""
        if self.phase is Phase.VALIDATING:
            return True
        return self.phase is Phase.ENDING and not self._ending.failures and self._next is None

    @property
    def stopped_by_signal(self) -> int | None:
        return self.stop.signal

    @property
    def group(self) -> WorkerGroup | None:
        """The workers that may have something to say."""
        return self._at_work.attempt.group if self._at_work is not None and self.phase is Phase.RUNNING else None

    @property
    def _working(self) -> Attempt | None:
        return self._at_work.attempt if self._at_work is not None else None

    @property
    def may_have_news(self) -> bool:
        """Something that it does in the background may be done."""
        if self.phase is Phase.RUNNING:
            return self._at_work is not None and self._at_work.flow.has_committed
        if self.phase is Phase.VALIDATING:
            return self._parts.validations.has_news
        return self.phase in (Phase.LAUNCHING, Phase.ENDING)

    @property
    def wakes_at(self) -> float:
        """When a step is due even though nobody says anything (monotonic time)."""
        if self.phase is Phase.STARTING:
            return self._not_before
        if self.phase is Phase.RUNNING and self._at_work is not None:
            return time.monotonic() + self._at_work.time_to_wait(POLL_S)
        return float("inf")

    def step(self, timeout: float = POLL_S) -> Decision:
        """Advance by one phase, or hear what the workers said and act on it. Returns what was decided thereby."""
        decision: Decision = CONTINUE
        if self.phase is Phase.OPENED:
            self._announce()
        if self._desk is not None:
            is_over = self.is_over and self.phase is not Phase.VALIDATING
            self._desk.look(self._working, self.phase.value, is_over=is_over)
        self._look_after_validations()
        if self.phase in (Phase.STARTING, Phase.SUSPENDED) and self.stop.pending:
            self._training_is_over()
        elif self.phase is Phase.STARTING:
            self._start(timeout)
        elif self.phase is Phase.RUNNING:
            decision = self._listen(timeout)
        elif self.phase is Phase.VALIDATING:
            self._await_validations(timeout)
        while self._job is not None and self._job.done():
            job, self._job = self._job, None
            if self.phase is Phase.LAUNCHING:
                self._launched(job.result())
            else:
                self._ended(job.result())
        return decision

    # -- one phase after the other --------------------------------------------------------

    def _announce(self) -> None:
        parts = self._parts
        parts.announce(self._reached.spec, self.engine)
        self.phase = Phase.STARTING
        if parts.files.ended_as == "finished":  # nothing is left to do: the result is what it was
            self._reached.read_back()
            self._conclude(self._reached.result("finished"))
        elif parts.files.training_ended:
            parts.observers.attempt_resumed(parts.files.last_row, parts.history)
            self._training_is_over()

    def _start(self, timeout: float) -> None:
        delay = self._not_before - time.monotonic()
        if delay > 0:
            time.sleep(min(delay, timeout))
            return
        changed = self._next.change.spec if isinstance(self._next, Restart) else None
        try:
            size = self._sizing.next_size(changed or self._reached.spec)
        except NoRoomError as error:
            self._reached.starts()
            self._ending = Ending([root_cause.startup_failure(error)])
            self._failed(waited=False)
            return
        if size is None:
            self._not_before = time.monotonic() + LOOK_S
            return
        self._reached.starts()
        self.phase = Phase.LAUNCHING
        # Taken here: a stop while the donor's checkpoint is being copied must not release it.
        following, self._next = self._next, None
        with self._desk.answered_by_thread(self.phase.value) if self._desk else contextlib.nullcontext():
            self._job = self._in_background(partial(self._launch, following, size))

    def _launch(self, following: Wait | Restart | None, size: int) -> Launched:
        """Bring the workers up; touches nothing but this run, so that it may happen in another thread.

        None if a stop was asked for while they had no room yet. NoRoomError if fewer of them may have room, and
        ConfigError if there can never be room for so many.
        """
        if isinstance(following, Restart):
            self._reached.change(following.change)
        self._attempt, setup = self._parts.prepare_attempt(self._reached.spec, size, self.engine, self.stop)
        faults.role["attempt"] = str(self._attempt.number)
        try:
            self._attempt.start(self._parts.task, setup)
        except StartCancelledError:
            return None
        except ConfigError as error:
            if size > (self._reached.spec.scaling.min_workers or size):
                return error
            raise
        except (EngineError, WorkerError) as error:
            if isinstance(error, NoRoomError) and self._reached.spec.scaling.is_elastic:
                return error
            return root_cause.startup_failure(error)
        if self._parts.broken_off:  # meanwhile, and nobody waited for this
            self._attempt.stop(grace=0.0)
        return self._attempt

    def _launched(self, attempt: Launched) -> None:
        self._parts.pass_on_warnings()
        if isinstance(attempt, NoRoomError | ConfigError):
            self._sizing.not_placed(never=isinstance(attempt, ConfigError))
            self._parts.warn(*self._wind_up())
            self._reached.did_not_start()
            self.phase, self._not_before = Phase.STARTING, time.monotonic() + LOOK_S
            return
        if attempt is None:
            if asked_by := self.stop.asked_by:
                self._parts.warn(f"A stop was requested from outside, by {asked_by}: no longer waiting for room.")
            self._parts.warn(*self._wind_up())
            self._training_is_over()
            return
        if isinstance(attempt, WorkerFailure):
            self._end(Ending([attempt]))
            return
        spec = self._reached.spec
        self._reached.came_up(attempt.world_size)
        self._sizing.started(spec, attempt.world_size)
        filler = self._parts.announce_attempt(attempt, spec, is_changed=self._reached.is_changed)
        others_report = self._reached.others_report
        self._at_work = AtWork(attempt, spec, self._parts, self.stop, filler, others_report=others_report)
        self.phase = Phase.RUNNING

    def _listen(self, timeout: float) -> Decision:
        assert self._at_work is not None
        if self._sizing.looks_for_more():
            self._at_work.flow.to_ranks.replace_at_checkpoint(self._sizing.wants_another_size)
        decision = self._at_work.listen(self.engine, timeout)
        if isinstance(decision, Restart) or (isinstance(decision, Wait) and not decision.keeps_workers):
            self._next = decision
        ending = self._at_work.ending()
        if ending is not None:
            self._end(ending)
        return decision

    def _end(self, ending: Ending) -> None:
        """Let the workers go: well, or because of failures."""
        assert self._attempt is not None
        self.phase, self._ending = Phase.ENDING, ending
        self._parts.validations.follow(self.phase, self._working)  # before the room of its workers is free
        self._job = self._in_background(partial(self._end_workers, self._attempt, ending.is_clean))

    def _end_workers(self, attempt: Attempt, is_clean: bool) -> list[str]:
        """In the background, as what is left to be committed may wait for a slow disk."""
        if self._ending.failures:
            failures = root_cause.with_lost_nodes(self._ending.failures, attempt.group, attempt.places)
            self._ending = Ending(failures)
        warnings = attempt.finish() if is_clean else attempt.stop()
        self._parts.keeper.wait_for_commits()
        return warnings

    def _ended(self, warnings: list[str]) -> None:
        """The workers are gone: what follows?"""
        at_work = self._at_work
        warnings += self._wind_up()
        if self._ending.failures or at_work is None:
            waits_in_report = at_work is not None and at_work.flow.to_ranks.waits
            self._failed(waited=waits_in_report or isinstance(self._next, Wait))
            return
        self._parts.warn(*warnings, *at_work.closing_warnings())
        self._sizing.ended()
        self._reached.index = at_work.flow.alignment.last_index[0]
        if self._next is None or self.stop.pending:
            self._training_is_over()
        else:
            self.phase = Phase.SUSPENDED if isinstance(self._next, Wait) else Phase.STARTING

    def _failed(self, *, waited: bool) -> None:
        failures = self._sizing.with_refused_size(self._ending.failures)
        decision = self._reached.failed(failures)
        self._sizing.failed(self._reached.last_kind, failures)
        gives_up = isinstance(decision, GiveUp) or self.stop.pending
        charged = is_charged(self._reached.last_kind)
        self._parts.observers.attempt_failed(self._reached.last_cause, retry=not gives_up, charged=charged)
        if isinstance(decision, GiveUp):
            self._finish("failed", self._reached.final_error(decision.reason))
        elif gives_up:
            self._training_is_over()
        else:
            self._not_before = time.monotonic() + decision.delay_s
            self.phase = Phase.SUSPENDED if waited else Phase.STARTING

    def _wind_up(self) -> list[str]:
        """However an attempt ended: its workers are gone, what it reported is kept, what is half done is removed."""
        attempt, at_work = self._attempt, self._at_work
        warnings = attempt.stop() if attempt is not None else []
        self._attempt = self._at_work = None
        self._reached.workers_ended(at_work.flow.alignment if at_work is not None else None)
        if at_work is not None:
            at_work.close()
        self._parts.clean_up()
        return warnings

    def _look_after_validations(self) -> None:
        validations = self._parts.validations
        if validations.look(self.phase, self._working):
            if self._at_work is not None:
                self._at_work.flow.retire_soon()
            else:
                self._parts.keeper.retire()
        if validations.failure is not None and not self.stop.pending:
            self.decided(Stop())

    def _training_is_over(self) -> None:
        """What is to be validated is waited for, unless the driver is to end: then the next one does it."""
        validations = self._parts.validations
        if self.stop.status != "finished":
            self._finish(self.stop.status)
        elif validations.failure is not None:
            self._reached.failed([validations.failure])
            self._finish("failed", self._reached.final_error("ValidationConfig(fail_run=True)"))
        elif self.phase is Phase.VALIDATING and validations.unfinished:
            return
        elif self.phase is not Phase.VALIDATING and validations.outlast_training(self._parts.keeper.attempt):
            self.phase = Phase.VALIDATING
        else:
            self._finish("finished")

    def _await_validations(self, timeout: float) -> None:
        if not self.stop.signal:
            self._parts.validations.wait(timeout)
        self._look_after_validations()
        self._parts.observers.catch_up()
        self._training_is_over()

    def _finish(self, status: Status, error: Exception | None = None) -> None:
        if unfinished := self._parts.validations.unfinished:
            self._parts.warn(f"Not validated yet: {', '.join(unfinished)}. Restore the run to validate them.")
        self._conclude(self._reached.write_end(status, error))

    def _conclude(self, result: Result) -> None:
        self.result = result
        self._parts.observers.finished(result, result.metrics.get("training_iteration", 0))
        self._reached.write_late_warnings(result)
        self.phase = Phase.DONE
        self.close()

    # -- requests, between two steps ------------------------------------------------------

    def request_stop(self, signal_number: int) -> None:
        """Ask for a graceful stop: every rank ends after the same report. Safe in a signal handler."""
        self.stop.signal = signal_number

    def stop_gracefully(
        self, *, interrupted: bool = False, preempted: bool = False, within_s: float = INTERRUPT_WAIT_S
    ) -> None:
        """Have every rank end after the same report, as early as possible. What was reached is the result.

        Workers that are coming up are stopped once they are there. `interrupted` says that the run is not over:
        it can be continued. `preempted` has ranks that ask whether to save do so before. Ranks that do not report
        within `within_s` seconds are ended without.
        """
        self.stop.within_s = within_s
        self.stop.interrupted = self.stop.interrupted or interrupted
        self.stop.preempted = preempted
        self.decided(Stop())

    def decided(self, decision: Decision) -> None:
        """How a run that waits continues, or that it ends: then no further step is taken, not even by a retry."""
        before, self._next = self._next, None
        if isinstance(before, Restart):
            before.change.drop()
        if isinstance(decision, Stop):
            self.stop.wanted = True
        elif isinstance(decision, Restart) or before is not None:  # workers that are ending are replaced
            self._next = decision if isinstance(decision, Restart) else Restart()
        if self.phase is Phase.SUSPENDED and not self.stop.pending:
            self.phase = Phase.STARTING
        elif self._at_work is not None:
            self._at_work.flow.to_ranks.release(stop=not isinstance(decision, Continue))

    def stacks(self) -> Answer:
        """The stacks of all ranks, or why there are none."""
        return stacks_answer(self._working, self.phase.value)

    def donate(self) -> Donor | None:
        """The newest checkpoint with its row, kept until it is released; None without one on disk."""
        return self._parts.donate()

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
        if os.getpid() != self._parts.pid:
            return
        self._parts.broken_off = True
        if status == "interrupted":
            self._parts.store_wait_s = store_wait_s
        self.wait_for_job(wait_s)
        if self.result is None:
            with contextlib.suppress(Exception):
                self._wind_up()
            with contextlib.suppress(Exception):
                self._finish(status, error)
        if self.result is None:
            with contextlib.suppress(Exception):
                self.result = self._reached.result_without_storage(status, error)
        with contextlib.suppress(Exception):
            self.close()

    def wait_for_job(self, timeout: float | None = None) -> None:
        """Workers that come up cannot be ended before they are there. What the work brought is dropped."""
        job, self._job = self._job, None
        if job is not None:
            with contextlib.suppress(Exception):
                job.result(timeout)

    def close(self) -> None:
        """End everything that still runs and give the files back; safe to call at any time."""
        if self._parts.is_closed or os.getpid() != self._parts.pid:
            return  # a forked child has no part in its parent's run
        self._parts.is_closed = True
        self.wait_for_job()
        following, self._next = self._next, None
        if isinstance(following, Restart):
            following.change.drop()
        try:
            if self._attempt is not None:
                self._wind_up()
        finally:
            warnings = self._parts.close(complete=self.stop.signal is None)
        if self.result is not None:  # it is complete, but for what the remote store refused at the very end
            self.result.warnings += warnings
