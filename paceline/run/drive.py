"""The only loop: steps a run, or a search, to its end, and turns its ending into a return or an exception.

Ctrl-C, SIGTERM and SIGHUP: the first signal asks for a graceful stop, the second ends everything at once. While
workers are being started there is nothing to stop gracefully: the signal interrupts. SIGUSR1 announces a SIGTERM: it
asks for the same, as often as it comes. While a line is typed in the debugger, Ctrl-C is the debugger's.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from paceline.air.errors import interruption
from paceline.air.failure_screen import use_one_screen
from paceline.run.debug_terminal import desk
from paceline.run.shield import shield

if TYPE_CHECKING:
    from paceline.air.result import Result, Status
    from paceline.run.run import Run


_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
_ANNOUNCES_ANOTHER = getattr(signal, "SIGUSR1", None)


class Interruptible(Protocol):
    """What a signal needs to know of a run."""

    @property
    def starting(self) -> bool: ...

    def request_stop(self, signal_number: int) -> None: ...


class Driven(Interruptible, Protocol):
    """What the loop needs to know."""

    @property
    def stopped_by_signal(self) -> int | None: ...

    @property
    def done(self) -> bool: ...

    @property
    def result(self) -> Any:
        """What was reached, with its place as `path`; None while there is nothing."""

    def step(self) -> object: ...

    def break_off(self, status: Status, error: Exception | None = None) -> None: ...

    def close(self) -> None: ...


def drive(run: Run, raise_on_error: bool = True) -> Result:
    """Step a run to its end; the error, an interruption and a signal come out of here."""
    try:
        step_to_end(run)
    except Exception:  # of a callback, a stopper, the storage: not of a worker
        if raise_on_error or run.result is None or run.result.error is None:
            raise
    result = run.result
    assert result is not None
    if result.error is not None and raise_on_error:
        use_one_screen()
        raise result.error
    return result


def step_to_end(driven: Driven) -> None:
    """Step until it is done. Whatever ends it before is raised after everything that was started has ended."""
    try:
        with handled(driven):
            while not driven.done:
                driven.step()
    except KeyboardInterrupt:
        driven.break_off("interrupted")
        raise _interrupted(driven.result) from None
    except SystemExit:  # a second SIGTERM, or sys.exit() in a callback
        driven.break_off("interrupted")
        raise
    except Exception as error:
        driven.break_off("failed", error)
        raise
    finally:
        driven.close()
    if driven.stopped_by_signal == signal.SIGINT:
        raise _interrupted(driven.result)
    if driven.stopped_by_signal is not None:
        end = SystemExit(_exit_code(driven.stopped_by_signal))
        end.result = driven.result  # type: ignore[attr-defined]
        raise end


def _exit_code(number: int) -> int:
    """That of a process which the signal ends; SIGUSR1 stands for the SIGTERM that would follow."""
    return 128 + (signal.SIGTERM if number == _ANNOUNCES_ANOTHER else number)


def _interrupted(result: Any) -> KeyboardInterrupt:
    reached = f"; what was reached is in {result.path}" if result is not None else ""
    how = getattr(result, "how_to_continue", "")  # a search says it when it ends
    return interruption(f"training was interrupted{reached}{how and f'{chr(10)}To continue: {how}'}", result)


def _only_exits(handler: object) -> bool:
    """Whether it is the one that ray.init() sets for SIGTERM, in the place of the system's."""
    return str(getattr(handler, "__module__", "")).startswith("ray._private.")


@contextmanager
def handled(run: Interruptible) -> Iterator[None]:
    """Route signals to the run. Only the main thread may do this; elsewhere signals stay as they are.

    A signal that is ignored (SIGHUP under nohup) stays ignored, and handlers of the user's
    own for SIGTERM, SIGHUP or SIGUSR1 are left in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if number == signal.SIGINT and desk.interrupted():
            return
        received += number != _ANNOUNCES_ANOTHER
        if run.starting or received > 1:
            shield.interrupt(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(_exit_code(number)))
        elif received == 0 or number != _ANNOUNCES_ANOTHER:
            run.request_stop(number)

    previous = {}
    for number in _SIGNALS:
        current = signal.getsignal(number)
        if current in (signal.SIG_DFL, signal.default_int_handler) or _only_exits(current):
            previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
