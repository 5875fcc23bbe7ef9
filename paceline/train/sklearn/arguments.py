"""The arguments of SklearnTrainer, checked where they are written."""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError, UnknownArgumentError

if TYPE_CHECKING:
    from paceline.train.sklearn.features import FeatureRows


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
    try:
        return copied.set_params(**dict(params or {}))
    except ValueError as error:
        known = list(copied.get_params())
        unknown = [name for name in params or {} if name not in known]
        reason = f"has no parameter {unknown[0]!r}{near_miss(unknown[0], known)}" if unknown else f"refuses: {error}"
        raise ConfigError(f"params: {type(estimator).__name__} {reason}") from error


def check_fit_params(estimator: Any, given: Mapping[str, Any], own_arguments: Collection[str], cv: Any) -> None:
    """Refuse what is no parameter of the estimator's fit: it is likely a slip of the trainer's own arguments."""
    name_of_fit = f"{type(estimator).__name__}.fit()"
    if "resume_from_checkpoint" in given:
        raise ConfigError("SklearnTrainer takes no resume_from_checkpoint: scikit-learn fits in one go. Leave it out.")
    if "groups" in given and cv is None and not fits_by_groups(estimator):
        raise ConfigError(f"groups= is for cross-validation: give cv= as well ({name_of_fit} makes no use of groups).")
    parameters = inspect.signature(type(estimator).fit).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in given:
        if name in parameters or name == "groups" or (takes_any and "__" in name):
            continue
        advice = near_miss(name, [*own_arguments, *(each for each in parameters if each not in ("self", "X", "y"))])
        slip = advice.startswith(": did")
        if slip or not takes_any:
            raise UnknownArgumentError(
                f"SklearnTrainer() has no argument {name!r}, and {name_of_fit} takes no such parameter"
                f"{advice if slip else '.'}"
            )


def fits_by_groups(estimator: Any) -> bool:
    """True for estimators that split rows by groups themselves, such as GridSearchCV."""
    named = "groups" in inspect.signature(type(estimator).fit).parameters
    return named or any(base.__name__ in ("BaseSearchCV", "RFECV") for base in type(estimator).__mro__)


def checked_cv(cv: Any) -> Any:
    """What may go to the worker: None, a number of folds, a splitter, or a list of splits."""
    if isinstance(cv, type):
        raise ConfigError(f"cv is the class {cv.__name__}: give an object of it, {cv.__name__}().")
    if cv is None or (hasattr(cv, "split") and not isinstance(cv, str)):
        return cv
    if isinstance(cv, Integral) and int(cv) > 1:
        return int(cv)
    if isinstance(cv, Iterable) and not isinstance(cv, str | Mapping):
        splits = list(cv)  # a generator could not travel
        if splits and all(isinstance(split, tuple | list) and len(split) == 2 for split in splits):
            return splits
    raise ConfigError(
        f"cv is {cv!r}: give a number of folds (2 or more), a splitter of sklearn.model_selection, or a list of "
        "(train rows, test rows) pairs."
    )


def check_label(estimator: Any, label_column: Any) -> None:
    from sklearn.base import BaseEstimator, is_classifier, is_regressor

    if label_column is not None and not isinstance(label_column, str):
        raise ConfigError(
            f"label_column is {label_column!r}: give the name of one column. Several outputs go into one column of "
            "vectors; paceline.data.preprocessors.Concatenator makes such a column."
        )
    says_what_it_is = isinstance(estimator, BaseEstimator)
    if label_column is None and says_what_it_is and (is_classifier(estimator) or is_regressor(estimator)):
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


# -- scores ----------------------------------------------------------------------------------------


def scores(estimator: Any, scoring: Any, rows: FeatureRows) -> dict[str, float]:
    """`test_score`, or `test_<name>` of each of several scorers, and how long it took."""
    from sklearn import metrics

    started = time.perf_counter()
    scorer = metrics.check_scoring(estimator, scoring=scoring)
    labels = () if rows.labels is None else (rows.labels,)
    value = scorer(estimator, rows.features, *labels)
    taken = time.perf_counter() - started
    several = value if isinstance(value, Mapping) else {"score": value}
    return {**{f"test_{name}": float(each) for name, each in several.items()}, "score_time": taken}


def cross_validation(
    estimator: Any,
    rows: FeatureRows,
    *,
    cv: Any,
    scoring: Any,
    fit_params: Mapping[str, Any],
    groups: Any,
    return_train_score: bool,
    jobs: int | None,
) -> dict[str, Any]:
    """The lists of scikit-learn's cross_validate, one value per fold, and `_mean` and `_std` of each.

    A fold that fails is an error: a score of NaN would hide it.
    """
    import sklearn
    from sklearn.model_selection import cross_validate

    params = dict(fit_params)
    if groups is not None and sklearn.get_config()["enable_metadata_routing"]:
        params["groups"], groups = groups, None
    found = cross_validate(
        estimator,
        rows.features,
        rows.labels,
        groups=groups,
        scoring=scoring,
        cv=cv,
        n_jobs=jobs,
        params=params or None,
        return_train_score=return_train_score,
        error_score="raise",
    )
    table: dict[str, Any] = {}
    for name, values in found.items():
        table[name] = [float(value) for value in values]
        table[f"{name}_mean"] = float(values.mean())
        table[f"{name}_std"] = float(values.std())
    return table
