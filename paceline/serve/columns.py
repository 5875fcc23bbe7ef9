"""Which columns a model wants, as far as the model and its preprocessor know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.serve.problem import Problem

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
    complete = features is not None
    for stage in reversed(stages):
        taken, made = stage._input_columns(), stage._output_columns()
        if taken is None or made is None:
            return NOTHING_KNOWN
        needed = {name: kind for name, kind in needed.items() if name not in made}
        needed.update(dict.fromkeys(taken, "any"))
    return InputColumns(needed, complete)


def _stages(preprocessor: Any) -> list[Any]:
    if preprocessor is None:
        return []
    inner = getattr(preprocessor, "_stages", None)  # a chain
    return [preprocessor] if inner is None else list(inner())


def _features(predictor: Predictor) -> dict[str, ColumnKind] | None:
    """The features of the model, where its library keeps their names. No library is imported to find out."""
    model = getattr(predictor, "model", None) or getattr(predictor, "estimator", None)
    library = type(model).__module__.partition(".")[0]
    if library == "xgboost":
        names = getattr(model, "feature_names", None)
        types = getattr(model, "feature_types", None) or ["q"] * len(names or ())
        return (
            {name: "any" if kind == "c" else "number" for name, kind in zip(names, types, strict=True)}
            if names
            else None
        )
    if model is not None and library == "lightgbm" and hasattr(model, "feature_name"):
        kind: ColumnKind = "any" if getattr(model, "pandas_categorical", None) else "number"
        return dict.fromkeys(model.feature_name(), kind)
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else dict.fromkeys(map(str, names), "any")
