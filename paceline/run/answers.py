"""What the ranks of one attempt are told, and when: one decision per report, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.air.attachment import Attachment
from paceline.run.alignment import Alignment
from paceline.run.decisions import CONTINUE, Continue, Decision, Restart, Stop, Wait
from paceline.run.messages import Acknowledged, Answer, Hold, ToWorker


class Answers:
    """Answers to reports, acknowledgements and the call to hold, collected until `take`.

    There is one decision per index, the same for all ranks.
    """

    def __init__(self, alignment: Alignment, newest_checkpoint: int | None) -> None:
        self.stop_index: int | None = None
        """The report after which every rank ends, once that is decided."""
        self.holding = False
        """Every report waits until all ranks have reached one that none has passed."""
        self.awaits_checkpoint = False
        """Every report waits for its decision: the one that brings the checkpoint of a preemption is the last."""
        self.ends_training = False
        """What was decided is a stop; after anything else, another attempt continues."""
        self.decided = alignment.start_index
        """The newest index whose row is decided on."""
        self.decision: Decision = CONTINUE
        """What the run has to act on."""
        self._alignment = alignment
        self._is_unwanted: Callable[[], bool] | None = None
        """Says, after a checkpoint, whether this group of workers shall be replaced by another one."""
        self._is_replaced = False
        """It shall: every rank ends at the first report that none has passed."""
        self._put_off: tuple[int, dict[str, float] | None] | None = None
        """The row whose answer is put off, and the values that go with the answer."""
        self._background_commits = 0
        self._known_checkpoints = [newest_checkpoint] * alignment.world_size
        """Which of the checkpoints that are in memory only each rank has."""
        self._outbox: list[tuple[int, ToWorker]] = []

    @property
    def stopping(self) -> bool:
        return self.holding or self.awaits_checkpoint or self.stop_index is not None

    @property
    def waits(self) -> bool:
        """Whether the answer to a row is put off."""
        return self._put_off is not None

    def decide(self, index: int, decision: Decision, reduced: dict[str, float] | None) -> None:
        """A row is concluded: answer the ranks that wait for that, unless the answer is to wait."""
        self.decided = index
        if isinstance(decision, Wait) and decision.keeps_workers:
            if not self.holding:  # a stop is pending otherwise: it is stronger
                self._put_off, self.decision = (index, reduced), decision
        elif not isinstance(decision, Continue):
            self.stop_index, self.decision = index, decision
            self.ends_training = isinstance(decision, Stop)
        self.answer_waiting(reduced)

    def release(self, *, stop: bool) -> None:
        """Answer the row on which it was decided to wait; does nothing if none waits."""
        if self._put_off is None:
            return
        (index, reduced), self._put_off = self._put_off, None
        if stop:
            self.stop_index, self.ends_training = index, True
        self.answer_waiting(reduced)

    def hold(self, *, ends_training: bool = True) -> None:
        """Prepare a graceful stop: from now on every report waits for its answer."""
        self.holding, self.ends_training = True, ends_training
        self._is_unwanted, self._is_replaced = None, False  # what is asked for here is stronger
        self._send_hold(on=True)

    def await_checkpoint(self) -> None:
        """Ranks that were to stop at their next report are about to save: they stop when they have."""
        self.holding, self.awaits_checkpoint = False, True
        self.answer_waiting()

    def replace_at_checkpoint(self, is_unwanted: Callable[[], bool]) -> None:
        """Until the next checkpoint, every report waits for its answer. If `is_unwanted` says so then, all ranks end,
        and others start."""
        if self.stopping:
            return
        if self._is_unwanted is None:
            self._send_hold(on=True)
        self._is_unwanted = is_unwanted

    def has_checkpoint(self) -> None:
        """The row that is decided on next brings a checkpoint."""
        if self._is_unwanted is None or self._is_replaced or self.stopping:
            return
        if self._is_unwanted():
            self._is_replaced = True
        else:
            self._is_unwanted = None
            self._send_hold(on=False)

    def _send_hold(self, *, on: bool) -> None:
        self.add((rank, Hold(on)) for rank in range(self._alignment.world_size))

    def answer_waiting(self, reduced: dict[str, float] | None = None) -> None:
        """Answer every rank that waits on an index that is decided."""
        self._alignment.newly_waiting.clear()
        self._answer(list(self._alignment.waiting), reduced)

    def _answer(self, ranks: Iterable[int], reduced: dict[str, float] | None) -> None:
        alignment = self._alignment
        for rank in ranks:
            index = alignment.waiting[rank]
            stop = self.stop_index is not None and index >= self.stop_index
            # After the last report nothing is decided any more: ranks that are ahead of it stop where they are.
            if not stop and (index > self.decided or (self._put_off is not None and index >= self._put_off[0])):
                continue
            is_last = self.holding or self._is_replaced
            if is_last and self.stop_index is None and index > alignment.highest_free:
                # All ranks stop after the same report: the first one that no rank has passed yet.
                if not alignment.everyone_waits_at(index):
                    continue
                self.stop_index = index
                if self._is_replaced:
                    self.decision = Restart()
            stop = self.stop_index is not None and index >= self.stop_index
            given = reduced if index == self.decided else None
            self._outbox.append((rank, Answer(index, stop, given, stop and not self.ends_training)))
            alignment.answered(rank, stop)

    def committed_in_background(self) -> None:
        """Ranks that have several checkpoints under way wait for this."""
        self._background_commits += 1
        for rank in range(self._alignment.world_size):
            self._acknowledge(rank)

    def _acknowledge(self, rank: int) -> None:
        self._outbox.append((rank, Acknowledged(self._alignment.last_index[rank], self._background_commits)))

    def add(self, messages: Iterable[tuple[int, ToWorker]]) -> None:
        self._outbox += messages

    def complete(self) -> None:
        """Add what is due by now, before they are taken."""
        alignment = self._alignment
        if self.holding or self._is_replaced:  # who may go on depends on where the others are
            self.answer_waiting()
        elif alignment.newly_waiting:  # the others wait for a row that is not decided on: they get their answer then
            ranks, alignment.newly_waiting = alignment.newly_waiting, []
            self._answer([rank for rank in ranks if rank in alignment.waiting], None)
        if alignment.due:
            ranks, alignment.due = alignment.due, []
            for rank in dict.fromkeys(ranks):
                self._acknowledge(rank)

    def take(
        self, newest: int | None, in_memory: Attachment | None
    ) -> list[tuple[int, ToWorker, tuple[Attachment, ...]]]:
        """What to send now. Answers bring the newest checkpoint, where it is in memory and a rank does not have it."""
        outbox, self._outbox = self._outbox, []
        if in_memory is None:
            return [(rank, message, ()) for rank, message in outbox]
        return [(rank, message, self._attached(rank, message, newest, in_memory)) for rank, message in outbox]

    def _attached(
        self, rank: int, message: ToWorker, newest: int | None, in_memory: Attachment
    ) -> tuple[Attachment, ...]:
        if rank == 0 or not isinstance(message, Answer) or self._known_checkpoints[rank] == newest:
            return ()
        self._known_checkpoints[rank] = newest
        return (in_memory,)
