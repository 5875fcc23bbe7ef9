"""The arguments of BatchPredictor, checked before any row is read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import is_number, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.engine.devices import visible_gpus
from paceline.train.predictor import Predictor
from paceline.train.predictors import check_belongs_together, predictor_for

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.dataset import Dataset
    from paceline.data.operations.user_operation import Processes
    from paceline.data.preprocessor import Preprocessor


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
