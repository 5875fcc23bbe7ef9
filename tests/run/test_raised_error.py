"""The exception that fit() raises: its cause, and of which types it is."""

from __future__ import annotations

import abc
import copy
import pickle
from dataclasses import dataclass

import pytest

from paceline.air.errors import (
    AttemptFailure,
    DataError,
    FailureKind,
    HangError,
    RemoteError,
    ReportMismatchError,
    StorageError,
    TrainingFailedError,
    WorkerDiedError,
    WorkerFailure,
)
from paceline.engine.failures import describe_exception
from paceline.run.raised_error import cause_exception, training_failed


class OwnError(Exception):
    """An exception class of the user's."""


class DemandingError(Exception):
    """One that cannot be built from what it stores."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class FarewellError(BaseException):
    """Not an Exception: raising it from fit() would go past the user's handlers."""


class CodedError(ValueError):
    """One with attributes and texts of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"

    def __reduce__(self) -> str:
        raise TypeError("not to be pickled")


class LocatedError(Exception):
    """One whose attributes have the names of ours."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.rank = self.step = self.traceback = self.cause = self.result = "the user's"
        self.file = "data.csv"


@dataclass
class ComparedError(Exception):
    """A dataclass has no hash."""

    value: int


class AbstractError(Exception, abc.ABC):
    """Of another metaclass."""


class ChildlessError(Exception):
    """Allows no class derived from it."""

    def __init_subclass__(cls) -> None:
        raise TypeError("this class is final")


class RuntimesOwnError(RuntimeError):
    """Comes before RuntimeError among the bases, with an `__init__` that wants something else."""

    def __init__(self, first: int) -> None:
        super().__init__(first)


def raised(exception_type: str, *arguments: object) -> WorkerFailure:
    return WorkerFailure(0, "exception", "as text", exception_type=exception_type, arguments=arguments)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (raised("builtins.ValueError", "bad", 3), ValueError("bad", 3)),
        (raised("ValueError", "bad"), ValueError("bad")),
        (raised(f"{__name__}.OwnError", "mine"), OwnError("mine")),
    ],
)
def test_the_users_exception_is_built_again(what: WorkerFailure, expected: Exception) -> None:
    rebuilt = cause_exception(what)
    assert type(rebuilt) is type(expected)
    assert isinstance(rebuilt, Exception)
    assert rebuilt.args == expected.args


@pytest.mark.parametrize(
    "what",
    [
        raised("module_that_is_not_loaded.OwnError", "x"),
        raised(f"{__name__}.NoSuchError", "x"),
        raised(f"{__name__}.DemandingError", "1 and 2"),
        raised(f"{__name__}.FarewellError", "x"),
        raised("builtins.print", "x"),
        raised("builtins.SystemExit", "x"),
        WorkerFailure(0, "exception", "as text", exception_type="builtins.ValueError", arguments=None),
    ],
)
def test_otherwise_a_stand_in_carries_the_text(what: WorkerFailure) -> None:
    stand_in = cause_exception(what)
    assert type(stand_in) is RemoteError
    assert str(stand_in) == "as text"
    assert stand_in.failure is what


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hang", HangError),
        ("unresponsive", HangError),
        ("report_mismatch", ReportMismatchError),
        ("storage", StorageError),
        ("exit", WorkerDiedError),
        ("premature_exit", WorkerDiedError),
        ("signal", WorkerDiedError),
        ("oom", WorkerDiedError),
        ("startup", WorkerDiedError),
        ("engine", WorkerDiedError),
    ],
)
def test_other_kinds_have_classes_of_their_own(kind: FailureKind, expected: type[Exception]) -> None:
    assert type(cause_exception(WorkerFailure(1, kind, "it broke"))) is expected


