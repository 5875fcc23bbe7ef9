"""How a Trainable class runs in the worker of its trial."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.constants import DONE
from paceline.air.errors import StopTraining
from paceline.tune.trainable.trainable import Trainable

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.session import SessionProtocol

SHOULD_CHECKPOINT = "should_checkpoint"
"""Key of a result by which a step asks to be saved now."""


@dataclass(frozen=True)
class ClassLoop:
    """Steps a Trainable until it is done or stopped, and sees to its checkpoints."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"make": "trainable", "config": "param_space"}

    make: Callable[[dict[str, Any]], Trainable]
    """The class."""
    config: Mapping[str, Any]
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False

    def __call__(self) -> None:
        session = session_slot.required("A trial's loop runs in the worker that a Tuner started.")
        trainable = self.make(dict(self.config))
        trainable._check_is_complete()
        try:
            resumed = session.get_checkpoint()
            if resumed is not None:
                trainable.restore(resumed)
            trainable._continue_at(session.rows_before)  # the trial's own count, also after a donor's checkpoint
            self._train(trainable, session)
        except BaseException:
            _stop_after(trainable, session)
            raise
        trainable.stop()

    def _train(self, trainable: Trainable, session: SessionProtocol) -> None:
        done = False
        while not done:
            metrics = trainable._advance()
            done = bool(metrics.get(DONE))
            saves = self._is_due(trainable.iteration, metrics) or (done and self.checkpoint_at_end)
            try:
                with _checkpoint(trainable, session, wanted=saves) as checkpoint:
                    session.report(metrics, checkpoint)
            except StopTraining:
                # Only now is it known that this row is the last one.
                if self.checkpoint_at_end and not saves:
                    with _checkpoint(trainable, session) as checkpoint:
                        if checkpoint is not None:
                            session.add_checkpoint(checkpoint)
                raise

    def _is_due(self, iteration: int, metrics: Mapping[str, Any]) -> bool:
        by_count = self.checkpoint_frequency and iteration % self.checkpoint_frequency == 0
        return bool(by_count or metrics.get(SHOULD_CHECKPOINT))


def _stop_after(trainable: Trainable, session: SessionProtocol) -> None:
    """Clean up after an error or a stop. That is what the trial ends with, even if cleaning up fails as well."""
    try:
        trainable.stop()
    except Exception as problem:
        session.warn(f"{type(trainable).__name__}.cleanup() raised {problem!r}, after the trial had ended.")


@contextmanager
def _checkpoint(trainable: Trainable, session: SessionProtocol, *, wanted: bool = True) -> Iterator[Checkpoint | None]:
    """The trainable's state, in files that live until the run has them."""
    if not wanted:
        yield None
        return
    # In the trial's directory, so that the run can take the files over by a rename.
    directory = tempfile.mkdtemp(prefix=".checkpoint_", dir=session.trial_dir)
    try:
        yield trainable._checkpoint_in(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
