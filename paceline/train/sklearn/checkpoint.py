"""SklearnCheckpoint: a fitted scikit-learn estimator as a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, ConfigError, SerializationError
from paceline.air.packing import check_zip_size
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource

if TYPE_CHECKING:
    from paceline.air.packing import FileSink

    Trust: TypeAlias = bool | Sequence[str | type] | None


C = TypeVar("C", bound="SklearnCheckpoint")


@dataclass(frozen=True)
class EstimatorObject(ModelSource):
    """An estimator in this process."""

    estimator: Any

    def describe(self) -> str:
        return f"estimator {type(self.estimator).__name__}"

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        write_estimator(self.estimator, sink)

    def load_dict(self) -> dict[str, Any]:
        return {MODEL_KEY: self.estimator}


class SklearnCheckpoint(ModelCheckpoint):
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
        if path is None:
            return cls._of(EstimatorObject(estimator), preprocessor)
        for name in (SKOPS_FILE, PICKLE_FILE):  # of an earlier estimator
            Path(path, name).unlink(missing_ok=True)
        written = cls._of(EstimatorObject(estimator), preprocessor, path)
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


# -- the file of an estimator ----------------------------------------------------------------------
# skops stores data and the names of types; reading makes objects only of types that are known to be harmless,
# or that the reader named. A pickle is a program: reading one runs what is in it.


SKOPS_FILE = "estimator.skops"
PICKLE_FILE = "estimator.joblib"


def write_estimator(estimator: Any, sink: FileSink) -> None:
    """As a file of skops if that can hold the estimator; otherwise as a pickle, which `joblib.load` reads."""
    content = _skops_content(estimator)
    if content is not None:
        with sink.open(SKOPS_FILE) as file:
            file.write(content)
        return
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(estimator, protocol=5)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise SerializationError(
            f"The estimator {type(estimator).__name__} cannot be stored, neither by skops nor as a pickle: "
            f"{type(error).__name__}: {error}."
        ) from error
    with sink.open(PICKLE_FILE) as file:
        file.write(pickled)


def _skops_content(estimator: Any) -> bytes | None:
    """None for an estimator that would not come back.

    skops writes the names of functions and classes without asking whether they will be found, so the
    content is read once. What a script itself defines (__main__) no other program would find.
    """
    import skops.io

    try:
        content: bytes = skops.io.dumps(estimator)
        types = skops.io.get_untrusted_types(data=content)
        if any(name.startswith("__main__.") for name in types):
            return None
        skops.io.loads(content, trusted=types)
    except (OSError, MemoryError):
        raise
    except Exception:
        return None
    return content


def read_estimator(folder: Path, place: str, trust: Trust) -> Any:
    """The estimator in a checkpoint's directory, as far as `trust` allows; `place` is what to call it."""
    if isinstance(trust, str | type) or not (trust is None or isinstance(trust, bool | Sequence)):
        raise ConfigError(
            f"trust is {trust!r}: give True for a checkpoint that you trust, or a list of the types in it that you "
            "do, such as ['my_package.MyTransformer']."
        )
    if (folder / SKOPS_FILE).exists() and (folder / PICKLE_FILE).exists():
        raise CheckpointError(
            f"{place} has two estimators, {SKOPS_FILE} and {PICKLE_FILE}: one was written over another. Remove the "
            "file that is not meant."
        )
    if (folder / SKOPS_FILE).exists():
        return _read_skops(folder / SKOPS_FILE, place, trust)
    if (folder / PICKLE_FILE).exists():
        return _read_pickle(folder / PICKLE_FILE, place, trust)
    raise CheckpointError(
        f"{place} holds no estimator: it has no file {SKOPS_FILE} or {PICKLE_FILE}. Save one with "
        "SklearnCheckpoint.from_estimator()."
    )


def _read_skops(path: Path, place: str, trust: Trust) -> Any:
    import skops.io

    check_zip_size(path)
    try:
        unknown = skops.io.get_untrusted_types(file=path)
    except Exception as error:
        raise _unreadable(path, error) from error
    if trust is not True:
        named = [_name(each) for each in trust or ()]
        asked = [name for name in unknown if name not in named]
        if asked:
            raise CheckpointError(
                f"The estimator in {place} has parts that skops does not know to be harmless: {', '.join(asked)}. In a "
                "file that somebody tampered with, such parts can crash the program or run code. If you know where "
                f"the checkpoint comes from, pass trust={unknown!r} (or trust=True for everything in it) to "
                "get_estimator() or SklearnPredictor.from_checkpoint()."
            )
    try:
        return skops.io.load(path, trusted=unknown)
    except Exception as error:
        raise _unreadable(path, error) from error


def _read_pickle(path: Path, place: str, trust: Trust) -> Any:
    import joblib

    if trust is not True:
        limited = "It cannot be limited to a list of types. " if trust else ""
        raise CheckpointError(
            f"The estimator in {place} is a pickle ({PICKLE_FILE}), because it holds functions or classes that skops "
            f"cannot store. Reading a pickle runs whatever code is in it. {limited}If you know where the checkpoint "
            "comes from, pass trust=True to get_estimator() or SklearnPredictor.from_checkpoint()."
        )
    try:
        return joblib.load(path)
    except Exception as error:
        raise _unreadable(path, error) from error


def _name(each: str | type) -> str:
    return f"{each.__module__}.{each.__qualname__}" if isinstance(each, type) else each


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be loaded: {type(error).__name__}: {error}. It is damaged, or it needs modules that are not "
        "there."
    )
