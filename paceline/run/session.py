"""The session: what user code sees inside a worker, and the worker's half of report()."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.air.attachment import Attachment
from paceline.air.checks import warn_at_users_line
from paceline.air.constants import DONE
from paceline.air.errors import SessionMisuseError, StopTraining
from paceline.air.faults import fault_point, watched_point
from paceline.air.loader_epochs import LoaderEpochs
from paceline.air.metrics import plain_metrics
from paceline.air.session import ReportedCheckpoint
from paceline.air.validation import ValidationTask, checked_task
from paceline.run.alignment import Reduce, check_reduce
from paceline.run.data import chosen_shard
from paceline.run.debug_messages import DebugLine, DebugTurn, ForConsole, Pause
from paceline.run.messages import (
    Acknowledged,
    Answer,
    CheckpointFiles,
    CheckpointReady,
    CheckpointWanted,
    Hold,
    Meeting,
    Met,
    Report,
    SessionSetup,
    Told,
    Warned,
    decode_to_worker,
    encode,
)
from paceline.run.questions import Questions
from paceline.run.rank_target import fetch_start, rank_target
from paceline.run.staging import CheckpointStager, Staged, check_checkpoint
from paceline.run.timing import RankClock

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.preemption import Preemption
    from paceline.engine.base import WorkerChannel
    from paceline.run.rank_debugger import RankDebugger


CONSOLE_POLL_S = 0.1
"""How often a thread in the debugger looks whether another one has received what it waits for."""


class Session:
    """One rank's session. Its methods may be called from any thread of the worker."""

    def __init__(self, setup: SessionSetup, channel: WorkerChannel, resume: Checkpoint | None) -> None:
        self.world_rank = setup.world_rank
        self.world_size = setup.world_size
        self.local_rank = setup.local_rank
        self.local_world_size = setup.local_world_size
        self.node_rank = setup.node_rank
        self.is_elastic = setup.is_elastic
        self.previous_world_size = setup.previous_world_size
        self.trial_name = setup.trial_name
        self.trial_id = setup.trial_id
        self.trial_dir = os.path.abspath(os.fsdecode(setup.trial_dir))
        self.experiment_name = setup.experiment_name
        self.trial_resources = {} if setup.resources is None else setup.resources.as_dict()
        self.metadata = setup.metadata
        self.shards: dict[str, Any] = {}
        self.preprocessor: Any = None
        """Fitted by the run; goes into every checkpoint that has none of its own."""
        self.at_end: list[Callable[[bool], None]] = []
        self.clock = RankClock()
        self.loader_epochs = LoaderEpochs(lambda: [] if self._resume is None else self._resume.loader_epochs)
        self.debugger: RankDebugger | None = None
        self._setup = setup
        self._channel = channel
        if not os.path.isabs(setup.trial_dir):
            os.makedirs(self.trial_dir, exist_ok=True)
        self._began = time.monotonic()
        self._index = self._acknowledged = setup.start_index
        self._resume = resume
        self._meetings = 0
        self._met: Met | None = None
        self._files_told: tuple[CheckpointFiles, tuple[Attachment, ...]] | None = None
        self._hold = False
        self._paused = False
        """Another rank is in the debugger."""
        self.from_console: deque[DebugTurn | DebugLine] = deque()
        self._stopping = self._ended = False
        self._last_row: dict[str, Any] = {}
        self._warned: set[str] = set()
        self.questions = Questions(channel.send, self._read_messages_blocking, setup.wall_offset_s, self.clock)
        self._lock = threading.RLock()
        self._fault_at_report = watched_point("report")

    # -- what user code calls -------------------------------------------------------------

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None = None,
        reduce: Mapping[str, Reduce] | None = None,
        validation: bool | ValidationTask | None = None,
    ) -> dict[str, float] | None:
        """Hand one row, and maybe a checkpoint, to the driver.

        Returns once the row is sent; waits for the driver's answer where the run may be stopped at this row, where a
        checkpoint must be committed, or where values are reduced over ranks, and returns those. Raises StopTraining
        when the run shall stop after this row.
        """
        plain, finite = plain_metrics(metrics)
        rules, weights = check_reduce(plain, reduce) if reduce else (None, None)
        if checkpoint is not None:
            check_checkpoint(checkpoint, plain, self._setup.score_attribute)
        task = checked_task(validation, self._setup.validation, plain, has_checkpoint=checkpoint is not None)
        with self._lock:
            self._check_usable()
            self._read_messages()
            if self._paused:
                self._stand_still()
            index = self._index + 1
            if self._fault_at_report is not None:
                self._fault_at_report(step=index, rank=self.world_rank)
            times = self.clock.reporting()
            staged, follows, attachments = self._stage(checkpoint, index, plain)
            may_be_last = self._setup.decides or self._hold or plain.get(DONE) is True
            waits = bool(may_be_last or reduce or (checkpoint is not None and not follows))
            self._channel.send(
                encode(
                    Report(
                        index=index,
                        metrics=plain,
                        stamp=time.time() + self._setup.wall_offset_s,
                        elapsed=time.monotonic() - self._began,
                        finite=finite,
                        waits=waits,
                        checkpoint=staged,
                        checkpoint_follows=follows,
                        reduce=rules,
                        weights=weights,
                        data={name: shard.state_dict() for name, shard in self.shards.items()} or None,
                        with_checkpoint=checkpoint is not None,
                        times=times,
                        of_all_ranks=checkpoint is not None and self._stager.is_of_all_ranks(checkpoint),
                        validation=task if self.world_rank == 0 else None,
                    )
                ),
                attachments,
            )
            self._index, self._last_row = index, plain
            if checkpoint is None or follows:  # What is waited for is not the checkpoint.
                self.questions.save_ends()
            answer = self._wait_for_answer(index) if waits else None
            self.questions.save_ends()
            if answer is None:
                if self._stay_within_window() or checkpoint is not None:
                    self.clock.reported(with_checkpoint=checkpoint is not None)
                return None
            self.clock.reported(with_checkpoint=checkpoint is not None)
            if checkpoint is not None and not follows:
                self._stager.committed(checkpoint)
            if answer.stop:
                self._stopping = True
                stopped = StopTraining(f"the run stops after report {index}")
                stopped.continues = answer.continues
                raise stopped
            return answer.reduced

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Hand in a checkpoint for the row that was reported last, which had none; every rank calls it.

        For loops that learn only afterwards that a row was the last one, be it because the run was stopped there.
        """
        with self._lock:
            began = time.perf_counter()
            staged, _, attachments = self._stage(checkpoint, self._index, self._last_row)
            if staged is not None:
                ready = CheckpointReady(self._index, staged, self._stager.is_of_all_ranks(checkpoint))
                self._channel.send(encode(ready), attachments)
            self.clock.waited_for_checkpoint(time.perf_counter() - began)
            self.questions.save_ends()

    def meet(self, called: str, content: bytes | None = None) -> bytes | None:
        """Wait until every rank has made the same call; returns the content that rank 0 brought."""
        with self._lock:
            self._check_usable()
            began = time.perf_counter()
            self._meetings += 1
            self._channel.send(encode(Meeting(self._meetings, called, content)))
            while self._met is None or self._met.number < self._meetings:
                self._read_messages_blocking()
            self.clock.waited_for_ranks(time.perf_counter() - began)
            if self._met.stop:
                self._stopping = True
                raise StopTraining(f"the run stopped while this rank waited in {called}")
            return self._met.content

    def should_checkpoint(self) -> bool:
        """Whether to save now; the driver has one answer to the n-th call of all ranks."""
        with self._lock:
            self._check_usable("should_checkpoint()")
            return self.questions.should_checkpoint()

    def preempted(self) -> Preemption | None:
        """Why the workers have to go, and when; the driver has one answer to the n-th call of all ranks."""
        with self._lock:
            self._check_usable("preempted()")
            return self.questions.preempted()

    def snapshot_begins(self) -> None:
        self.questions.snapshot_begins()

    def snapshot_ends(self) -> None:
        self.questions.save_ends()

    def warn(self, text: str) -> None:
        """Tell the user something, in the run's output and in `result.warnings`. It is rank 0 that tells it."""
        if self.world_rank == 0:
            with self._lock:
                self._channel.send(encode(Warned(text)))

    def _warn_once(self, text: str) -> None:
        """At the user's line in the worker's output, and in `result.warnings`."""
        if text not in self._warned:
            self._warned.add(text)
            warn_at_users_line(text)
            self.warn(text)

    def get_checkpoint(self) -> Checkpoint | None:
        """The newest committed checkpoint of this run, or the one it started from.

        A rank that has not reported yet gets the one it started from, however far the others are: all ranks must begin
        at the same row.
        """
        with self._lock:
            self._read_messages()
            if self._index == self._setup.start_index:
                return self._resume
            return self._stager.newest_committed() or self._resume

    def get_all_reported_checkpoints(self) -> list[ReportedCheckpoint]:
        """What is committed and kept, oldest first. The journal knows: the driver has written it before it answered."""
        if not self.reports and self._resume is None:
            return []
        with self._lock:
            return [ReportedCheckpoint(*kept) for kept in self._stager.kept()]

    def get_dataset_shard(self, name: str | None = None) -> Any:
        """This rank's part of a dataset; None for a name that there is not."""
        return chosen_shard(self.shards, name, self._warn_once)

    # -- what the worker calls ------------------------------------------------------------

    @property
    def reports(self) -> int:
        """How many times this rank has reported in this attempt."""
        return self._index - self._setup.start_index

    @property
    def keeps_all_ranks(self) -> bool:
        """The files of all ranks' checkpoints are kept; otherwise those of rank 0."""
        return self._setup.keep_all_ranks

    @property
    def rows_before(self) -> int:
        """How many rows this run has kept from attempts before this one."""
        return self._setup.start_index

    def fetch_start(self, folder: Path) -> None:
        """Get the checkpoint to continue from, which is on the driver's disk, into a new directory."""
        from paceline.air.checkpoint import Checkpoint

        with self._lock:
            fetch_start(self._ask, folder)
            self._resume = Checkpoint.from_directory(folder)
            self._setup = msgspec.structs.replace(self._setup, resume_path=os.fsencode(folder))

    def tell_console(self, message: ForConsole) -> None:
        self._channel.send(encode(message))

    def look_for_console(self) -> None:
        """Read a message, if one comes soon. Another thread may be in report(): then that thread reads them all."""
        if self._lock.acquire(timeout=CONSOLE_POLL_S):
            try:
                if not self.from_console:
                    self._handle(self._channel.receive(CONSOLE_POLL_S))
            finally:
                self._lock.release()

    def give_up(self) -> None:
        """The train function raised: what is still being written is not waited for, the error goes first."""
        self._ended = True

    def end(self) -> None:
        """No report may follow; background checkpoints are delivered first."""
        with self._lock:
            self._ended = True
            if "_stager" in vars(self):
                self._stager.close()

    # -- inside ---------------------------------------------------------------------------

    @cached_property
    def _stager(self) -> CheckpointStager:
        """Made for the first checkpoint."""
        target = rank_target(self._setup, self._channel, self._ask)
        return CheckpointStager(self._setup, self._channel, target, self._began, self.loader_epochs.now)

    def _check_usable(self, called: str = "report()") -> None:
        if self._stopping:
            raise StopTraining("the run was asked to stop")
        if self._ended:
            raise SessionMisuseError(f"{called} was called after the train function had returned.")

    def _stage(self, checkpoint: Checkpoint | None, index: int, plain: Mapping[str, Any]) -> Staged:
        if checkpoint is None:
            return None, False, ()
        self.questions.save_begins()
        if self.preprocessor is not None:
            checkpoint = checkpoint.with_preprocessor(self.preprocessor)
        staged = self._stager.stage(checkpoint, index, plain, self._read_messages_blocking)
        fault_point("before_report_send")
        return staged

    def _stand_still(self) -> None:
        began = time.perf_counter()
        while self._paused:
            self._read_messages_blocking()
        self.clock.stood_still(time.perf_counter() - began)

    def _stay_within_window(self) -> bool:
        """Whether that took any waiting."""
        waits = False
        while self._index - self._acknowledged >= self._setup.window:
            self._read_messages_blocking()
            waits = True
        return waits

    def _wait_for_answer(self, index: int) -> Answer:
        while True:
            answer = self._handle(self._channel.receive(None))
            if answer is not None and answer.index == index:
                return answer

    def _ask(self, wanted: CheckpointWanted) -> tuple[CheckpointFiles, tuple[Attachment, ...]]:
        """What the driver knows about a checkpoint on its disk."""
        self._channel.send(encode(wanted))
        while (answer := self._files_told) is None:
            self._read_messages_blocking()
        self._files_told = None
        return answer

    def _read_messages_blocking(self) -> None:
        self._handle(self._channel.receive(None))

    def _read_messages(self) -> None:
        while (body := self._channel.receive(0)) is not None:
            self._handle(body)

    def _handle(self, body: bytes | None) -> Answer | None:
        if body is None:
            return None
        message = decode_to_worker(body)
        if isinstance(message, Answer):
            for attachment in self._channel.take_attachments():
                self._stager.received(attachment)
            return message
        if isinstance(message, Acknowledged):
            self._acknowledged = max(self._acknowledged, message.index)
            if message.checkpoints:
                self._stager.acknowledged(message.checkpoints)
        elif isinstance(message, Hold):
            self._hold = message.on
            self.questions.ask_again()
        elif isinstance(message, Met):
            self._met = message
        elif isinstance(message, Told):
            self._hold = self._hold or message.notice is not None
            self.questions.received(message)
        elif isinstance(message, CheckpointFiles):
            self._files_told = (message, self._channel.take_attachments())
        elif isinstance(message, Pause):
            self._paused = message.on
        else:
            self.from_console.append(message)
        return None
