"""What ended a worker, put into words: exceptions on its own side, exits on the driver's.

Whatever the user's exception does (a `__str__` that raises, 200 MB in its arguments), its
type, message and traceback arrive as text and the text stays small.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from types import WrapperDescriptorType

from paceline.air.errors import CheckpointError, ConfigError, DataError, EngineLost, FailureKind, WorkerFailure
from paceline.air.failure_names import names_of_bases, qualified_name
from paceline.air.secrets import text_without_passwords
from paceline.air.words import counted

MAX_TEXT = 128 * 1024
MAX_MESSAGE = 2000
MAX_ARGUMENTS = 16 * 1024
ENGINE_LOST = f"{EngineLost.__module__}.{EngineLost.__qualname__}"
"""The `exception_type` of failures that say that the whole engine is gone."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = f"{os.sep}site-packages{os.sep}"
_TESTING = os.path.join(_PACKAGE, "testing") + os.sep
_NATIVE_STACK = re.compile(r"\n+Stack trace:\n(?: *\[bt\].*(?:\n|$))+\n*(?=\n|$)")


def is_own_file(path: str) -> bool:
    """True for code of this package. The loops of its testing kit stand for a user's."""
    return path.startswith(_PACKAGE) and not path.startswith(_TESTING)


def describe_exception(
    error: BaseException, rank: int, time_ns: int, kind: FailureKind = "exception", hint: str = ""
) -> WorkerFailure:
    """The failure that says what `error` says, as plain text."""
    cls = type(error)
    exit_code: int | None = None
    if isinstance(error, SystemExit) and kind == "exception":
        exit_code = _code_of(error)
        kind = "exit" if exit_code else "premature_exit"
        code = repr(error.code) if isinstance(error.code, str) else _safe_text(error.code)
        message = _shorten(f"the function called sys.exit({_encodable(code)})", MAX_MESSAGE)
    else:
        text = _message_of(error).strip()
        first_line = text.splitlines()[0] if text else ""
        message = _shorten(f"{cls.__name__}: {first_line}" if first_line else cls.__name__, MAX_MESSAGE)
    return WorkerFailure(
        rank=rank,
        kind=kind,
        message=message,
        time_ns=time_ns,
        exception_type=qualified_name(cls),
        exception_types=names_of_bases(cls),
        traceback=_traceback_of(error),
        exit_code=exit_code,
        hint=hint or _hint_for(error),
        arguments=_plain_arguments(error),
    )


def _hint_for(error: BaseException) -> str:
    """Advice where the message alone would send the user looking in the wrong place."""
    if _is_lack_of_memory(error):
        return _memory_hint()
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, (str, bytes)):
        return ""
    if os.path.isabs(error.filename) or _raised_in(error) == "subprocess":  # That one looks for a program.
        return ""
    try:
        here = f" (this one in {os.getcwd()})"
    except OSError:  # The directory was removed.
        here = ""
    return _encodable(
        f"The path is relative, and each worker runs in a directory of its own{here}. Use an absolute path."
    )


def _is_lack_of_memory(error: BaseException) -> bool:
    """Also what C++ code says of it; of a GPU's memory frameworks have more to say than we have."""
    if isinstance(error, MemoryError):
        return not _raised_by_user(error)
    text = _message_of(error).lower() if isinstance(error, RuntimeError) else ""
    return "std::bad_alloc" in text or "can't allocate memory" in text


SMALLER_BATCH = "Use a smaller batch or fewer workers."
HIGHER_LIMIT = "Raise the limit, or use a smaller batch."
MORE_MEMORY = "Use a smaller batch or fewer workers, or give the machine or container more memory."
"""What helps a process that needs more memory than there is."""


def with_memory_advice(failure: WorkerFailure, advice: str) -> WorkerFailure:
    """The failure of a rank that has run out of memory with better advice; any other one as it is."""
    usual = next((text for text in (SMALLER_BATCH, HIGHER_LIMIT, MORE_MEMORY) if failure.hint.endswith(text)), None)
    return failure if usual is None else replace(failure, hint=failure.hint.removesuffix(usual) + advice)