def error_of(what: WorkerFailure) -> TrainingFailedError:
    return training_failed("Training failed: it broke", [AttemptFailure(0, what)])


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (raised("builtins.ValueError", "bad"), ValueError),
        (raised("builtins.KeyError", "price"), KeyError),
        (raised("builtins.ZeroDivisionError", "division by zero"), ArithmeticError),
        (raised("builtins.ImportError", "no module"), ImportError),
        (raised("builtins.AttributeError", "no attribute"), AttributeError),
        (raised("builtins.UnicodeDecodeError", "utf-8", b"x", 0, 1, "bad"), UnicodeError),
        (raised("paceline.air.errors.DataError", "bad rows"), DataError),
        (raised(f"{__name__}.OwnError", "mine"), OwnError),
        (raised(f"{__name__}.CodedError", 7), CodedError),
        (raised(f"{__name__}.ComparedError", 7), ComparedError),
        (raised(f"{__name__}.AbstractError", "x"), AbstractError),
        (raised(f"{__name__}.RuntimesOwnError", 7), RuntimesOwnError),
    ],
)
def test_the_error_is_also_of_the_users_type(what: WorkerFailure, kind: type[Exception]) -> None:
    error = error_of(what)
    with pytest.raises(kind, match="Training failed: it broke") as caught:
        raise error
    assert isinstance(error, TrainingFailedError)
    assert type(error.cause) is type(cause_exception(what))
    assert caught.value is error
    assert (type(error).__name__, type(error).__module__) == ("TrainingFailedError", TrainingFailedError.__module__)
    assert str(error) == "Training failed: it broke"
    assert repr(error) == "TrainingFailedError('Training failed: it broke')"
    assert (error.root_cause, error.rank, {error: 1}[error]) == (what, 0, 1)


def test_a_handler_finds_the_attributes_of_the_users_exception() -> None:
    with pytest.raises(CodedError) as caught:
        raise error_of(raised(f"{__name__}.CodedError", 7))
    assert caught.value.code == 7


@pytest.mark.parametrize(
    "what",
    [
        raised("builtins.OSError", 2, "no such file"),
        raised("builtins.FileNotFoundError", 2, "no such file"),
        raised("builtins.StopIteration", "x"),
        raised("builtins.SyntaxError", "x"),
        raised("builtins.SystemExit", 3),
        raised("builtins.RuntimeError", "x"),
        raised("not.loaded.Error", "x"),
        raised(f"{__name__}.ChildlessError", "x"),
        WorkerFailure(0, "signal", "killed", signal=9),
    ],
)
def test_what_cannot_or_need_not_be_a_type_of_the_error_is_its_cause_only(what: WorkerFailure) -> None:
    error = error_of(what)
    assert type(error) is TrainingFailedError
    assert type(error.cause) is type(cause_exception(what))


class SlottedError(ValueError):
    __slots__ = ("code", "empty", "result")

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code, self.result = code, "the user's"


def test_a_handler_finds_what_is_not_in_a_dict() -> None:
    """What classes in C and slots hold."""
    with pytest.raises(UnicodeDecodeError) as undecoded:
        raise error_of(raised("builtins.UnicodeDecodeError", "utf-8", b"x", 0, 1, "bad"))
    found = undecoded.value
    assert (found.encoding, found.object, found.start, found.end, found.reason) == ("utf-8", b"x", 0, 1, "bad")
    with pytest.raises(SlottedError) as slotted:
        raise error_of(raised(f"{__name__}.SlottedError", 7))
    assert (slotted.value.code, slotted.value.result) == (7, None)


def test_a_handler_finds_the_module_that_is_missing() -> None:
    try:
        import nothing_of_this_name  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        what = describe_exception(error, 0, 0)
    error = error_of(what)
    assert isinstance(error, ModuleNotFoundError)
    assert isinstance(error.cause, ModuleNotFoundError)
    assert error.name == error.cause.name == "nothing_of_this_name"
    assert str(error.cause) == "No module named 'nothing_of_this_name'"


@pytest.mark.parametrize("name", ["builtins.KeyError", f"{__name__}.CodedError"])
def test_it_pickles_as_the_plain_class(name: str) -> None:
    error = error_of(raised(name, 7))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is TrainingFailedError
    assert (str(again), again.failures, again.rank) == (str(error), error.failures, 0)


def test_attributes_with_the_names_of_ours_are_those_of_the_cause() -> None:
    error = error_of(raised(f"{__name__}.LocatedError", "m"))
    assert isinstance(error, LocatedError)
    for each in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (each.rank, each.traceback, each.result) == (0, "", None)
        assert vars(each)["file"] == "data.csv"
    assert isinstance(error.cause, LocatedError)
    assert error.cause.step == "the user's"


def test_where_it_happened() -> None:
    what = WorkerFailure(3, "exception", "it broke", traceback="Traceback ...", step=7)
    error = error_of(what)
    assert (error.rank, error.step, error.traceback) == (3, 7, "Traceback ...")
    bare = TrainingFailedError("of a run that was read back")
    assert (bare.rank, bare.step, bare.traceback, bare.cause) == (None, None, "", None)
