"""What configs and functions share: small checks, each of which refuses with ConfigError and says what to write.

`names_what_was_meant` answers a misspelled keyword with the name that was probably meant. It leaves the signature as it
is, for people, editors and type checkers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from paceline.air.constants import EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE
from paceline.air.errors import ConfigError, UnknownArgumentError
from paceline.air.metrics import flattened

T = TypeVar("T")

_LONGEST_SHOWN = 100
_PLAIN = (str, bytes, int, float, list, tuple, set, frozenset, type(None))


def is_search_space(value: Any) -> bool:
    """True for a domain to sample from, or a grid: such a field is checked after sampling."""
    if isinstance(value, dict):
        return set(value) == {"grid_search"}
    return not isinstance(value, _PLAIN) and callable(getattr(value, "sample", None))


def whole_number(value: Any, name: str, *, least: int, most: int | None = None, advice: str = "") -> int:
    """`value` as an int. Truth values, text and fractions are refused: they are slips."""
    allowed = f"from {least} to {most}" if most is not None else f"of {least} or more"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r}: give a whole number {allowed}. {advice}".rstrip()) from None
    if number < least or (most is not None and number > most):
        raise ConfigError(f"{name} is {number}: give a whole number {allowed}. {advice}".rstrip())
    return number


def is_number(value: Any) -> bool:
    """True for a finite real number; a truth value is not taken for one."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def check_bool(value: Any, name: str, advice: str = "") -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: use True or False. {advice}".rstrip())


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(repr(choice) for choice in choices)}.")


def check_seconds(value: Any, name: str, *, none_means: str = "", zero_allowed: bool = False, words: str = "") -> None:
    """`words` come before "a number of seconds" in the advice."""
    if value is None and none_means:
        return
    if not is_number(value) or value < 0 or (value == 0 and not zero_allowed):
        otherwise = f" None means: {none_means}." if none_means else ""
        raise ConfigError(f"{name} is {value!r}: give {words}a number of seconds above 0.{otherwise}")


def check_share(value: Any, name: str) -> float:
    """A part of the whole, without none and all of it."""
    if not is_number(value) or not 0 < value < 1:
        raise ConfigError(f"{name} is {value!r}: give a number between 0 and 1, such as 0.03 for 3 %.")
    return float(value)


def check_kind(value: Any, kind: type[T], name: str) -> T | None:
    """`value` if it is None or of that class; a dict or the class itself is answered with what to write."""
    if value is None or isinstance(value, kind):
        return value
    called = kind.__name__
    if isinstance(value, Mapping):
        shown = repr(value) if len(repr(value)) <= _LONGEST_SHOWN else "{...}"
        raise ConfigError(f"{name} is a dict, not a {called}: write {name}={called}(**{shown}).")
    if value is kind:
        raise ConfigError(f"{name} is the class {called}: make an object of it, {name}={called}(...).")
    raise ConfigError(f"{name} must be a {called}, not {type(value).__name__}: {value!r}.")


def near_miss(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all there are."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f": did you mean {near[0]}?"
    public = [each for each in known if not each.startswith("_")]
    return f"; there are: {', '.join(public)}." if public else "; there are none."


def warn_at_users_line(message: str) -> None:
    """A warning that points at the line outside of this package that led to it."""
    level, frame = 2, sys._getframe(1)
    while str(frame.f_globals.get("__name__", "")).startswith("paceline.") and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class ShortRepr:
    """A dataclass that derives from this and sets ``repr=False`` shows the fields that were set."""

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # only its subclasses are dataclasses
            if field.repr and not _is_default(getattr(self, field.name), field)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        return type(value) is type(default) and bool(value == default)
    return value is field.default or (type(value) is type(field.default) and bool(value == field.default))


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


# -- calls of methods that users write, by the names of the arguments ------------------------------
# So `on_trial_result(self, **info)` and `on_step_end(self, trials, **info)` work. A method whose author has given the
# arguments names of their own still gets them in their order.


Call = Callable[[Mapping[str, Any]], Any]
"""Takes the arguments by name, in their order."""


def keyword_call(method: Callable[..., Any], names: Sequence[str], least: int | None = None) -> Call:
    """How to call `method` with arguments of these names.

    Only the first `least` of them must be taken: the others are left out, from the last on, where the method has no
    place for them. Raises ConfigError if no call fits.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # some callables of extension modules do not say
        return lambda arguments: method(**arguments)
    fewest = len(names) if least is None else least
    for count in range(len(names), fewest - 1, -1):
        chosen = names[:count]
        if _binds(signature, (), chosen):
            return lambda arguments: method(**{name: arguments[name] for name in chosen})
        if _keeps_order(signature, chosen) and _binds(signature, chosen, ()):
            return lambda arguments: method(*(arguments[name] for name in chosen))
    shown = getattr(method, "__qualname__", repr(method))
    raise ConfigError(
        f"{shown}{signature} is called with {', '.join(f'{name}=...' for name in names)}. Write "
        f"`def {getattr(method, '__name__', 'f')}(self, {', '.join(names)}, **info)`; **info alone takes what you do "
        "not name."
    )


def _binds(signature: inspect.Signature, positional: Sequence[str], keywords: Sequence[str]) -> bool:
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def _keeps_order(signature: inspect.Signature, names: Sequence[str]) -> bool:
    """Whether every name that the method shares with `names` stands in the same place: else order misleads."""
    return all(
        name not in names or (place < len(names) and names[place] == name)
        for place, name in enumerate(signature.parameters)
    )


MAX_NAME_BYTES = 128
_UNFIT = {"Cc": "control character", "Cs": "lone surrogate", "Zl": "line separator", "Zp": "paragraph separator"}
"""Unicode categories of what breaks lines of a log, or cannot be written as UTF-8."""
_OWN_FILES = frozenset(
    [EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, "lock", "logs", "origin"]
)

_OWN_NAMES = re.compile(r"\..*|.*\.jsonl|(checkpoint|rank)_\d+")
"""Hidden files, journals, and directories of checkpoints and workers."""


def safe_name(name: str, what: str) -> str:
    """Return `name` in its composed Unicode form, or raise ConfigError with the reason why it cannot be a directory.

    Composing first makes two spellings of the same text the same directory.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what} must be a string, not {type(name).__name__}: {name!r}")
    composed = unicodedata.normalize("NFC", name)
    reason = _objection(composed)
    if reason:
        raise ConfigError(
            f"{what} {_shortened(name)} {reason}. It becomes a directory name: use 1 to {MAX_NAME_BYTES} bytes of any "
            "characters except '/' and control characters, not starting with '.'."
        )
    return composed


