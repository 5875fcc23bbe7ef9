"""BatchPredictor: predictions for a whole dataset, streamed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_bool, is_number, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.engine.places import visible_gpus
from paceline.train.predictor import (
    Predictor,
    check_belongs_together,
    check_keywords,
    check_predict_keywords,
    checked_checkpoint,
    checked_preprocessor,
    keywords_of,
    predictor_for,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from paceline.data.dataset import Dataset
    from paceline.data.operations.user_operation import Processes
    from paceline.data.preprocessor import Preprocessor

__all__ = ["BatchPredictor"]


class BatchPredictor:
    """A checkpoint and the predictor class that knows what to do with it.

    The predictor is made where and when rows are predicted, once per process, by
    ``predictor_cls.from_checkpoint(checkpoint, **predictor_kwargs)``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str | os.PathLike[str],
        predictor_cls: type[Predictor] | None = None,
        **predictor_kwargs: Any,
    ) -> None:
        """`checkpoint` may be its path or URI. Without `predictor_cls`, the one that belongs to the checkpoint."""
        self._checkpoint = checked_checkpoint(checkpoint, "BatchPredictor")
        self._predictor_cls = the_predictor_class(predictor_cls, self._checkpoint)
        self._predictor_kwargs = predictor_kwargs
        self._own_preprocessor: tuple[Preprocessor | None] | None = None
        name = f"{self._predictor_cls.__name__}.from_checkpoint"
        check_keywords(name, predictor_kwargs, self._predictor_cls.from_checkpoint)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint | str | os.PathLike[str],
        predictor_cls: type[Predictor] | None = None,
        **kwargs: Any,
    ) -> BatchPredictor:
        """The same as ``BatchPredictor(checkpoint, predictor_cls, **kwargs)``."""
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    def from_pandas_udf(cls, pandas_udf: Callable[[pd.DataFrame], pd.DataFrame]) -> BatchPredictor:
        """One that calls a function: it takes a DataFrame and returns one with as many rows."""
        from paceline.train.predictor import PandasFunctionPredictor

        PandasFunctionPredictor(pandas_udf)  # refused here if it is no function
        return cls(Checkpoint.from_dict({}), PandasFunctionPredictor, pandas_udf=pandas_udf)

    def __repr__(self) -> str:
        return f"BatchPredictor({self._checkpoint!r}, {self._predictor_cls.__name__})"

    def get_preprocessor(self) -> Preprocessor | None:
        """What rows go through before the model: the one that was set, else the checkpoint's."""
        if self._own_preprocessor is not None:
            return self._own_preprocessor[0]
        stored: Preprocessor | None = self._checkpoint.get_preprocessor()
        return stored

    def set_preprocessor(self, preprocessor: Preprocessor | None) -> None:
        """Use this one instead of the checkpoint's, for datasets made from now on; None: none at all."""
        self._own_preprocessor = (checked_preprocessor(preprocessor),)

    def predict(
        self,
        data: Dataset,
        *,
        feature_columns: Sequence[str] | None = None,
        keep_columns: Sequence[str] | None = None,
        batch_size: int | Literal["default"] = "default",
        min_scoring_workers: int = 1,
        max_scoring_workers: int | None = None,
        num_cpus_per_worker: float | None = None,
        num_gpus_per_worker: float | None = None,
        separate_gpu_stage: bool = True,
        ray_remote_args: Mapping[str, Any] | None = None,
        **predict_kwargs: Any,
    ) -> Dataset:
        """A dataset of the predictions for every row of `data`, in the same order.

        Nothing is read or predicted before the result is used. Then rows stream: ``.write_parquet(directory)``
        needs memory for a few batches, however many rows there are.

        - `feature_columns`: columns for the model, of what comes out of the preprocessor, or else of what goes
          into it; all by default.
        - `keep_columns`: columns that are put beside the predictions of the same rows, as the preprocessor leaves them;
          those that it removes, as they are in `data`.
        - `batch_size`: at most this many rows are predicted at once. By default what suits the predictor: 4096 unless
          its class says otherwise.
        - `min_scoring_workers`, `max_scoring_workers`: from how many to how many processes predict. With the default,
          one, it is done in the process that reads, which is quickest for models that use all cores by themselves
          (XGBoost, LightGBM, PyTorch). More are for models that use a single core.
        - `num_gpus_per_worker`: above 0, the model is put on the GPU.
        - `predict_kwargs` go to the predictor's `predict`.
        """
        from paceline.data.dataset import Dataset
        from paceline.train.prediction.scoring import Scoring, ScoringTask

        if not isinstance(data, Dataset):
            raise ConfigError(
                f"BatchPredictor.predict takes a Dataset, not {type(data).__name__}: paceline.data.read_parquet, "
                "from_pandas and others make one. A single batch is predicted by "
                f"{self._predictor_cls.__name__}.from_checkpoint(checkpoint).predict(batch)."
            )
        features = column_names("feature_columns", feature_columns)
        keep = column_names("keep_columns", keep_columns) or ()
        own_arguments, _ = keywords_of(self.predict)
        check_predict_keywords(self._predictor_cls, predict_kwargs, own_arguments)
        if batch_size == "default":
            batch_size = self._predictor_cls.default_batch_size
        batch_size = whole_number(batch_size, "batch_size", least=1)
        processes = processes_wanted(min_scoring_workers, max_scoring_workers)
        check_bool(separate_gpu_stage, "separate_gpu_stage")
        warn_without_effect(num_cpus_per_worker, ray_remote_args)
        task = ScoringTask(
            checkpoint=self._checkpoint,
            predictor_cls=self._predictor_cls,
            predictor_kwargs={
                **gpu_keywords(num_gpus_per_worker, processes, self._predictor_cls),
                **self._predictor_kwargs,
            },
            predict_kwargs=predict_kwargs,
            own_preprocessor=self._own_preprocessor,
            feature_columns=features,
            keep_columns=keep,
        )
        rows = only_needed_columns(data, self.get_preprocessor(), features, keep)
        return rows._then(Scoring(task, batch_size, processes))

    def predict_pipelined(
        self,
        data: Dataset,
        *,
        blocks_per_window: int | None = None,
        bytes_per_window: int | None = None,
        **settings: Any,
    ) -> Dataset:
        """The same as `predict`, with its arguments: datasets stream by themselves, and need no windows for it."""
        return self.predict(data, **settings)


