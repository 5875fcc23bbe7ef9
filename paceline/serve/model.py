"""A loaded model (the predictor of a checkpoint, and what is known about its input), and its replacement by another."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_trust import code_parts
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError, PacelineError
from paceline.air.manifest import verify
from paceline.air.resources import usable_cores
from paceline.air.secrets import without_credentials as shown
from paceline.air.words import counted
from paceline.serve.columns import InputColumns, input_columns, library_of, listed, model_of
from paceline.serve.origin import Origin, is_checkpoint, origin_of
from paceline.serve.rows import NumberTypes, RequestRows, joined, zeros
from paceline.storage.run_dir import MANIFEST_NAME
from paceline.train.predictor import check_belongs_together, predictor_for

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.train.predictor import BatchFormat, Predictor

logger = logging.getLogger("paceline.serve")

PROBE_ROWS = 16
MANY_ROWS = 4096
"""Fewer are predicted more quickly by one thread: several first have to be woken and then, for a while, wait at full
speed for more, at the cost of everything else on the machine."""


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
    predict_kwargs: Mapping[str, Any] = field(default_factory=dict)
    number_types: NumberTypes = field(default_factory=NumberTypes)
    takes_matrix: bool = False
    """It takes its features as a bare array as well."""
    threads: Threads | None = None
    loaded_at: float = field(default_factory=time.time)

    @property
    def nameless(self) -> bool:
        """Whether a matrix without names of columns makes sense to it."""
        return self.predictor.get_preprocessor() is None

    def predict(self, parts: Sequence[RequestRows]) -> pa.RecordBatch:
        """The predictions for the rows of all requests, in this order."""
        import numpy as np

        from paceline.data.formats import from_batch
        from paceline.train.predictor import prediction_columns

        order = self.columns.names if self.takes_matrix else None
        data = joined(parts, self.batch_format, self.number_types, matrix_order=order)
        rows = sum(part.count for part in parts)
        arguments = self.predict_kwargs
        if self.threads is not None:
            arguments = {**self.threads.arguments(rows), **arguments}
        answer = self.predictor.predict(data, **arguments)
        if isinstance(answer, np.ndarray):
            answer = prediction_columns(answer) if self.takes_matrix else {"predictions": answer}
        predictions = from_batch(answer, f"What {type(self.predictor).__name__} returned")
        if predictions.num_rows != rows:  # by a `predict` of the user's own: each request would get rows of others
            raise ValueError(
                f"{type(self.predictor).__name__} gave {counted(predictions.num_rows, 'prediction')} for "
                f"{counted(rows, 'row')}."
            )
        return predictions


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint becomes a model: the same when it is reloaded."""

    predictor_cls: type[Predictor] | None
    """None: the one that belongs to the checkpoint's class."""
    trust: bool | list[str]
    """Whatever is in the checkpoint is loaded; a list is for the predictor, where it has such an argument."""
    arguments: Mapping[str, Any]
    """Further arguments of `from_checkpoint`."""
    predict_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `predict`."""

    def load(self, checkpoint: Checkpoint) -> Model:
        """The model of a checkpoint that is intact and holds nothing that must be trusted, unless it is."""
        with _local(checkpoint) as local:
            _verify(local, checkpoint)
            if self.trust is not True:
                _refuse_code(local, checkpoint)
            predictor_cls = self.predictor_cls or _known_predictor(local)
            check_belongs_together(predictor_cls, local)
            predictor = predictor_cls.from_checkpoint(local, **self._arguments_for(predictor_cls))
            return loaded_model(
                predictor, _describe(checkpoint), local.number, self.predict_kwargs, threads_of(predictor)
            )

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
            arguments["trust"] = self.trust
        if self.trust is True and "safe_mode" in parameters:  # what Keras calls it
            arguments.setdefault("safe_mode", False)
        return arguments


_MOST_NAMED = 5
_STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def loaded_model(
    predictor: Predictor,
    origin: str,
    number: int | None = None,
    predict_kwargs: Mapping[str, Any] | None = None,
    threads: Threads | None = None,
) -> Model:
    """The model that a predictor is."""
    predictor._check_model_keywords(predict_kwargs or {})
    library = library_of(model_of(predictor))
    preprocessed = predictor.get_preprocessor() is not None
    is_own = type(predictor).__module__.startswith("paceline.")
    return Model(
        predictor=predictor,
        columns=input_columns(predictor),
        batch_format=predictor.preferred_batch_format(),
        origin=origin,
        number=number,
        predict_kwargs=predict_kwargs or {},
        number_types=NumberTypes(keep_untyped=True) if preprocessed else _number_types(model_of(predictor)),
        takes_matrix=is_own and not preprocessed and library in ("xgboost", "lightgbm"),
        threads=threads,
    )


def _number_types(model: Any) -> NumberTypes:
    """A network computes in the type of its weights and cannot take another; whole numbers are such too, unless
    it may look them up in a table."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return NumberTypes()
    import numpy as np

    wide = any(parameter.dtype is torch.float64 for parameter in model.parameters())
    number: type[np.generic] = np.float64 if wide else np.float32
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return NumberTypes(np.int64 if any(isinstance(part, tables) for part in model.modules()) else number, number)


def _known_predictor(checkpoint: Checkpoint) -> type[Predictor]:
    try:
        return predictor_for(checkpoint)
    except ConfigError:
        if checkpoint.kind != "local_path" or checkpoint.path is None or is_checkpoint(Path(checkpoint.path)):
            raise
        raise ConfigError(
            f"There is no run and no checkpoint in {shown(checkpoint.path)}. Give the directory of a run, an "
            "experiment or a checkpoint; for files of your own, name the predictor that reads them as well."
        ) from None


