"""The keywords of `predict`, checked before any row is read: libraries notice a slip late, or never."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paceline.air.checks import near_miss, warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.train.predictor import Predictor

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