# -- arguments, checked before any row is read -----------------------------------------------------


def the_predictor_class(given: Any, checkpoint: Checkpoint) -> type[Predictor]:
    if given is None:
        return predictor_for(checkpoint)
    if isinstance(given, Predictor):
        raise ConfigError(
            f"predictor_cls is an object: pass the class, {type(given).__name__}. Predictors are made where they are "
            "used."
        )
    if not isinstance(given, type) or not issubclass(given, Predictor):
        raise ConfigError(f"predictor_cls is {given!r}: give a class derived from paceline.train.predictor.Predictor.")
    given.preferred_batch_format()  # refused here if it cannot predict anything
    check_belongs_together(given, checkpoint)
    return given


def column_names(name: str, given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    columns = [given] if isinstance(given, str) else list(given)
    if not columns and name == "feature_columns":
        raise ConfigError("feature_columns is empty: name at least one column, or leave it out to use all.")
    for column in columns:
        if not isinstance(column, str):
            raise ConfigError(f"{name} has {column!r}: give the names of columns.")
        if columns.count(column) > 1:
            raise ConfigError(f"{name} has {column!r} twice.")
    return tuple(columns)


def processes_wanted(least: Any, most: Any) -> Processes | None:
    """How many processes predict; None: this one does."""
    fewest = whole_number(least, "min_scoring_workers", least=1)
    highest = fewest if most is None else whole_number(most, "max_scoring_workers", least=fewest)
    return None if highest == 1 else (fewest, highest)


def gpu_keywords(gpus: Any, processes: Processes | None, predictor: type[Predictor]) -> dict[str, Any]:
    """What the predictor must be told to use a GPU."""
    if gpus is None:
        return {}
    if not is_number(gpus) or gpus < 0:
        raise ConfigError(f"num_gpus_per_worker is {gpus!r}: give a number of 0 or more.")
    if gpus == 0:
        return {}
    asked = f"num_gpus_per_worker is {gpus:g}"
    if not visible_gpus():
        raise ConfigError(f"{asked}, but no GPU can be seen here. Leave it out to predict on the CPU.")
    if processes is not None:
        raise ConfigError(
            f"{asked} with {processes[1]} scoring workers, which would share the first GPU. Use one worker and a "
            "larger batch_size."
        )
    if "use_gpu" not in inspect.signature(predictor.from_checkpoint).parameters:
        raise ConfigError(
            f"{asked}, but {predictor.__name__} does not predict on GPUs (its from_checkpoint takes no use_gpu)."
        )
    return {"use_gpu": True}


def warn_without_effect(num_cpus_per_worker: Any, ray_remote_args: Any) -> None:
    if num_cpus_per_worker is not None and (not is_number(num_cpus_per_worker) or num_cpus_per_worker < 0):
        raise ConfigError(f"num_cpus_per_worker is {num_cpus_per_worker!r}: give a number of 0 or more.")
    if ray_remote_args is not None and not isinstance(ray_remote_args, Mapping):
        raise ConfigError(f"ray_remote_args is {ray_remote_args!r}: it was a dict, and has no effect here.")
    for name, value in (("num_cpus_per_worker", num_cpus_per_worker), ("ray_remote_args", ray_remote_args)):
        if value:
            warn_at_users_line(
                f"BatchPredictor.predict: {name} has no effect: one process uses all cores, and several share them "
                "equally. Set OMP_NUM_THREADS for other numbers of threads."
            )


def only_needed_columns(
    data: Dataset, preprocessor: Preprocessor | None, features: tuple[str, ...] | None, keep: tuple[str, ...]
) -> Dataset:
    """The dataset without columns that nobody looks at: they need not be read."""
    from paceline.data.preprocessor import Preprocess
    from paceline.train.prediction.kinds import without_absent_labels

    schema = data._known_schema()
    if preprocessor is not None:
        if schema is None and (keep or without_absent_labels(preprocessor, ()) is not preprocessor):
            return data  # whether the label is there, and which columns are made, will be seen
        preprocessor = without_absent_labels(preprocessor, () if schema is None else schema.names)
    raw = _kept_as_they_are(data, preprocessor, keep, schema)
    needed = features
    if preprocessor is not None and features is not None:
        needed = Preprocess(preprocessor).input_columns((*features, *(name for name in keep if name not in raw)))
    if needed is None:
        return data
    if schema is not None:
        asks = "feature_columns" if preprocessor is None else type(preprocessor).__name__
        data._check_columns(asks, needed, schema)
    return data.select_columns(list(dict.fromkeys((*needed, *raw))))


def _kept_as_they_are(
    data: Dataset, preprocessor: Preprocessor | None, keep: tuple[str, ...], schema: pa.Schema | None
) -> tuple[str, ...]:
    """The columns to keep that are in the dataset, and not made by the preprocessor alone."""
    from paceline.data.preprocessor import Preprocess

    if schema is None:
        return keep
    after = None if preprocessor is None else Preprocess(preprocessor).output_schema(schema)
    if preprocessor is None or after is not None:
        made = () if after is None else after.names
        data._check_columns("keep_columns", [name for name in keep if name not in made], schema)
    return tuple(name for name in keep if name in schema.names)
