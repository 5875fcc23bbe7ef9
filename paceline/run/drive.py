"""The only loop around a run: steps it to its end, and turns its ending into a return or an exception."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from paceline.air.errors import interruption
from paceline.run import interrupts

if TYPE_CHECKING:
    from paceline.air.result import Result
    from paceline.run.run import Run


def drive(run: Run, raise_on_error: bool = True) -> Result:
    """Step a run to its end; the error, an interruption and a signal come out of here."""
    try:
        with interrupts.handled(run):
            while not run.done:
                run.step()
    except KeyboardInterrupt:
        run.break_off("interrupted")
        reached = f"; what was reached is in {run.result.path}" if run.result is not None else ""
        raise interruption(f"training was interrupted{reached}", run.result) from None
    except SystemExit:  # a second SIGTERM, or sys.exit() in a callback
        run.break_off("interrupted")
        raise
    except Exception as error:  # of a callback, a stopper, the storage: not of a worker
        run.break_off("failed", error)
        if raise_on_error or run.result is None or run.result.error is None:
            raise
    finally:
        run.close()
    result = run.result
    assert result is not None
    if run.stopped_by_signal == signal.SIGINT:
        raise interruption(f"training was interrupted; what was reached is in {result.path}", result)
    if run.stopped_by_signal is not None:
        raise SystemExit(128 + run.stopped_by_signal)
    if result.error is not None and raise_on_error:
        raise result.error
    return result
