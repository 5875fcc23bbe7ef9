"""The worker's half of a commit: write, hash and sync a checkpoint before its report is sent.

Three ways: in the foreground (the content is safe when report() returns, so a directory
may be reused or removed), in the background (the directory is taken over by rename and
finished by a thread), or into memory (nothing is written to disk).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.attachment import Attachment
from paceline.run.messages import CheckpointFailed, CheckpointReady, SessionSetup, StagedCheckpoint, encode
from paceline.storage.run_dir import MANIFEST_NAME, RunDir
from paceline.storage.stager import Stager

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.engine.base import WorkerChannel

_MOST_IN_FLIGHT = 2
"""Background checkpoints that may wait to be committed before report() waits for one of them."""

_THE_NEWEST_THERE_IS = -1

Staged = tuple[StagedCheckpoint | None, bool, tuple[Attachment, ...]]
"""(what the report carries, whether it follows later, attachments of the report)"""


class CheckpointStager:
    """Stages the checkpoints that one rank reports."""

    def __init__(self, setup: SessionSetup, channel: WorkerChannel) -> None:
        self._setup = setup
        self._channel = channel
        self._run_dir = RunDir(Path(os.fsdecode(setup.trial_dir)))
        self._began = time.monotonic()
        self._numbers: list[int] = []
        """Of the checkpoints that this rank has reported in this attempt."""
        self._stages = setup.world_rank == 0 or setup.keep_all_ranks
        self._in_memory: Attachment | None = None
        self._background: _BackgroundWriter | None = None
        self._handed_over = 0
        self._committed = 0
        self._newest: tuple[int, type[Checkpoint]] | Checkpoint | None = None

    def stage(
        self, checkpoint: Checkpoint, index: int, metrics: Mapping[str, Any], wait_for_message: Callable[[], None]
    ) -> Staged:
        """Capture the checkpoint of report `index`. Ranks whose files are not kept only count along."""
        number = self._number_at(index)
        staged = self._staged(checkpoint, number, index, metrics, wait_for_message)
        self._numbers.append(number)  # not before: a checkpoint that was refused has no number
        return staged

    def _number_at(self, index: int) -> int:
        """All ranks know the directory's name without talking to each other."""
        if self._setup.number_offset is not None:
            return self._setup.number_offset + index
        return self._setup.next_number + len(self._numbers)

    def _staged(
        self,
        checkpoint: Checkpoint,
        number: int,
        index: int,
        metrics: Mapping[str, Any],
        wait_for_message: Callable[[], None],
    ) -> Staged:
        if not self._stages:
            return None, self._setup.async_save and not self._setup.checkpoints_in_memory, ()
        if self._setup.checkpoints_in_memory:
            return self._stage_in_memory(checkpoint, number, index)
        if self._setup.async_save:
            # If one of them cannot be stored the driver ends this attempt: nobody waits here for ever.
            while self._handed_over - self._committed >= _MOST_IN_FLIGHT:
                wait_for_message()
            return self._stage_in_background(checkpoint, number, index, metrics)
        with self._new_stager(number) as stager:
            checkpoint.write_files(stager, report=_report_facts(number, index))
            return self._finish(stager, checkpoint, number, index, metrics), False, ()

    def _new_stager(self, number: int) -> Stager:
        return Stager(self._run_dir.staging(number, self._setup.attempt))

    def _finish(
        self, stager: Stager, checkpoint: Checkpoint, number: int, index: int, metrics: Mapping[str, Any]
    ) -> StagedCheckpoint:
        score = self._score_in(checkpoint)
        manifest = stager.finish(
            {
                "number": number,
                "iteration": index,
                "attempt": self._setup.attempt,
                "world_size": self._setup.world_size,
                "score": score,
                "metrics": dict(metrics),
                "created": time.time(),
                "elapsed": time.monotonic() - self._began,
            }
        )
        return StagedCheckpoint(path=os.fsencode(stager.directory), number=number, size=manifest.size, score=score)

    def _score_in(self, checkpoint: Checkpoint) -> float | None:
        key = self._setup.score_attribute
        value = checkpoint.peek(key) if key else None  # never by unpickling
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _stage_in_memory(self, checkpoint: Checkpoint, number: int, index: int) -> Staged:
        self._in_memory = attachment = packed_in_memory(checkpoint, _report_facts(number, index))
        staged = StagedCheckpoint(path=b"", number=number, size=attachment.size, score=self._score_in(checkpoint))
        return staged, False, (attachment,)

    def _stage_in_background(
        self, checkpoint: Checkpoint, number: int, index: int, metrics: Mapping[str, Any]
    ) -> Staged:
        if self._background is None:
            self._background = _BackgroundWriter()
        self._background.check()
        facts = _report_facts(number, index)
        taken = self._take_over(checkpoint, number)
        stager: Stager | None = None
        if taken is None:
            # A dict must be captured now; only syncing it can wait.
            stager = self._new_stager(number)
            try:
                checkpoint.write_files(stager, report=facts)
            except BaseException:
                stager.abort()
                raise

        def finish() -> None:
            try:
                with stager or self._new_stager(number) as target:
                    if taken is not None:
                        taken.write_files(target, report=facts, move=True)
                    staged = self._finish(target, checkpoint, number, index, metrics)
            except Exception as error:
                self._channel.send(encode(CheckpointFailed(index=index, message=f"{type(error).__name__}: {error}")))
                raise
            self._channel.send(encode(CheckpointReady(index=index, checkpoint=staged)))

        self._handed_over += 1
        self._background.submit(finish)
        return None, True, ()

    def _take_over(self, checkpoint: Checkpoint, number: int) -> Checkpoint | None:
        """The user's directory under a name of ours, by one rename; None if that cannot or must not be done.

        A checkpoint that a run has committed, or that this one started from, is somebody's: it is copied.
        """
        if checkpoint.kind != "local_path":
            return None
        source = Path(str(checkpoint.path))
        if (source / MANIFEST_NAME).exists() or os.fsencode(source) == self._setup.resume_path:
            return None
        path = self._run_dir.staging(number, self._setup.attempt)
        try:
            os.rename(source, path)
        except OSError:  # another file system: it is copied instead
            return None
        taken = type(checkpoint).from_directory(str(path))
        return taken if checkpoint._preprocessor is None else taken.with_preprocessor(checkpoint._preprocessor)

    def committed(self, checkpoint: Checkpoint) -> None:
        """The checkpoint staged last is committed."""
        if self._in_memory is not None:
            attachment, self._in_memory = self._in_memory, None
            self.received(attachment)
        elif not self._setup.checkpoints_in_memory:
            self._newest = (self._numbers[-1], type(checkpoint))

    def received(self, attachment: Attachment) -> None:
        """The run's newest checkpoint, which is in memory only: rank 0's own, or what the driver sent of it."""
        from paceline.air.checkpoint import Checkpoint

        self._newest = Checkpoint.from_attachment(attachment)

    def acknowledged(self, checkpoints: int) -> None:
        """The driver has committed that many background checkpoints; ranks that stage none hear of them too."""
        from paceline.air.checkpoint import Checkpoint

        if checkpoints > self._committed:
            self._committed = checkpoints
            # A rank that lags behind sees no further than it has reported itself: what lies ahead of
            # it may be deleted while it is being read.
            number = self._numbers[:checkpoints][-1] if self._numbers else _THE_NEWEST_THERE_IS
            self._newest = (number, Checkpoint)

    def newest_committed(self) -> Checkpoint | None:
        """The newest checkpoint that this rank knows to be committed, or a newer one.

        Looked up only when it is asked for: a rank that lags behind may find that its own
        has been deleted in favour of newer ones.
        """
        if not isinstance(self._newest, tuple):
            return self._newest
        number, kind = self._newest
        path = self._run_dir.checkpoint(number)
        if not path.exists():
            present = self._run_dir.checkpoints()
            if not present:  # this rank reported one, rank 0 did not: there is none
                return None
            _, path = present[-1]
        return kind.from_directory(str(path))

    def close(self) -> None:
        """Wait until everything that was handed over is staged and announced."""
        if self._background is not None:
            self._background.close()


def packed_in_memory(checkpoint: Checkpoint, report: Mapping[str, Any] | None = None) -> Attachment:
    """The checkpoint in a file that has no name: it is gone with the last process that holds it."""
    return Attachment.written("paceline-checkpoint", lambda file: checkpoint.write_packed(file, report=report))


def _report_facts(number: int, index: int) -> dict[str, Any]:
    return {"timestamp": int(time.time()), "number": number, "iteration": index}


class _BackgroundWriter:
    """One thread that finishes checkpoints in the order they were handed over."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-checkpoint-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def check(self) -> None:
        """Raise what went wrong in the background, at the next call of report()."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()
        self.check()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if self._error is None:
                try:
                    work()
                except BaseException as error:  # handed to the user's thread by check()
                    self._error = error
