"""The arguments of BatchPredictor, checked before any row is read."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import is_number, near_miss, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.engine.places import visible_gpus
from paceline.train.prediction.predictors import check_belongs_together, predictor_for
from paceline.train.predictor import Predictor

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


# -- the keywords of predict(), checked before any row is read: libraries notice a slip late, or never ---


_FIXED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
_HARDLY_BY_CHANCE = 0.9
"""So alike are names of which one is a slip of the other."""


def check_keywords(name: str, given: Iterable[str], taker: Callable[..., Any]) -> None:
    """Refuse what a function does not take."""
    known, takes_any = keywords_of(taker)
    if not takes_any:
        _refuse_unknown(name, given, known)


def check_predict_keywords(predictor: type[Predictor], given: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Refuse what a predictor's `predict` does not take; `others` are arguments that whoever calls it takes himself.

    Where the class hands on any keyword, it may be for the model: what looks like a slip gets a warning then.
    """
    own, model = predict_keywords(predictor)
    name = f"{predictor.__name__}.predict"
    if model is not None:
        _refuse_unknown(name, given, [*own, *model], others)
        return
    for keyword in given:
        near = difflib.get_close_matches(keyword, [*own, *others], n=1, cutoff=_HARDLY_BY_CHANCE)
        if keyword not in own and near:
            warn_at_users_line(f"{name}: {keyword!r} is passed on to the model. Did you mean {near[0]}?")


@functools.cache
def predict_keywords(predictor: type[Predictor]) -> tuple[list[str], list[str] | None]:
    """What the class itself takes, and what its model does beyond that; None: any."""
    predictor.preferred_batch_format()  # refused here if there is no method at all
    own, takes_any = keywords_of(predictor.predict)
    if takes_any:
        of_methods = [
            keywords_of(getattr(predictor, name))
            for name in ("_predict_arrow", "_predict_pandas", "_predict_numpy")
            if getattr(predictor, name) is not getattr(Predictor, name)
        ]
        own += [keyword for keywords, _ in of_methods for keyword in keywords]
        takes_any = any(any_other for _, any_other in of_methods)
    own = [name for name in dict.fromkeys(own) if name not in ("self", "data")]
    if not takes_any:
        return own, []
    model = predictor._model_keywords()
    return own, None if model is None else sorted(model)


def keywords_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names that a function takes, and whether it takes any others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # one that is not written in Python
        return [], True
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return [parameter.name for parameter in parameters if parameter.kind not in _FIXED], takes_any


def _refuse_unknown(name: str, given: Iterable[str], known: list[str], others: Sequence[str] = ()) -> None:
    for keyword in given:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, [*known, *others], n=1)
            raise ConfigError(f"{name} has no argument {keyword!r}{near_miss(keyword, near or known)}")
