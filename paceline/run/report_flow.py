"""The driver's half of report(), for one attempt: from a rank's message to the answers.

Read from top to bottom: `received` takes messages in; rank 0's row is written to the journal (`_take_row`); its
checkpoint, once all of it is staged, is committed (`_stage`, `_commit_staged`); then the row is concluded: observers
see it, and the decider says what becomes of the run. `answers` hands out what is to be sent, after the journal's rows
have reached their file.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.air.attachment import Attachment
from paceline.air.errors import CheckpointError, FailureKind, MetricError, StorageError
from paceline.run.alignment import Alignment, Meetings, left_out, reduce_metrics
from paceline.run.answers import Answers
from paceline.run.checkpoint_background import Commit
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.decisions import CONTINUE, Decider, Decision
from paceline.run.history import RowFiller
from paceline.run.messages import (
    CheckpointFailed,
    CheckpointReady,
    FromWorker,
    Meeting,
    Report,
    StagedCheckpoint,
    ToWorker,
    Warned,
)
from paceline.run.observers import Observers
from paceline.run.records import Row
from paceline.run.stragglers import Stragglers
from paceline.run.timing import StepTimes
from paceline.storage.journal import Journal

if TYPE_CHECKING:
    from paceline.run.data import DataPositions


@dataclass(frozen=True)
class AttemptProblem:
    """Something that ends the attempt, found by the driver itself."""

    kind: FailureKind
    rank: int
    message: str
    details: str = ""


class ReportState(enum.Enum):
    """How far a report is."""

    RECEIVED = "some rank's part of it is there"
    STAGED = "its row is in the journal, and all parts of its checkpoint wait to be committed"
    COMMITTING = "its checkpoint is on its way to the storage"
    CONCLUDED = "nothing is left to be done"


@dataclass(slots=True)
class PendingReport:
    """What is known of the report of one index. Ranks whose parts must be put together have their reports here."""

    index: int
    state: ReportState = ReportState.RECEIVED
    row: dict[str, Any] | None = None
    """Rank 0's, complete and in the journal."""
    is_shown: bool = False
    """Observers have seen the row and it is decided on: before its checkpoint, if that comes later."""
    reduced: dict[str, float] | None = None
    reports: dict[int, Report] = field(default_factory=dict)
    checkpoints: dict[int, StagedCheckpoint] = field(default_factory=dict)
    of_all_ranks: bool = False
    """The checkpoint consists of the parts of all ranks."""
    in_memory: Attachment | None = None
    """The checkpoint's content, where it is not written to disk."""
    commit: Commit | None = None
    validation: dict[str, Any] | None = None
    """With these arguments the checkpoint is to be validated."""


AskForValidation = Callable[[int, int, dict[str, Any]], None]
"""Takes the index of the report, the number of its checkpoint, and the arguments."""


