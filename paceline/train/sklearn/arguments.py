"""The arguments of SklearnTrainer, checked where they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError


def prepared_estimator(estimator: Any, params: Mapping[str, Any] | None) -> Any:
    """A clone of the estimator, not fitted, with the parameters set."""
    from sklearn.base import clone

    if isinstance(estimator, type):
        raise ConfigError(f"estimator is the class {estimator.__name__}: give an object of it, {estimator.__name__}().")
    lacking = [name for name in ("fit", "get_params", "set_params") if not hasattr(estimator, name)]
    if lacking:
        raise ConfigError(
            f"estimator is a {type(estimator).__name__}, which has no {lacking[0]}(): give a scikit-learn estimator. "
            "One of your own derives from sklearn.base.BaseEstimator."
        )
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"params must be a dict of the estimator's parameters, not {type(params).__name__}.")
    try:
        copied = clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"estimator cannot be cloned as scikit-learn does it: {error}") from error
    known = copied.get_params()
    for name in params or {}:
        if name not in known and name.partition("__")[0] not in (params or {}):
            raise ConfigError(
                f"params: {type(estimator).__name__} has no parameter {name!r}{near_miss(name, list(known))}"
            )
    return copied.set_params(**dict(params or {}))


def check_fit_params(estimator: Any, given: Mapping[str, Any], own_arguments: Collection[str]) -> None:
    """Refuse what is no parameter of the estimator's fit: it is likely a slip of the trainer's own arguments."""
    if "resume_from_checkpoint" in given:
        raise ConfigError(
            "SklearnTrainer takes no resume_from_checkpoint: scikit-learn's fit() starts anew. To go on from a fitted "
            "estimator, pass checkpoint.get_estimator() as estimator= if it can be refitted at no loss."
        )
    fit = type(estimator).fit
    takes_any = _takes_any(fit)
    known = [name for name in inspect.signature(fit).parameters if name not in ("self", "X", "y")]
    for name in given:
        if takes(fit, name) or name == "groups":
            continue
        near = near_miss(name, [*own_arguments, *known])
        if not takes_any or (near.startswith(": did") and "__" not in name):
            raise TypeError(
                f"SklearnTrainer has no argument {name!r}, and {type(estimator).__name__}.fit() takes no such "
                f"parameter{near if near.startswith(': did') else '.'}"
            )


def takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


def checked_cv(cv: Any) -> Any:
    """What may go to the worker: None, a number of folds, a splitter, or a list of splits."""
    if isinstance(cv, type):
        raise ConfigError(f"cv is the class {cv.__name__}: give an object of it, {cv.__name__}().")
    if cv is None or (hasattr(cv, "split") and not isinstance(cv, str)):
        return cv
    if isinstance(cv, int) and not isinstance(cv, bool) and cv > 1:
        return cv
    if isinstance(cv, Iterable) and not isinstance(cv, str | Mapping):
        splits = list(cv)  # a generator could not travel
        if splits and all(isinstance(split, tuple | list) and len(split) == 2 for split in splits):
            return splits
    raise ConfigError(
        f"cv is {cv!r}: give a number of folds (2 or more), a splitter of sklearn.model_selection, or a list of "
        "(train rows, test rows) pairs."
    )


def check_label(estimator: Any, label_column: Any) -> None:
    from sklearn.base import is_classifier, is_regressor

    if label_column is not None and not isinstance(label_column, str):
        raise ConfigError(
            f"label_column is {label_column!r}: give the name of one column. Several outputs go into one column of "
            "vectors; paceline.data.preprocessors.Concatenator makes such a column."
        )
    if label_column is None and (is_classifier(estimator) or is_regressor(estimator)):
        raise ConfigError(f"{type(estimator).__name__} learns to predict a column: name it with label_column=...")


def check_scoring(estimator: Any, scoring: Any) -> None:
    """Refuse what cannot score this estimator."""
    from sklearn import metrics

    known = metrics.get_scorer_names()
    for name in _names(scoring):
        if name not in known:
            raise ConfigError(f"scoring: scikit-learn has no scorer {name!r}{near_miss(name, known)}")
    try:
        metrics.check_scoring(estimator, scoring=scoring)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"scoring={scoring!r} does not work for {type(estimator).__name__}: {error}") from error


def _names(scoring: Any) -> list[str]:
    if isinstance(scoring, str):
        return [scoring]
    values = scoring.values() if isinstance(scoring, Mapping) else scoring
    return [each for each in values if isinstance(each, str)] if isinstance(values, Iterable) else []
