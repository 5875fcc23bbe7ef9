"""Which columns a model wants, as far as the model and its preprocessor know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from paceline.web.problem import Problem

if TYPE_CHECKING:
    from paceline.train.predictor import Predictor

ColumnKind = Literal["number", "any"]
MOST_SHOWN = 12


@dataclass(frozen=True)
class InputColumns:
    """The columns that a request must have."""

    kinds: dict[str, ColumnKind]
    """Every column that is known to be needed, in the model's order."""
    complete: bool
    """No other columns are wanted."""
    ordered: bool = True
    """The order is that of the training data, so that values without names can be told apart by it."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """In the model's order."""
        return tuple(self.kinds)

    @cached_property
    def only_numbers(self) -> bool:
        """Whether a row is nothing but numbers, so that rows are a matrix."""
        return self.complete and set(self.kinds.values()) == {"number"}

    @cached_property
    def values_of(self) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
        """Takes the values out of a row, in the model's order."""
        if len(self.names) == 1:  # itemgetter gives a bare value then
            return lambda row: (row[self.names[0]],)
        return itemgetter(*self.names)

    def check_names(self, given: Iterable[str], where: str = "") -> None:
        """Refuse a request that lacks columns or has others."""
        given = set(given)
        wrong = []
        if missing := [name for name in self.kinds if name not in given]:
            wrong.append(f"missing: {listed(missing)}")
        if self.complete and (unknown := sorted(given - self.kinds.keys())):
            wrong.append(f"unknown: {listed(unknown)}")
        if wrong:
            wanted = f" The model takes: {listed(list(self.kinds))}." if self.complete else ""
            raise Problem(422, f"The columns do not fit the model{where}; {'; '.join(wrong)}.{wanted}")


NOTHING_KNOWN = InputColumns({}, complete=False)


def listed(names: Sequence[str]) -> str:
    """Column names for a message, not too many of them."""
    shown = ", ".join(repr(name if len(name) <= 80 else name[:77] + "...") for name in names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"


def input_columns(predictor: Predictor) -> InputColumns:
    """What the model was trained with, traced back through the preprocessor to what users send."""
    features = _features(predictor)
    stages = _stages(predictor.get_preprocessor())
    if not stages:
        return NOTHING_KNOWN if features is None else InputColumns(features, complete=True)
    needed: dict[str, ColumnKind] = dict(features or {})
    ordered = True
    for stage in reversed(stages):
        taken, made = stage._input_columns(), stage._output_columns()
        if taken is None or made is None:
            return NOTHING_KNOWN
        if _only_a_label(stage, needed):
            continue
        if set(taken) == set(made):  # changed in place
            sources = {name: _source(name, made, needed) for name in needed}
            needed = {sources[name] or name: "any" if sources[name] else kind for name, kind in needed.items()}
        else:
            ordered = False
            needed = {name: kind for name, kind in needed.items() if _source(name, made, needed) is None}
        ordered = ordered and needed.keys() >= set(taken)
        needed.update(dict.fromkeys(taken, "any"))
    return InputColumns(needed, complete=features is not None, ordered=ordered)


def _source(feature: str, columns: Sequence[str], features: Collection[str]) -> str | None:
    """Which of these columns a feature is, or comes from as an element "x_0" of a column of vectors "x"."""
    if feature in columns:
        return feature
    vector = feature.rpartition("_")[0]
    return vector if vector in columns and vector not in features else None


def _only_a_label(stage: Any, needed: Collection[str]) -> bool:
    """Whether a stage is for a label, which rows to predict have not."""
    from paceline.data.preprocessors import LabelEncoder

    return isinstance(stage, LabelEncoder) and stage.label_column not in needed


def _stages(preprocessor: Any) -> list[Any]:
    if preprocessor is None:
        return []
    inner = getattr(preprocessor, "_stages", None)  # a chain
    return [preprocessor] if inner is None else list(inner())


def model_of(predictor: Predictor) -> Any:
    """The library's own model inside of a predictor; None where it is not known."""
    model = getattr(predictor, "model", None)
    return getattr(predictor, "estimator", None) if model is None else model


def library_of(model: Any) -> str:
    """The library that a model's class belongs to."""
    return type(model).__module__.partition(".")[0]


def _features(predictor: Predictor) -> dict[str, ColumnKind] | None:
    """The features of the model, where its library keeps their names. No library is imported to find out."""
    model = model_of(predictor)
    if library_of(model) == "xgboost" and getattr(model, "feature_names", None):
        types = model.feature_types or ["q"] * len(model.feature_names)
        return {name: "any" if kind == "c" else "number" for name, kind in zip(model.feature_names, types, strict=True)}
    if library_of(model) == "lightgbm" and hasattr(model, "feature_name"):
        known = getattr(predictor, "_features", None)  # as they were before LightGBM changed their names
        if known is not None:
            special = {*known.categories, *known.widths}
            return {name: "any" if name in special else "number" for name in known.columns}
        return dict.fromkeys(model.feature_name(), "any" if model.pandas_categorical else "number")
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else dict.fromkeys(map(str, names), "any")