@contextlib.contextmanager
def _local(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """The checkpoint on this machine: what is checked must be what is loaded, so it is fetched once."""
    if checkpoint.kind != "uri":
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="paceline-serve-") as folder:
        yield checkpoint.fetched(folder)


def _verify(local: Checkpoint, checkpoint: Checkpoint) -> None:
    if local.kind != "local_path" or local.path is None or not Path(local.path, MANIFEST_NAME).exists():
        return
    try:
        verify(Path(local.path))
    except CheckpointCorruptError as error:
        raise CheckpointCorruptError(str(error).replace(local.path, _describe(checkpoint))) from None


def _refuse_code(local: Checkpoint, checkpoint: Checkpoint) -> None:
    if parts := code_parts(local):
        rest = f" and {len(parts) - _MOST_NAMED} more files" if len(parts) > _MOST_NAMED else ""
        named = ", ".join(parts[:_MOST_NAMED]) + rest
        raise CheckpointError(
            f"{_describe(checkpoint)} is not loaded: {named} can run any code that was put there. If you "
            "trust where the checkpoint comes from, pass trust=True."
        )


def _describe(checkpoint: Checkpoint) -> str:
    return shown(checkpoint.path) if checkpoint.path is not None else f"a {type(checkpoint).__name__} in memory"


class Threads:
    """Gives a booster as many threads as suit its next batch."""

    def __init__(self, booster: Any, *, by_argument: bool) -> None:
        self._booster = booster
        self._by_argument = by_argument
        self._set: int | None = None

    def arguments(self, rows: int) -> dict[str, int]:
        """Set the number of threads, or give it as arguments for `predict`."""
        wanted = 1 if rows < MANY_ROWS else usable_cores()
        if self._by_argument:
            return {"num_threads": wanted}
        if wanted != self._set:
            self._booster.set_param({"nthread": wanted})
            self._set = wanted
        return {}


def threads_of(predictor: Predictor) -> Threads | None:
    """None for a model whose threads are not ours to set."""
    model = model_of(predictor)
    library = library_of(model)
    if library not in ("xgboost", "lightgbm") or not type(predictor).__module__.startswith("paceline."):
        return None
    return Threads(model, by_argument=library == "lightgbm")


class ReloadUnderWayError(PacelineError, RuntimeError):
    """Another reload has not ended yet."""


class ServedModel:
    """Holds the current model. A new one is loaded and tried beside it, and only then takes its place."""

    def __init__(self, name: str, model: Model, place: Origin | None = None, recipe: Recipe | None = None) -> None:
        self.name = name
        self.current = model
        self._place = place
        self._recipe = recipe
        self.reloads = 0
        """How often another model has taken its place."""
        self.failures = 0
        """How often one could not."""
        self._last_good: RequestRows | None = None
        self._reloading = threading.Lock()
        self._try_out(model)

    def remember(self, rows: RequestRows) -> None:
        """Rows that were predicted well: a new model must manage them too."""
        self._last_good = rows

    def reload(self, number: int | None = None) -> Model:
        """Load again from where the model came from: what the run now serves, or one of its checkpoints."""
        if self._place is None:
            raise ConfigError("The model was not loaded from a checkpoint: there is nothing to load again.")
        with self._counted():
            return self._replace(self._place.checkpoint(number))

    def reload_from(self, checkpoint: Any) -> Model:
        """Load another checkpoint, of whichever place; later reloads look there."""
        with self._counted():
            place = origin_of(checkpoint)
            model = self._replace(place.checkpoint(None))
        self._place = place
        return model

    def follow(self) -> None:
        """Reload if the place stands for another checkpoint now."""
        assert self._place is not None
        with self._counted():
            checkpoint = self._place.checkpoint(None)
            if checkpoint.path != self.current.origin:
                self._replace(checkpoint)

    def sign(self) -> Any:
        """Changes when the place may have another checkpoint."""
        return None if self._place is None else self._place.sign()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except ReloadUnderWayError:
            raise  # the one that is under way counts
        except Exception:
            self.failures += 1
            raise

    def _replace(self, checkpoint: Checkpoint) -> Model:
        if self._recipe is None:
            raise ConfigError("The server was given a predictor, not a class that makes one of a checkpoint.")
        if not self._reloading.acquire(blocking=False):
            raise ReloadUnderWayError("Another reload is under way.")
        try:
            model = self._recipe.load(checkpoint)
            self._try_out(model)
            self.current = model
            self.reloads += 1
        finally:
            self._reloading.release()
        logger.info("%s: now serving %s", self.name, model.origin)
        return model

    def _try_out(self, model: Model) -> None:
        """Predict the last rows that went well, or rows of zeros: what cannot do that is not served."""
        before, now = self.current.columns.kinds, model.columns.kinds
        if before and now and before.keys() != now.keys():
            raise CheckpointError(
                f"{model.origin} takes other columns than the model that is served; differing: "
                f"{listed(sorted(before.keys() ^ now.keys()))}. Start a server of its own for it."
            )
        rows = self._last_good.head(PROBE_ROWS) if self._last_good is not None else zeros(model.columns)
        if rows is None:
            return
        try:
            model.predict([rows])
        except Exception as error:
            what = "rows of zeros" if self._last_good is None else "rows that the model before it predicted"
            raise CheckpointError(f"{model.origin} cannot predict {what}: {type(error).__name__}: {error}") from error