def _objection(name: str) -> str:
    if not name:
        return "is empty"
    for character in name:
        if character == "/":
            return "contains '/'"
        if kind := _UNFIT.get(unicodedata.category(character)):
            return f"contains the {kind} {character!r}"
    if name.startswith("."):
        return "starts with '.', which hides a directory or means another one"
    length = len(name.encode())
    return f"is {length} bytes long" if length > MAX_NAME_BYTES else ""


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= 60 else repr(name[:60]) + "..."


def output_files(given: Any) -> tuple[str, str] | None:
    """The files that `log_to_file` asks for: for standard output and for standard error; None: it asks for none."""
    if given is None or given is False:
        return None
    names = ["stdout", "stderr"] if given is True else [given, given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or len(names) != 2 or not all(map(_is_file_name, names)):
        raise ConfigError(
            f"log_to_file is {given!r}: give True, a file name such as 'output.log', or a pair such as ('out', 'err'). "
            "The files are in the trial directory, so they have no path."
        )
    for name in names:
        if name in _OWN_FILES or _OWN_NAMES.fullmatch(name):
            raise ConfigError(f"log_to_file is {given!r}: {name!r} is a file of the run itself. Choose another name.")
    return (names[0], names[1])


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def check_stop(stop: Any) -> None:
    """Reject what cannot be a stop criterion."""
    if stop is None:
        return
    if isinstance(stop, Mapping):
        for metric, threshold in flattened(stop).items():
            if not isinstance(metric, str) or not (is_number(threshold) or isinstance(threshold, bool)):
                raise ConfigError(f"stop has the item {metric!r}: {threshold!r}. Use metric names and numbers.")
        return
    if isinstance(stop, type):
        raise ConfigError(f"stop is the class {stop.__name__}: make an object of it with (...).")
    if not callable(stop):
        raise ConfigError(
            f"stop is {stop!r}: use a dict such as {{'training_iteration': 10}}, a function of (trial_id, result), "
            "or a Stopper (several of them: CombinedStopper)."
        )
    try:
        signature = inspect.signature(stop)
    except ValueError:  # some callables of extension modules do not tell
        return
    try:
        signature.bind("trial_id", {})
    except TypeError:
        raise ConfigError(f"stop is called with (trial_id, result), but it takes {signature}.") from None


ENGINES = ("local", "inline", "ray")
"""Those of paceline itself."""


def check_engine(engine: Any, source: str = "engine") -> None:
    """For a setting that takes the name of an engine, an Engine, or None."""
    if engine is None or (isinstance(engine, str) and engine in ENGINES):
        return
    if isinstance(engine, type):
        name = engine.__name__
        raise ConfigError(f"{source} is the class {name}: pass an object, engine={name}()")
    from paceline.air.plugins import plugin, plugin_names

    if isinstance(engine, str):
        is_known = engine != "" and plugin("engines", engine) is not None
    else:
        is_known = callable(getattr(engine, "start_group", None))
    if not is_known:
        names = ", ".join(repr(name) for name in [*ENGINES, *plugin_names("engines")])
        raise ConfigError(f"{source} is {engine!r}: pass an Engine object, or use one of {names}.")