def _memory_hint() -> str:
    peak = _gigabytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return f"The process ran out of memory, after a peak of {peak}. {SMALLER_BATCH}"
    return (
        f"The process ran out of memory: its address space is limited to {_gigabytes(limit)} (RLIMIT_AS, `ulimit -v`), "
        f"and it had used up to {peak}. {HIGHER_LIMIT}"
    )


def _raised_in(error: BaseException) -> str:
    """The name of the module whose code raised it."""
    name = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return name


def _raised_by_user(error: BaseException) -> bool:
    """By a `raise` in the user's code, which may have set a limit of its own: then memory need not have run out."""
    import dis

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    is_raise = dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return is_raise and not _is_machinery(code.co_filename) and _LIBRARY not in code.co_filename


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _message_of(error: BaseException) -> str:
    size = _size_of_arguments(error)
    if size > MAX_TEXT:
        texts = [value for value in error.args if isinstance(value, str) and len(value) <= MAX_MESSAGE]
        return " ".join([*map(_safe_text, texts), f"(the exception's arguments hold {size:,} bytes, not shown)"])
    return _safe_text(error)


def _safe_text(value: object) -> str:
    try:
        return _encodable(_shorten(str(value), MAX_TEXT))
    except Exception as problem:
        return f"(the message cannot be shown: its __str__ raised {type(problem).__name__})"


def _size_of_arguments(error: BaseException) -> int:
    """Bytes in arguments whose text would be about as long as they are."""
    arguments = error.args if isinstance(error.args, tuple) else ()
    return sum(len(value) for value in arguments if isinstance(value, (str, bytes, bytearray, list, tuple, dict)))


def _traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, from the user's first frame to the user's last."""
    try:
        if _size_of_arguments(error) > MAX_TEXT:
            stack = traceback.extract_tb(error.__traceback__)
            _cut_own_ends(stack)
            lines = ["Traceback (most recent call last):\n", *stack.format()]
            lines.append(f"{type(error).__qualname__}: {_message_of(error)}\n")
        else:
            told = traceback.TracebackException.from_exception(error, compact=True)
            for part in _chain(told):
                _cut_own_ends(part.stack, says_all=_says_all(part))
            lines = list(told.format())
        return _encodable(_shorten(_without_native_stack("".join(lines)), MAX_TEXT))
    except Exception as problem:
        return f"(the traceback of {type(error).__qualname__} cannot be shown: {type(problem).__name__})"


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, what it came from, and the members of groups."""
    waiting = [told]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [other for other in (part.__cause__, part.__context__) if other is not None]
        waiting += part.exceptions or []


def _cut_own_ends(stack: traceback.StackSummary, says_all: bool = False) -> None:
    """Leave out the frames of ours above the user's first and below the user's last.

    Where a check of ours raises, the line to look at is the user's call. If there are only frames of ours, all of
    them stay, unless the message says all there is to say.
    """
    users = [position for position, frame in enumerate(stack) if not _is_machinery(frame.filename)]
    if users:
        stack[:] = stack[users[0] : users[-1] + 1]
    elif says_all or any(_is_booster(frame.filename) for frame in stack):
        stack[:] = []
    if any(_is_booster(frame.filename) for frame in stack):
        stack[:] = [frame for frame in stack if not _is_machinery(frame.filename)]


def _says_all(part: traceback.TracebackException) -> bool:
    """True for our own errors about the user's data and settings."""
    return part.exc_type is not None and issubclass(part.exc_type, ConfigError | DataError | CheckpointError)


def _is_machinery(path: str) -> bool:
    return is_own_file(path) or _is_booster(path)


def _is_booster(path: str) -> bool:
    """Code of XGBoost or LightGBM: it passes arguments on to C++, and has nothing to tell about a mistake in them."""
    return any(f"{os.sep}site-packages{os.sep}{name}{os.sep}" in path for name in ("xgboost", "lightgbm"))


def _without_native_stack(text: str) -> str:
    """XGBoost puts the C++ stack into its messages. Other exceptions may follow."""
    return _NATIVE_STACK.sub("\n", text)


def is_plain_import_error(kind: type[BaseException]) -> bool:
    """Whether it is an ImportError that is made as Python makes them: with a name and a path as keywords."""
    return issubclass(kind, ImportError) and isinstance(kind.__init__, WrapperDescriptorType)


