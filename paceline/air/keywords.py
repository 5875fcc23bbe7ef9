"""Misspelled keyword arguments, answered with the name that was probably meant.

One decorator does it for constructors, dataclasses, functions and class methods. It leaves the signature as it is, for
people, editors and type checkers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from paceline.air.checks import near_miss
from paceline.air.errors import UnknownArgumentError

C = TypeVar("C", bound=Callable[..., Any])


def names_what_was_meant(**meant: str) -> Callable[[C], C]:
    """Decorates a class or a function: an unknown keyword is answered with what was probably meant.

    `meant` has the answers for names that are right elsewhere; for others the nearest name is looked for. A function
    that takes `**keywords` decides itself, except that one of them may be a required argument misspelled.
    """

    def decorated(target: C) -> C:
        if not isinstance(target, type):
            return _checked(target, meant)
        target.__init__ = _checked(target.__init__, meant)  # type: ignore[misc]  # a decorator changes the class in place
        return target

    return decorated


def _checked(function: C, meant: Mapping[str, str]) -> C:
    parameters = list(inspect.signature(function).parameters.values())
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    required = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if takes_any:
            # Python would only say which required argument is missing, not that another is a misspelling of it.
            missing = [name for name in required if name not in keywords]
            unknown = [name for name in keywords if missing and name not in accepted]
            reject_misspelled(_name_of(function, arguments), unknown, missing)
        elif not keywords.keys() <= accepted:
            reject_unknown(_name_of(function, arguments), keywords, known, meant)
        return function(*arguments, **keywords)

    accepted = frozenset(known)
    return checked  # type: ignore[return-value]  # it has the signature of `function`, by functools.wraps


def reject_unknown(called: str, given: Iterable[str], known: Sequence[str], meant: Mapping[str, str]) -> None:
    """Raise for the first name that is not known."""
    known = [name for name in known if name not in ("self", "cls")]
    for name in given:
        if name not in known:
            answer = f": {meant[name]}" if name in meant else near_miss(name, known)
            raise UnknownArgumentError(f"{called} has no argument {name!r}{answer}")


def reject_misspelled(called: str, given: Iterable[str], meant: Sequence[str]) -> None:
    """Raise for the first name that looks like one of those in `meant`."""
    for name in given:
        answer = near_miss(name, meant)
        if "did you mean" in answer:
            raise UnknownArgumentError(f"{called} has no argument {name!r}{answer}")


def _name_of(function: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """How the user wrote the call."""
    if function.__name__ == "__init__":
        return f"{type(arguments[0]).__name__}()"
    if arguments and isinstance(arguments[0], type):  # a class method
        return f"{arguments[0].__name__}.{function.__name__}()"
    return f"{function.__name__}()"


def settings_of(config: type, written: str) -> dict[str, str]:
    """For `names_what_was_meant`: where the settings of another class belong.

    `written` has `{}` for the name, as in ``run_config=RunConfig({}=...)``.
    """
    return {field.name: f"write {written.format(field.name)}." for field in dataclasses.fields(config)}
