"""What ended a worker, put into words: exceptions on its own side, exits on the driver's.

Whatever the user's exception does (a `__str__` that raises, 200 MB in its arguments), its
type, message and traceback arrive as text and the text stays small.
"""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from types import TracebackType

from paceline.air.errors import FailureKind, WorkerFailure

MAX_TEXT = 128 * 1024
MAX_MESSAGE = 2000
MAX_ARGUMENTS = 16 * 1024
_PACKAGE = Path(__file__).resolve().parents[1]
_OWN_FOLDERS = (str(_PACKAGE / "engine") + os.sep, str(_PACKAGE / "run") + os.sep)


def describe_exception(
    error: BaseException, rank: int, time_ns: int, kind: FailureKind = "exception", hint: str = ""
) -> WorkerFailure:
    """The failure that says what `error` says, as plain text."""
    cls = type(error)
    exit_code: int | None = None
    if isinstance(error, SystemExit) and kind == "exception":
        exit_code = _code_of(error)
        kind = "exit" if exit_code else "premature_exit"
        message = f"the function called sys.exit({_safe_text(error.code)})"
    else:
        text = _message_of(error).strip()
        first_line = text.splitlines()[0] if text else ""
        message = _shorten(f"{cls.__name__}: {first_line}" if first_line else cls.__name__, MAX_MESSAGE)
    return WorkerFailure(
        rank=rank,
        kind=kind,
        message=message,
        time_ns=time_ns,
        exception_type=f"{cls.__module__}.{cls.__qualname__}",
        traceback=_traceback_of(error),
        exit_code=exit_code,
        hint=hint,
        arguments=_plain_arguments(error),
    )


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
    """The traceback as Python prints it, beginning at the user's own frames."""
    try:
        user_part = error.with_traceback(_skip_own_frames(error.__traceback__))
        if _size_of_arguments(error) > MAX_TEXT:
            lines = ["Traceback (most recent call last):\n", *traceback.format_tb(user_part.__traceback__)]
            lines.append(f"{type(error).__qualname__}: {_message_of(error)}\n")
        else:
            lines = traceback.format_exception(user_part)
        return _encodable(_shorten("".join(lines), MAX_TEXT))
    except Exception as problem:
        return f"(the traceback of {type(error).__qualname__} cannot be shown: {type(problem).__name__})"


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of ours above the user's first one; all stay if there are only ours."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        frame = frame.tb_next
    return frame if frame is not None else trace


def _plain_arguments(error: BaseException) -> tuple[object, ...] | None:
    """The exception's arguments, if each is a plain value and together they are small."""
    arguments = error.args
    if isinstance(error, OSError) and error.filename is not None and len(arguments) == 2:
        arguments = (*arguments, error.filename)  # Without it the rebuilt error would not name the file.
    if not isinstance(arguments, tuple) or len(arguments) > 32:
        return None
    size = 0
    for value in arguments:
        if type(value) is str:
            if not _is_encodable(value):
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
    return text.encode("utf-8", "backslashreplace").decode()


def describe_exit(
    rank: int,
    status: int,
    max_rss: int,
    *,
    memory_limit: int | None,
    out_of_memory_kills: int,
    crash_text: str,
    log_path: str,
    time_ns: int,
) -> WorkerFailure:
    """The failure for a process that ended by itself before its task did; `status` as wait() gives it."""
    kind: FailureKind
    exit_code: int | None = None
    number: int | None = None
    hint = ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        kind = "signal"
        message = f"the process was killed by {signal_name(number)} ({number})"
        if number == signal.SIGKILL and _memory_ran_out(max_rss, memory_limit, out_of_memory_kills):
            kind = "oom"
            limit = f" of {_gigabytes(memory_limit)}" if memory_limit else ""
            message += f"; peak memory {_gigabytes(max_rss)}{limit}: probably out of memory"
            hint = "Use a smaller batch or fewer workers, or give the machine or container more memory."
    else:
        exit_code = os.waitstatus_to_exitcode(status)
        if exit_code == 0:
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
        time_ns=time_ns,
        traceback=crash_text,
        exit_code=exit_code,
        signal=number,
        log_path=log_path,
        hint=hint,
    )


def _memory_ran_out(max_rss: int, memory_limit: int | None, out_of_memory_kills: int) -> bool:
    return out_of_memory_kills > 0 or (memory_limit is not None and max_rss >= 0.9 * memory_limit)


def _gigabytes(size: int | None) -> str:
    return f"{(size or 0) / 2**30:.1f} GB"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