class ReportFlow:
    """The reports of one attempt and the answers to them."""

    def __init__(
        self,
        alignment: Alignment,
        filler: RowFiller,
        journal: Journal,
        keeper: CheckpointKeeper,
        observers: Observers,
        decider: Decider,
        positions: DataPositions | None = None,
        ask_for_validation: AskForValidation | None = None,
    ) -> None:
        """`ask_for_validation` is called before a checkpoint is committed that is to be validated."""
        self.alignment = alignment
        self.to_ranks = Answers(alignment, keeper.newest.number if keeper.newest else None)
        self.problem: AttemptProblem | None = None
        self.last_times: dict[int, StepTimes] = {}
        """What each rank has measured last of its steps."""
        self._meetings = Meetings(alignment.world_size)
        self._pending: dict[int, PendingReport] = {}
        """Reports that wait for other ranks or for their checkpoint, by index."""
        self._plain_row: tuple[int, dict[str, Any]] = (0, {})
        """The newest row of rank 0 that waited for nothing: a checkpoint may still be added to it."""
        self._filler = filler
        self._journal = journal
        self._keeper = keeper
        self._observers = observers
        self._decider = decider
        self._positions = positions
        self._ask_for_validation = ask_for_validation
        self._stragglers = Stragglers(alignment.world_size)
        self._may_retire = False
        """A checkpoint was committed since the last answers."""

    # -- messages in ----------------------------------------------------------------------

    def received(self, rank: int, message: FromWorker, attachments: tuple[Attachment, ...]) -> None:
        """Take in one message of a rank."""
        if self.problem is not None:
            return
        if isinstance(message, Report):
            self._on_report(rank, message, attachments)
        elif isinstance(message, CheckpointReady):
            pending = self._pending_at(message.index)
            pending.in_memory = attachments[0] if attachments else pending.in_memory
            pending.checkpoints[rank] = message.checkpoint
            pending.of_all_ranks |= message.of_all_ranks
            self._stage(pending)
        elif isinstance(message, CheckpointFailed):
            self.problem = AttemptProblem(
                "storage", rank, f"the checkpoint of report {message.index}: {message.message}"
            )
        elif isinstance(message, Warned):
            if message.text not in self._observers.warnings:  # each attempt says it anew
                self._observers.warn(message.text)
        elif isinstance(message, Meeting):
            self.to_ranks.add(self._meetings.arrived(rank, message))
        else:
            self.alignment.finish(rank, message.reports)
            if self._positions is not None:
                self._positions.finish(rank)

    def failed(self, rank: int, *, ends_training: bool) -> None:
        """A rank has failed: it does not say any more where it is in its datasets."""
        if self._positions is not None:
            self._positions.finish(rank) if ends_training else self._positions.lose(rank)

    def _on_report(self, rank: int, report: Report, attachments: tuple[Attachment, ...]) -> None:
        self.alignment.received(rank, report)
        if report.times is not None:
            self.last_times[rank] = report.times
            if (slow := self._stragglers.measured(rank, report.times)) is not None:
                self._observers.warn(str(slow))
        if self._positions is not None:
            self._positions.note(rank, report.index, report.data, with_checkpoint=report.with_checkpoint)
        if rank != 0:
            self._write(rank, report)
        needs_all = bool(report.reduce) or (report.of_all_ranks and report.checkpoint is not None)
        gathers = needs_all or (report.of_all_ranks and report.checkpoint_follows)  # the latter waits for nobody
        has_checkpoint = report.checkpoint is not None or report.checkpoint_follows
        if rank == 0 and not has_checkpoint and not gathers:
            self._take_plain_row(report)
        elif rank == 0 or gathers:
            pending = self._pending_at(report.index)
            pending.of_all_ranks |= report.of_all_ranks
            if report.validation is not None:
                pending.validation = report.validation
            if report.checkpoint is not None:
                pending.checkpoints[rank] = report.checkpoint
                pending.in_memory = attachments[0] if attachments else pending.in_memory
            if gathers:
                pending.reports[rank] = report
            if not needs_all and rank == 0:
                self._take_row(pending, report)
            elif needs_all and len(pending.reports) == self.alignment.world_size:
                self._take_row(pending, pending.reports[0])
        if self._positions is not None:
            self._commit_staged()

    def _take_plain_row(self, report: Report) -> None:
        """Most rows are like this one: nothing has to be waited for."""
        self._write(0, report)
        row = self._filler.fill(report.index, report.metrics, report.stamp, report.elapsed)
        self._plain_row = (report.index, row)
        self._show(report.index, row)

    def _pending_at(self, index: int) -> PendingReport:
        pending = self._pending.get(index)
        if pending is None:
            pending = self._pending[index] = PendingReport(index)
        if self._plain_row[0] == index:
            pending.row, pending.is_shown = self._plain_row[1], True
        return pending

    def _take_row(self, pending: PendingReport, report: Report) -> None:
        """Rank 0's row of an index is complete: write it down. It is concluded with its checkpoint, if it has one."""
        metrics = report.metrics
        if report.reduce:
            try:
                pending.reduced = reduce_metrics(pending.reports)
            except MetricError as error:
                self.problem = AttemptProblem("exception", 0, str(error))
                return
            metrics = {**metrics, **pending.reduced}
        self._write(0, report, metrics if pending.reduced is not None else None)
        pending.row = self._filler.fill(report.index, metrics, report.stamp, report.elapsed)
        if report.checkpoint is None:
            pending.is_shown = True
            if report.checkpoint_follows:
                self.to_ranks.has_checkpoint()
            self._show(report.index, pending.row, None, pending.reduced)
        if report.checkpoint is None and not report.checkpoint_follows:
            self._conclude(pending)
            self._plain_row = (report.index, pending.row)
        else:
            self._stage(pending)

    def _write(self, rank: int, report: Report, reduced: dict[str, Any] | None = None) -> None:
        record = Row(
            attempt=self._keeper.attempt,
            index=report.index,
            rank=rank,
            stamp=report.stamp,
            elapsed=report.elapsed,
            metrics=report.metrics,
            reduced=reduced,
            times=report.times,
        )
        self._journal.append(record, finite=report.finite)

    # -- checkpoints ----------------------------------------------------------------------

    def _stage(self, pending: PendingReport) -> None:
        """Go on with a checkpoint once its row and all its parts are there."""
        needed = self.alignment.world_size if pending.of_all_ranks else 1
        if pending.row is not None and len(pending.checkpoints) >= needed:
            pending.state = ReportState.STAGED
            self._commit_staged()

    def _in_state(self, state: ReportState) -> list[PendingReport]:
        return sorted((each for each in self._pending.values() if each.state is state), key=_index)

    def _commit_staged(self) -> None:
        """Commit staged checkpoints, oldest first, as far as all ranks have said where they are in the data."""
        for pending in self._in_state(ReportState.STAGED):
            if self.problem is not None:
                return
            data = None
            if self._positions is not None:
                if not self._positions.complete(pending.index):
                    return
                for warning in self._positions.warnings(pending.index):
                    self._observers.warn(warning)
                data = self._positions.take(pending.index)
            assert pending.row is not None
            if pending.validation is not None and self._ask_for_validation is not None:
                self._ask_for_validation(pending.index, pending.checkpoints[0].number, pending.validation)
            staged, parts = pending.checkpoints[0], {rank: part for rank, part in pending.checkpoints.items() if rank}
            pending.commit = self._keeper.commit(staged, parts, pending.index, pending.row, data, pending.in_memory)
            pending.state = ReportState.COMMITTING

    @property
    def commits_under_way(self) -> bool:
        """Some checkpoint is staged and not committed yet."""
        return any(each.state in (ReportState.STAGED, ReportState.COMMITTING) for each in self._pending.values())

    @property
    def committing(self) -> bool:
        """Some checkpoint is on its way to the storage."""
        return any(each.state is ReportState.COMMITTING for each in self._pending.values())

    @property
    def has_committed(self) -> bool:
        """Such a checkpoint is stored, or could not be."""
        first = next(iter(self._in_state(ReportState.COMMITTING)), None)
        return first is not None and first.commit is not None and first.commit.done

    def conclude_commits(self) -> None:
        """Conclude the rows whose checkpoints have been stored meanwhile, in order."""
        if not self._pending:
            return
        self._commit_staged()
        for pending in self._in_state(ReportState.COMMITTING):
            assert pending.commit is not None
            assert pending.row is not None
            if not pending.commit.done or self.problem is not None:
                return
            try:
                pending.commit.check()
            except (StorageError, CheckpointError) as error:
                self.problem = AttemptProblem("storage", 0, str(error))
                return
            self._may_retire = True
            self._conclude(pending)
            if not pending.is_shown:
                self._show(pending.index, pending.row, pending.commit, pending.reduced)
            else:
                self._announce(pending.index, pending.commit)
                self.to_ranks.committed_in_background()

    # -- conclusions ----------------------------------------------------------------------

    def _conclude(self, pending: PendingReport) -> None:
        pending.state = ReportState.CONCLUDED
        del self._pending[pending.index]

    def _show(
        self,
        index: int,
        row: dict[str, Any],
        commit: Commit | None = None,
        reduced: dict[str, float] | None = None,
    ) -> None:
        """A row is complete, with the checkpoint that came with it: observers see it, and it is decided on."""
        self._observers.row(index, row)
        if commit is not None:
            self._announce(index, commit)
            self.to_ranks.has_checkpoint()
        undecided = self.to_ranks.stop_index is None
        decision = self._decider.after_row(index, row, commit is not None) if undecided else CONTINUE
        self.to_ranks.decide(index, decision, reduced)

    def _announce(self, index: int, commit: Commit) -> None:
        self._observers.checkpoint(index, commit.kept.number, self._keeper.reference(commit.kept))

    def take_decision(self) -> Decision:
        """What has been decided about the run since this was last called."""
        decision, self.to_ranks.decision = self.to_ranks.decision, CONTINUE
        return decision

    def find_mismatch(self) -> None:
        """Note it as the problem if ranks have reported unequally often."""
        if self.problem is not None:
            return
        missed = None
        if self._meetings.anyone_waits:
            missed = (
                self._meetings.disagreement() or self._meetings.left_alone(self.alignment.finished) or self._held_up()
            )
        if self.to_ranks.stop_index is not None:
            self.to_ranks.add(self._meetings.send_home() if missed is not None else [])
            return
        mismatch = self.alignment.mismatch()
        if mismatch is not None:
            counts = self.alignment.counts()
            self.problem = AttemptProblem("report_mismatch", counts.index(min(counts)), mismatch)
        elif missed is not None or (missed := self._left_out(self._pending.values())) is not None:
            self.problem = AttemptProblem("report_mismatch", *missed)

    def _left_out(self, reports: Iterable[PendingReport]) -> tuple[int, str] | None:
        gathering = (each for each in reports if 0 < len(each.reports) < self.alignment.world_size)
        found = (left_out(self.alignment, each.index, each.reports) for each in gathering)
        return next(filter(None, found), None)

    def _held_up(self) -> tuple[int, str] | None:
        """(rank, why) if reports and meetings wait for each other."""
        alignment = self.alignment
        if not alignment.waiting or self.commits_under_way or self.to_ranks.waits:
            return None
        running = [rank for rank in range(alignment.world_size) if rank not in alignment.finished]
        undecided = {rank: index for rank, index in alignment.waiting.items() if index > self.to_ranks.decided}
        return self._meetings.held_up(running, undecided)

    def settle(self) -> None:
        """The attempt is over. Rows whose checkpoints were not stored are in the journal: they are shown too."""
        self.conclude_commits()
        for pending in sorted(self._pending.values(), key=_index):
            if pending.row is not None and not pending.is_shown:
                self._observers.row(pending.index, pending.row)
        self._pending.clear()

    def excused_ranks(self) -> set[int]:
        """Ranks that make no progress through no fault of their own.

        They wait for the driver to store a checkpoint or to decide, or leave reporting to rank 0.
        """
        put_off = self.commits_under_way or self.to_ranks.waits
        excused = set(self.alignment.waiting) if put_off else set()
        excused.update(self._meetings.waiting)
        if self.alignment.others_may_be_silent:
            excused.update(range(1, self.alignment.world_size))
        return excused

    # -- answers out ----------------------------------------------------------------------

    def answers(self) -> list[tuple[int, ToWorker, tuple[Attachment, ...]]]:
        """What to send now, with attachments. Rows reach the journal's file before anybody is told that they did."""
        self.to_ranks.complete()
        self._journal.flush()
        newest = self._keeper.newest
        return self.to_ranks.take(newest.number if newest else None, self._keeper.newest_in_memory)

    def retire_soon(self) -> None:
        """Some checkpoint need not stay any longer: a validation has said how good it is."""
        self._may_retire = True

    def after_answers(self) -> None:
        """What can wait until the ranks have gone on: deleting old checkpoints."""
        if self._may_retire:
            self._may_retire = False
            self._keeper.retire(self.alignment.last_index)


def _index(pending: PendingReport) -> int:
    return pending.index
