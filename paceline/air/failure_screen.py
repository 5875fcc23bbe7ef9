"""What Python prints when a script does not catch a failed training: one screen, with one traceback.

Python would print the driver's own frames first, all of which are ours, and then the message with the traceback of the
rank. IPython has its own way (notebook_traceback.py).
"""

from __future__ import annotations

import sys
from types import TracebackType

from paceline.air.errors import TrainingFailedError
from paceline.air.notebook_traceback import where_it_was_called


def use_one_screen() -> None:
    """From now on, in this process; unless somebody else has set a hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, TrainingFailedError) or error.root_cause is None or sys.stderr is None:
        sys.__excepthook__(kind, error, trace)
        return
    place = where_it_was_called(error)
    lines = [f"{TrainingFailedError.__name__}: {error}", *getattr(error, "__notes__", ()), *([place] if place else [])]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
