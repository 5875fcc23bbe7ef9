"""SklearnCheckpoint: a fitted scikit-learn estimator as a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_sources import Kind, Source
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import ConfigError
from paceline.train.sklearn.estimator_file import PICKLE_FILE, SKOPS_FILE, read_estimator, write_estimator

if TYPE_CHECKING:
    from paceline.air.packing import FileSink
    from paceline.train.sklearn.estimator_file import Trust

C = TypeVar("C", bound="SklearnCheckpoint")


@dataclass(frozen=True)
class EstimatorObject(Source):
    """An estimator in this process."""

    estimator: Any

    kind: ClassVar[Kind] = "data_dict"

    def describe(self) -> str:
        return f"estimator {type(self.estimator).__name__}"

    def read_file(self, name: str) -> bytes | None:
        return None

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        write_estimator(self.estimator, sink)

    def load_dict(self) -> dict[str, Any]:
        return {MODEL_KEY: self.estimator}


class SklearnCheckpoint(Checkpoint):
    """A checkpoint that holds a scikit-learn estimator.

    It is stored in the format of skops, which is data and not a program; an estimator with functions or
    classes that skops cannot hold (those of your script, lambdas) is stored as a pickle. What was fitted by this
    program is read without a question. For a checkpoint from elsewhere `get_estimator` asks: it reads
    what is known to be harmless, and says what to pass as `trust=` for the rest.
    """

    made_here = False
    """True for what a run of this program has just fitted: its content comes from the user's own estimator."""

    @classmethod
    def from_estimator(
        cls: type[C], estimator: Any, *, path: str | os.PathLike[str] | None = None, preprocessor: Any = None
    ) -> C:
        """A checkpoint of a fitted estimator; with `path` it is written to that directory at once."""
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise ConfigError(f"from_estimator() takes a fitted scikit-learn estimator, not {estimator!r}.")
        checkpoint = cls.__new__(cls)
        checkpoint._adopt(EstimatorObject(estimator))
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        if path is None:
            return checkpoint
        for name in (SKOPS_FILE, PICKLE_FILE):  # of an earlier estimator
            Path(path, name).unlink(missing_ok=True)
        written = cls.from_directory(checkpoint.to_directory(path))
        written.made_here = True
        return written

    @classmethod
    def from_checkpoint(cls: type[C], other: Checkpoint) -> C:
        checkpoint = super().from_checkpoint(other)
        checkpoint.made_here = isinstance(other, SklearnCheckpoint) and other.made_here
        return checkpoint

    def get_estimator(self, trust: Trust = None) -> Any:
        """The fitted estimator.

        trust=True reads whatever is stored, and is for checkpoints whose origin you know. A list allows the named
        types beyond those that are known to be harmless; the error that asks for it has the list.
        """
        if isinstance(self._source, EstimatorObject):
            return self._source.estimator
        held = self.peek(MODEL_KEY)
        if held is not None:
            return held
        with self._directory(lambda name: name in (SKOPS_FILE, PICKLE_FILE)) as folder:
            return read_estimator(Path(folder), repr(self), trust=True if self.made_here else trust)