def _plain_arguments(error: BaseException) -> tuple[object, ...] | None:
    """The exception's arguments, if each is a plain value and together they are small."""
    arguments = error.args
    if isinstance(error, OSError) and error.filename is not None and len(arguments) == 2:
        arguments = (*arguments, error.filename)  # Without it the rebuilt error would not name the file.
    if isinstance(error, ImportError) and is_plain_import_error(type(error)) and len(arguments) == 1:
        arguments = (*arguments, error.name, error.path)  # Keywords, which are not among the arguments.
    if not isinstance(arguments, tuple) or len(arguments) > 32:
        return None
    size = 0
    for value in arguments:
        if type(value) is str:
            if not _is_encodable(value):
                return None
            if text_without_passwords(value) != value:  # RemoteError stands in, with the text that can be shown
                return None
            size += len(value)
        elif type(value) is bytes:
            size += len(value)
        elif type(value) is int:
            if not -(2**63) <= value < 2**64:
                return None
        elif value is not None and type(value) not in (bool, float):
            return None
    return arguments if size <= MAX_ARGUMENTS else None


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} characters left out) ...\n{text[-half:]}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encodable(text: str) -> str:
    """Text that can be sent, and that is fit to be logged: a URI in a message may hold a password."""
    return text_without_passwords(text.encode("utf-8", "backslashreplace").decode())


NEARLY_ALL = 0.9
LARGE_SHARE = 0.1
"""Parts of the memory that a killed process must have had for its end to be taken for a lack of memory."""


def describe_exit(
    rank: int,
    code: int,
    max_rss: int = 0,
    *,
    memory_limit: int | None = None,
    out_of_memory_kills: int = 0,
    crash_text: str = "",
    log_path: str = "",
    time_ns: int | None = None,
) -> WorkerFailure:
    """The failure for a process that ended by itself before its task did.

    `code` is as `Popen.returncode` and `os.waitstatus_to_exitcode` give it: -9 if SIGKILL ended it. `max_rss` and
    `memory_limit` are bytes: they tell a lack of memory from any other kill. Without `time_ns` it ended now.
    """
    kind: FailureKind
    exit_code: int | None = None
    number: int | None = None
    hint = ""
    if code < 0:
        number = -code
        kind = "signal"
        message = f"the process was killed by {signal_name(number)} ({number})"
        if number == signal.SIGKILL and _memory_ran_out(max_rss, memory_limit, out_of_memory_kills):
            kind = "oom"
            limit = f" of {_gigabytes(memory_limit)}" if memory_limit else ""
            message += f"; peak memory {_gigabytes(max_rss)}{limit}: probably out of memory"
            hint = MORE_MEMORY
        elif number == signal.SIGKILL:
            hint = "Somebody killed it, or the system's out-of-memory killer; see dmesg."
            if out_of_memory_kills > 0:
                killed = counted(out_of_memory_kills, "process", "processes")
                hint = f"{killed} of its control group ran out of memory meanwhile. {hint}"
    else:
        exit_code = code
        if code == 0:
            kind = "premature_exit"
            message = "the process exited with code 0 before its function returned"
            hint = "Something called os._exit(0), or a library ended the process."
        else:
            kind = "exit"
            message = f"the process exited with code {exit_code}"
    return WorkerFailure(
        rank=rank,
        kind=kind,
        message=message,
        time_ns=time.monotonic_ns() if time_ns is None else time_ns,
        traceback=crash_text,
        exit_code=exit_code,
        signal=number,
        log_path=log_path,
        hint=hint,
    )


def _memory_ran_out(max_rss: int, memory_limit: int | None, out_of_memory_kills: int) -> bool:
    """Evident from the process itself, or because a large one is gone and the kernel counted one.

    The counter is of a whole control group: others may be in it, whose end says nothing about a small process.
    """
    if memory_limit is None:
        return False
    return max_rss >= (LARGE_SHARE if out_of_memory_kills > 0 else NEARLY_ALL) * memory_limit


def _gigabytes(size: int | None) -> str:
    return f"{(size or 0) / 2**30:.1f} GB"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
