"""The worker's half of a commit: a checkpoint is captured and delivered before, or after, its report is sent.

In the foreground the content is safe when report() returns, so a directory may be reused or removed. In the
background (`async_save`) the directory is taken over by a rename, and a thread delivers it. Where the content goes
is the target's business (rank_target.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.attachment import Attachment
from paceline.air.background_pool import BackgroundPool
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.metrics import nested_get
from paceline.run.messages import (
    MOST_IN_FLIGHT,
    CheckpointFailed,
    CheckpointReady,
    SessionSetup,
    StagedCheckpoint,
    encode,
)
from paceline.run.rank_target import RankTarget
from paceline.storage.run_dir import MANIFEST_NAME

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.engine.base import WorkerChannel


_THE_NEWEST_THERE_IS = -1

Staged = tuple[StagedCheckpoint | None, bool, tuple[Attachment, ...]]
"""(what the report carries, whether it follows later, attachments of the report)"""


class CheckpointStager:
    """Stages the checkpoints that one rank reports."""

    def __init__(
        self,
        setup: SessionSetup,
        channel: WorkerChannel,
        target: RankTarget,
        began: float,
        loader_epochs: Callable[[], list[int]] = list,
    ) -> None:
        self._setup = setup
        self._channel = channel
        self._target = target
        self._began = began
        """When the session did, by the monotonic clock."""
        self._loader_epochs = loader_epochs
        """Where the loop is in its prepared DataLoaders."""
        self._numbers: list[int] = []
        """Of the checkpoints that this rank has reported in this attempt."""
        self._stages = setup.world_rank == 0 or setup.keep_all_ranks
        self._saves_in_background = setup.async_save and target.saves_in_background
        self._uncommitted: tuple[Attachment, ...] = ()
        """What the report brought that was sent last."""
        self._background: BackgroundPool | None = None
        self._deliveries: list[Future[None]] = []
        self._handed_over = 0
        self._committed = 0
        self._newest: tuple[int | None, type[Checkpoint] | None] = (None, None)
        """The number and the class of the newest checkpoint that this rank knows to be committed."""

    def stage(
        self, checkpoint: Checkpoint, index: int, metrics: Mapping[str, Any], wait_for_message: Callable[[], None]
    ) -> Staged:
        """Capture the checkpoint of report `index`. Ranks whose files are not kept only count along."""
        if checkpoint.part is not None and not self._target.holds_files:
            raise SessionMisuseError(
                "report(checkpoint=...) got a sharded checkpoint, which consists of the files of all ranks, but "
                "CheckpointConfig(num_to_keep=0) writes none. Set num_to_keep to 1 or more."
            )
        number = self._number_at(index)
        facts = self._facts(checkpoint, number, index, metrics)
        if not self._stages and checkpoint.part is None:
            staged: Staged = None, self._saves_in_background, ()
            self._handed_over += self._saves_in_background
        elif self._saves_in_background:
            # If one of them cannot be stored the driver ends this attempt: nobody waits here for ever.
            while self._handed_over - self._committed >= MOST_IN_FLIGHT:
                wait_for_message()
            self._stage_in_background(checkpoint, number, index, facts)
            staged = None, True, ()
        else:
            capture = self._target.capture(checkpoint, number, self._report_facts(number, index))
            delivered, self._uncommitted = capture.deliver(number, facts)
            staged = delivered, False, self._uncommitted
        self._numbers.append(number)  # not before: a checkpoint that was refused has no number
        return staged

    def is_of_all_ranks(self, checkpoint: Checkpoint) -> bool:
        """The driver puts the parts of all ranks together."""
        return self._setup.keep_all_ranks or checkpoint.part is not None

    def _number_at(self, index: int) -> int:
        """All ranks know the directory's name without talking to each other."""
        if self._setup.number_offset is not None:
            return self._setup.number_offset + index
        return self._setup.next_number + len(self._numbers)

    def _facts(self, checkpoint: Checkpoint, number: int, index: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What the manifest says about it."""
        return {
            "number": number,
            "iteration": index,
            "attempt": self._setup.attempt,
            "world_size": self._setup.world_size,
            "score": self._score_in(checkpoint),
            "metrics": dict(metrics),
            "created": self._drivers_time(),
            "elapsed": time.monotonic() - self._began,
        }

    def _report_facts(self, number: int, index: int) -> dict[str, Any]:
        facts = {"timestamp": int(self._drivers_time()), "number": number, "iteration": index}
        epochs = self._loader_epochs()
        return {**facts, "loader_epochs": epochs} if epochs else facts

    def _drivers_time(self) -> float:
        return time.time() + self._setup.wall_offset_s

    def _score_in(self, checkpoint: Checkpoint) -> float | None:
        key = self._setup.score_attribute
        value = checkpoint.peek(key) if key else None  # never by unpickling
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _stage_in_background(self, checkpoint: Checkpoint, number: int, index: int, facts: dict[str, Any]) -> None:
        if self._background is None:
            self._background = BackgroundPool("paceline-checkpoint-writer")
        self._raise_if_failed()
        report = self._report_facts(number, index)
        taken = self._take_over(checkpoint, number) or checkpoint.snapshot()
        # A dict must be captured now; only delivering it can wait.
        captured = None if taken is not None else self._target.capture(checkpoint, number, report)
        of_all_ranks = self.is_of_all_ranks(checkpoint)

        def deliver() -> None:
            self._raise_if_failed()  # then nothing is delivered any more
            try:
                capture = captured or self._target.capture(taken or checkpoint, number, report, move=True)
                staged, attachments = capture.deliver(number, facts)
            except Exception as error:
                self._channel.send(encode(CheckpointFailed(index=index, message=f"{type(error).__name__}: {error}")))
                raise
            self._channel.send(encode(CheckpointReady(index, staged, of_all_ranks)), attachments)

        self._handed_over += 1
        unfinished = [delivery for delivery in self._deliveries if not delivery.done()]
        self._deliveries = [*unfinished, self._background.submit(deliver)]

    def _raise_if_failed(self) -> None:
        """Raise what went wrong in the background."""
        for delivery in self._deliveries:
            if delivery.done():
                delivery.result()

    def _take_over(self, checkpoint: Checkpoint, number: int) -> Checkpoint | None:
        """The user's directory under a name of ours; None if that cannot or must not be done.

        A checkpoint that a run has committed, or that this one started from, is somebody's: it is copied.
        """
        if checkpoint.kind != "local_path":
            return None
        source = Path(str(checkpoint.path))
        if (source / MANIFEST_NAME).exists() or os.fsencode(source) == self._setup.resume_path:
            return None
        path = self._target.take_over(source, number)
        if path is None:
            return None
        taken = type(checkpoint).from_directory(str(path))
        return taken if checkpoint._preprocessor is None else taken.with_preprocessor(checkpoint._preprocessor)

    def committed(self, checkpoint: Checkpoint) -> None:
        """The checkpoint staged last is committed."""
        self._newest = (self._numbers[-1], type(checkpoint))
        for attachment in self._uncommitted:
            self._target.hold(attachment)
        self._uncommitted = ()

    def received(self, attachment: Attachment) -> None:
        """The run's newest checkpoint, which is in memory only: what the driver sent of it."""
        self._target.hold(attachment)

    def acknowledged(self, checkpoints: int) -> None:
        """The driver has committed that many background checkpoints; ranks that stage none hear of them too."""
        if checkpoints > self._committed:
            self._committed = checkpoints
            # A rank that lags behind sees no further than it has reported itself: what lies ahead of
            # it may be deleted while it is being read.
            self._newest = (self._numbers[:checkpoints][-1] if self._numbers else _THE_NEWEST_THERE_IS, None)

    def newest_committed(self) -> Checkpoint | None:
        """The newest checkpoint that this rank knows to be committed, or a newer one.

        Looked up only when it is asked for: a rank that lags behind may find that its own
        has been deleted in favour of newer ones.
        """
        from paceline.air.checkpoint import Checkpoint

        number, kind = self._newest
        return self._target.find(number, kind or Checkpoint)

    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """What is committed and kept, oldest first, with the rows."""
        return self._target.kept()

    def close(self) -> None:
        """Wait until everything that was handed over is delivered and announced."""
        if self._background is not None:
            self._background.close()
            self._raise_if_failed()
        self._target.close()


def check_checkpoint(checkpoint: Checkpoint, plain: Mapping[str, Any], score_attribute: str | None) -> None:
    """Before anything is sent: it is one, and can be ranked."""
    from paceline.air.checkpoint import Checkpoint

    if not isinstance(checkpoint, Checkpoint):
        raise SessionMisuseError(
            f"report(checkpoint=...) takes a Checkpoint, not {type(checkpoint).__name__}. Use "
            "Checkpoint.from_dict(...) or Checkpoint.from_directory(...)."
        )
    value = nested_get(plain, score_attribute) if score_attribute else None
    if value is not None and not isinstance(value, int | float):
        raise MetricError(
            f"checkpoint_score_attribute {score_attribute!r} must be a number to rank checkpoints by, but it was "
            f"reported as {value!r}."
        )
