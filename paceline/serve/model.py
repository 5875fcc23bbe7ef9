"""A loaded model: the predictor of a checkpoint, and what is known about its input."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_sources import shown
from paceline.air.checkpoint_trust import pickled_parts
from paceline.air.errors import CheckpointError, ConfigError
from paceline.serve.columns import InputColumns, input_columns
from paceline.serve.rows import Rows, joined
from paceline.storage.manifest import verify
from paceline.storage.run_dir import MANIFEST_NAME

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.train.predictor import BatchFormat, Predictor


@dataclass(frozen=True)
class Model:
    """One that is ready to predict."""

    predictor: Predictor
    columns: InputColumns
    batch_format: BatchFormat
    origin: str
    """Where it was loaded from, for people."""
    number: int | None = None
    """The n of checkpoint_00000n."""
    loaded_at: float = field(default_factory=time.time)

    @property
    def nameless(self) -> bool:
        """Whether a matrix without names of columns makes sense to it."""
        return self.predictor.get_preprocessor() is None

    def predict(self, parts: Sequence[Rows]) -> pa.RecordBatch:
        """The predictions for the rows of all requests, in this order."""
        import numpy as np

        from paceline.data.formats import from_batch

        answer = self.predictor.predict(joined(parts, self.batch_format))
        if isinstance(answer, np.ndarray):
            answer = {"predictions": answer}
        return from_batch(answer, f"What {type(self.predictor).__name__} returned")


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint becomes a model: the same when it is reloaded."""

    predictor_cls: type[Predictor] | None
    """None: the one that belongs to the checkpoint's class."""
    trust: bool
    """Pickles in the checkpoint are loaded."""
    arguments: Mapping[str, Any]
    """Further arguments of `from_checkpoint`."""

    def load(self, checkpoint: Checkpoint) -> Model:
        """The model of a checkpoint that is intact and holds nothing that must be trusted, unless it is."""
        with _local(checkpoint) as local:
            _verify(local)
            if not self.trust:
                _refuse_pickles(local, checkpoint)
            predictor_cls = self.predictor_cls or _known_predictor(local)
            predictor = predictor_cls.from_checkpoint(local, **self._arguments_for(predictor_cls))
            return model_of(predictor, _describe(checkpoint), local.number)

    def _arguments_for(self, predictor_cls: type[Predictor]) -> dict[str, Any]:
        parameters = inspect.signature(predictor_cls.from_checkpoint).parameters
        arguments = dict(self.arguments)
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        if unknown := [name for name in arguments if name not in parameters and not takes_any]:
            known = [name for name, each in parameters.items() if name != "checkpoint" and each.kind not in _STARRED]
            raise ConfigError(
                f"Neither serve.run nor {predictor_cls.__name__}.from_checkpoint takes {', '.join(map(repr, unknown))}"
                f"; the latter takes: {', '.join(known) or 'nothing more'}."
            )
        if self.trust and "trust" in parameters:
            arguments.setdefault("trust", True)
        return arguments


_STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def model_of(predictor: Predictor, origin: str, number: int | None = None) -> Model:
    """The model that a predictor is."""
    return Model(predictor, input_columns(predictor), predictor.preferred_batch_format(), origin, number)


def _known_predictor(checkpoint: Checkpoint) -> type[Predictor]:
    from paceline.train.predictors import predictor_for

    return predictor_for(checkpoint)


@contextlib.contextmanager
def _local(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """The checkpoint on this machine: what is checked must be what is loaded, so it is fetched once."""
    if checkpoint.kind != "uri":
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="paceline-serve-") as folder:
        checkpoint.to_directory(folder)
        found = Checkpoint.from_directory(folder)
        yield found if type(checkpoint) is Checkpoint else type(checkpoint).from_checkpoint(found)


def _verify(checkpoint: Checkpoint) -> None:
    if checkpoint.kind == "local_path" and checkpoint.path is not None:
        folder = Path(checkpoint.path)
        if (folder / MANIFEST_NAME).exists():
            verify(folder)


def _refuse_pickles(local: Checkpoint, checkpoint: Checkpoint) -> None:
    if parts := pickled_parts(local):
        raise CheckpointError(
            f"{_describe(checkpoint)} is not loaded: {', '.join(parts)} would be unpickled, which runs whatever code "
            "was put there. If the checkpoint comes from a place that you trust, say so: trust=True, or --trust on the "
            "command line."
        )


def _describe(checkpoint: Checkpoint) -> str:
    return shown(checkpoint.path) if checkpoint.path is not None else f"a {type(checkpoint).__name__} in memory"
