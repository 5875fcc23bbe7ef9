"""The driver's half of report(), for one attempt: from a rank's message to the answers.

`received` takes messages in, rank 0's row is written to the journal (`_decide`), its
checkpoint committed, and then the row is concluded (`_conclude`): observers see it and it
is decided, once for all ranks, whether the run goes on. `answers` hands out what is to be
sent, after the journal's rows have reached their file.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.attachment import Attachment
from paceline.air.errors import CheckpointError, FailureKind, MetricError, StorageError
from paceline.run.alignment import Alignment, reduce_metrics
from paceline.run.checkpoint_keeper import CheckpointKeeper, Commit
from paceline.run.decisions import CONTINUE, Continue, Decider, Decision, Wait
from paceline.run.meetings import Meetings
from paceline.run.messages import (
    Acknowledged,
    Answer,
    CheckpointFailed,
    CheckpointReady,
    FromWorker,
    Hold,
    Meeting,
    Report,
    StagedCheckpoint,
    ToWorker,
    Warned,
)
from paceline.run.observers import Observers
from paceline.run.records import Row
from paceline.run.rows import RowFiller
from paceline.storage.journal import Journal

if TYPE_CHECKING:
    from paceline.run.data_positions import DataPositions

_ACKNOWLEDGE_EVERY = 250
"""Rows per acknowledgement; a rank may run 1,000 rows ahead of the last one."""


@dataclass(frozen=True)
class Problem:
    """Something that ends the attempt, found by the driver itself."""

    kind: FailureKind
    rank: int
    message: str
    details: str = ""


@dataclass(frozen=True)
class _PendingCommit:
    commit: Commit
    conclude: Callable[[], None]


class ReportFlow:
    """The reports of one attempt and the answers to them."""

    def __init__(
        self,
        world_size: int,
        start_index: int,
        filler: RowFiller,
        journal: Journal,
        keeper: CheckpointKeeper,
        observers: Observers,
        decider: Decider,
        positions: DataPositions | None = None,
    ) -> None:
        self.alignment = Alignment(world_size, start_index)
        self._meetings = Meetings(world_size)
        self.rank_metrics: dict[int, dict[str, Any]] = {}
        self.stop_index: int | None = None
        """The report after which every rank ends, once that is decided."""
        self.holding = False
        self.problem: Problem | None = None
        self._waits_at: tuple[int, dict[str, float] | None] | None = None
        """The row whose answer is put off, and the values that go with the answer."""
        self._filler = filler
        self._journal = journal
        self._keeper = keeper
        self._observers = observers
        self._decider = decider
        self._decision: Decision = CONTINUE
        self._positions = positions
        self._waiting_for_positions: dict[int, Callable[[], None]] = {}
        """Reports whose checkpoint is staged, and how to commit it once all ranks' places in the data are known."""
        self._told_missing: set[int] = set()
        self._decided = start_index
        self._outbox: list[tuple[int, ToWorker]] = []
        self._commits: deque[_PendingCommit] = deque()
        self._undecided_rows: dict[int, dict[str, Any]] = {}
        """Rows that are in the journal but not concluded: their checkpoints are being stored."""
        self._rows_awaiting_checkpoint: dict[int, dict[str, Any]] = {}
        self._last_row: tuple[int, dict[str, Any]] | None = None
        """The newest row without a checkpoint and its index: one may still be added."""
        self._ready: dict[int, dict[int, StagedCheckpoint]] = {}
        """Background checkpoints by index and rank, until those of all ranks are there."""
        newest = keeper.newest
        self._in_memory: dict[int, Attachment] = {}
        """By index, what rank 0 sent of a checkpoint that is in memory only."""
        self._memory_sent = dict.fromkeys(range(world_size), newest.number if newest else None)
        """Which of the checkpoints that are in memory only each rank has."""
        self._background_commits = 0
        self._acknowledged = [start_index] * world_size
        self._committed_since_answers = False

    # -- messages in ----------------------------------------------------------------------

    def received(self, rank: int, message: FromWorker, attachments: tuple[Attachment, ...]) -> None:
        """Take in one message of a rank."""
        if self.problem is not None:
            return
        if isinstance(message, Report):
            self._on_report(rank, message, attachments)
        elif isinstance(message, CheckpointReady):
            if attachments:
                self._in_memory[message.index] = attachments[0]
            self._ready.setdefault(message.index, {})[rank] = message.checkpoint
            if self._last_row is not None and self._last_row[0] == message.index:
                self._rows_awaiting_checkpoint[message.index] = self._last_row[1]
            self._commit_if_ready(message.index)
        elif isinstance(message, CheckpointFailed):
            self.problem = Problem("storage", rank, f"the checkpoint of report {message.index}: {message.message}")
        elif isinstance(message, Warned):
            self._observers.warn(message.text)
        elif isinstance(message, Meeting):
            self._outbox += self._meetings.arrived(rank, message)
        else:
            self.alignment.finish(rank, message.reports)
            if self._positions is not None:
                self._positions.finish(rank)

    def _on_report(self, rank: int, report: Report, attachments: tuple[Attachment, ...]) -> None:
        self.alignment.received(rank, report)
        self.rank_metrics[rank] = report.metrics
        if self._positions is not None:
            self._positions.note(rank, report.index, report.data, with_checkpoint=report.with_checkpoint)
        if rank != 0:
            self._journal_row(rank, report)
        if attachments:
            self._in_memory[report.index] = attachments[0]
        keeps_all = self._keeper.config.keep_all_ranks
        if report.reduce or (keeps_all and report.checkpoint is not None):
            reports = self.alignment.gather(rank, report)
            if reports is not None:
                self._decide(reports[0], reports)
            return
        if keeps_all and report.checkpoint_follows:
            self.alignment.gather(rank, report)  # nobody waits for it here; a rank that brings none is noticed
        if rank == 0:
            self._decide(report, {})
        self._commit_what_is_complete()

    def _decide(self, report: Report, gathered: Mapping[int, Report]) -> None:
        """Rank 0's row of an index is complete: write it down, commit its checkpoint, then conclude."""
        metrics, reduced = report.metrics, None
        if report.reduce:
            try:
                reduced = reduce_metrics(gathered)
            except MetricError as error:
                self._fail("exception", str(error))
                return
            metrics = {**metrics, **reduced}
        self._journal_row(0, report, None if reduced is None else metrics)
        row = self._filler.fill(report.index, metrics, report.stamp, report.elapsed)
        self._last_row = None if report.with_checkpoint else (report.index, row)
        if report.checkpoint_follows:
            self._rows_awaiting_checkpoint[report.index] = row
        if report.checkpoint is None:
            self._conclude(report.index, row, reduced, None)
            self._commit_if_ready(report.index)
            return
        self._undecided_rows[report.index] = row
        parts = {rank: each.checkpoint for rank, each in gathered.items() if rank and each.checkpoint}
        staged = report.checkpoint

        def commit_now() -> None:
            commit = self._commit(staged, parts, report.index, row)
            conclude = functools.partial(self._conclude, report.index, row, reduced, commit)
            self._commits.append(_PendingCommit(commit, conclude))

        self._commit_once_complete(report.index, commit_now)

    def _commit_if_ready(self, index: int) -> None:
        """Commit a checkpoint that was written in the background, once its row and all its parts are there."""
        ready = self._ready.get(index, {})
        needed = self.alignment.world_size if self._keeper.config.keep_all_ranks else 1
        if len(ready) < needed or index not in self._rows_awaiting_checkpoint:
            return
        parts = self._ready.pop(index)
        staged = parts.pop(0)
        row = self._rows_awaiting_checkpoint.pop(index)

        def commit_now() -> None:
            commit = self._commit(staged, parts, index, row)
            self._commits.append(_PendingCommit(commit, functools.partial(self._conclude_background, index, commit)))

        self._commit_once_complete(index, commit_now)

    def _conclude_background(self, index: int, commit: Commit) -> None:
        self._background_commits += 1
        self._announce(index, commit)
        for each in range(self.alignment.world_size):
            self._acknowledge(each)

    def _commit_once_complete(self, index: int, commit_now: Callable[[], None]) -> None:
        if self._positions is None:
            commit_now()
            return
        self._waiting_for_positions[index] = commit_now
        self._commit_what_is_complete()

    def _commit_what_is_complete(self) -> None:
        """Commit staged checkpoints, oldest first, as far as all ranks have told where they are in the data."""
        while self._waiting_for_positions and self._positions is not None and self.problem is None:
            index = min(self._waiting_for_positions)
            if not self._positions.complete(index):
                return
            missing = self._positions.missing(index)
            if not self._told_missing.issuperset(missing):  # once, not for each checkpoint
                self._told_missing.update(missing)
                self._observers.warn(
                    f"Rank(s) {', '.join(map(str, missing))} did not reach report {index}, which has a checkpoint: "
                    "their place in the datasets is taken to be that of rank 0. Call report() on every rank."
                )
            self._waiting_for_positions.pop(index)()

    def _commit(
        self,
        staged: StagedCheckpoint,
        parts: Mapping[int, StagedCheckpoint],
        index: int,
        row: dict[str, Any],
    ) -> Commit:
        data = None if self._positions is None else self._positions.take(index)
        if self._keeper.in_memory:
            return self._keeper.commit_in_memory(staged, self._in_memory.pop(index), index, row, data)
        return self._keeper.commit(staged, parts, index, row, data)

    def _journal_row(self, rank: int, report: Report, reduced: dict[str, Any] | None = None) -> None:
        record = Row(
            attempt=self._keeper.attempt,
            index=report.index,
            rank=rank,
            stamp=report.stamp,
            elapsed=report.elapsed,
            metrics=report.metrics,
            reduced=reduced,
        )
        self._journal.append(record, finite=report.finite)

    # -- conclusions ----------------------------------------------------------------------

    @property
    def commits_under_way(self) -> bool:
        """Some checkpoint is staged and not committed yet."""
        return bool(self._commits or self._waiting_for_positions)

    @property
    def committing(self) -> bool:
        """Some checkpoint is on its way to the storage."""
        return bool(self._commits)

    @property
    def has_committed(self) -> bool:
        """Such a checkpoint is stored, or could not be."""
        return bool(self._commits) and self._commits[0].commit.done

    def conclude_commits(self) -> None:
        """Conclude the rows whose checkpoints have been stored meanwhile, in order."""
        self._commit_what_is_complete()
        while self._commits and self._commits[0].commit.done and self.problem is None:
            pending = self._commits.popleft()
            try:
                pending.commit.check()
            except (StorageError, CheckpointError) as error:
                self._fail("storage", str(error))
            else:
                pending.conclude()

    def _conclude(
        self, index: int, row: dict[str, Any], reduced: dict[str, float] | None, commit: Commit | None
    ) -> None:
        self._undecided_rows.pop(index, None)
        self._observers.row(index, row)
        if commit is not None:
            self._announce(index, commit)
        self._decided = index
        if self.stop_index is None:
            self._act_on(self._decider.after_row(index, row, commit is not None), index, reduced)
        self._answer_waiting(reduced)

    def _act_on(self, decision: Decision, index: int, reduced: dict[str, float] | None) -> None:
        if isinstance(decision, Continue):
            return
        if not isinstance(decision, Wait) or not decision.keeps_workers:
            self.stop_index = index
        elif self.holding:
            return  # a stop is pending: nobody would answer
        else:
            self._waits_at = (index, reduced)
        self._decision = decision

    def take_decision(self) -> Decision:
        """What has been decided about the run since this was last called."""
        decision, self._decision = self._decision, CONTINUE
        return decision

    @property
    def waits(self) -> bool:
        """Whether the answer to a row is put off."""
        return self._waits_at is not None

    def release(self, *, stop: bool) -> None:
        """Answer the row on which it was decided to wait; does nothing if none waits."""
        if self._waits_at is None:
            return
        (index, reduced), self._waits_at = self._waits_at, None
        if stop:
            self.stop_index = index
        self._answer_waiting(reduced)

    def _announce(self, index: int, commit: Commit) -> None:
        self._committed_since_answers = True
        self._observers.checkpoint(index, commit.kept.number, self._keeper.reference(commit.kept))

    def _fail(self, kind: FailureKind, message: str) -> None:
        self.problem = Problem(kind, 0, message)

    def find_mismatch(self) -> None:
        """Note it as the problem if ranks have reported unequally often."""
        if self.problem is not None:
            return
        missed = self._meetings.disagreement() or self._meetings.left_alone(self.alignment.finished) or self._held_up()
        if self.stop_index is not None:
            self._outbox += self._meetings.send_home() if missed is not None else []
            return
        mismatch, left_out = self.alignment.mismatch(), missed or self.alignment.left_out()
        if mismatch is not None:
            counts = self.alignment.counts()
            self.problem = Problem("report_mismatch", counts.index(min(counts)), mismatch)
        elif left_out is not None:
            self.problem = Problem("report_mismatch", *left_out)

    def _held_up(self) -> tuple[int, str] | None:
        """(rank, why) if reports and meetings wait for each other."""
        if not self._meetings.waiting or self.commits_under_way or self.waits:
            return None
        alignment = self.alignment
        running = [rank for rank in range(alignment.world_size) if rank not in alignment.finished]
        undecided = {rank: index for rank, index in alignment.waiting.items() if index > self._decided}
        return self._meetings.held_up(running, undecided)

    def settle(self) -> None:
        """The attempt is over. Rows whose checkpoints were not stored are in the journal: they are shown too."""
        self.conclude_commits()
        for index, row in sorted(self._undecided_rows.items()):
            self._observers.row(index, row)
        self._undecided_rows.clear()
        self._in_memory.clear()

    def excused_ranks(self) -> set[int]:
        """Ranks that make no progress through no fault of their own.

        They wait for the driver to store a checkpoint or to decide, or leave reporting to rank 0.
        """
        put_off = self.commits_under_way or self.waits
        excused = set(self.alignment.waiting) if put_off else set()
        excused.update(self._meetings.waiting)
        if self.alignment.only_rank_zero_reported:
            excused.update(range(1, self.alignment.world_size))
        return excused

    # -- answers out ----------------------------------------------------------------------

    def hold(self) -> None:
        """Prepare a graceful stop: from now on every report waits for its answer."""
        self.holding = True
        self._outbox += [(rank, Hold()) for rank in range(self.alignment.world_size)]

    def answers(self) -> list[tuple[int, ToWorker, tuple[Attachment, ...]]]:
        """What to send now, with attachments. Rows reach the journal's file before anybody is told that they did."""
        self._answer_waiting()
        for rank, last in enumerate(self.alignment.last_index):
            if last - self._acknowledged[rank] >= _ACKNOWLEDGE_EVERY:
                self._acknowledge(rank)
        self._journal.flush()
        outbox, self._outbox = self._outbox, []
        return [(rank, message, self._attached(rank, message)) for rank, message in outbox]

    def _attached(self, rank: int, message: ToWorker) -> tuple[Attachment, ...]:
        """The newest checkpoint, where it is in memory only and the rank does not have it yet."""
        newest, attachment = self._keeper.newest, self._keeper.newest_in_memory
        if rank == 0 or newest is None or attachment is None or not isinstance(message, Answer):
            return ()
        if self._memory_sent[rank] == newest.number:
            return ()
        self._memory_sent[rank] = newest.number
        return (attachment,)

    def after_answers(self) -> None:
        """What can wait until the ranks have gone on: deleting old checkpoints."""
        if self._committed_since_answers:
            self._committed_since_answers = False
            self._keeper.retire(self.alignment.last_index)

    def _acknowledge(self, rank: int) -> None:
        self._acknowledged[rank] = self.alignment.last_index[rank]
        self._outbox.append((rank, Acknowledged(self._acknowledged[rank], self._background_commits)))

    def _answer_waiting(self, reduced: dict[str, float] | None = None) -> None:
        """Answer every rank that waits on an index that is decided."""
        alignment = self.alignment
        for rank, index in list(alignment.waiting.items()):
            if index > self._decided or (self._waits_at is not None and index >= self._waits_at[0]):
                continue
            if self.holding and self.stop_index is None and index > alignment.highest_free:
                # All ranks stop after the same report: the first one that no rank has passed yet.
                if not alignment.everyone_waits_at(index):
                    continue
                self.stop_index = index
            stop = self.stop_index is not None and index >= self.stop_index
            self._outbox.append((rank, Answer(index, stop, reduced if index == self._decided else None)))
            alignment.answered(rank, stop)
