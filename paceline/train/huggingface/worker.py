"""What a worker does so that Accelerate begins anew in it, with the run's settings, and to leave no trace of that.

A worker may share its process with the driver, and with runs before and after it. The engine then puts the variables
back; what Accelerate remembers is put back here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_before: list[dict[str, Any]] | None = None
"""Accelerate's states as they were, while a run is on."""


def enter(variables: Mapping[str, str]) -> None:
    """Set the variables, and have Accelerate forget an Accelerator that this process made earlier."""
    global _before
    import torch

    leave()  # a run in this same process that could not be ended did not get to
    # Without this one Accelerate chooses a number of threads itself.
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    os.environ.update(variables)
    _before = [dict(state) for state in _states()]
    for state in _states():
        state.clear()


def leave() -> None:
    """Put the states back."""
    global _before
    if _before is None:
        return
    for state, content in zip(_states(), _before, strict=True):
        state.clear()
        state.update(content)
    _before = None


def _states() -> list[dict[str, Any]]:
    """What Accelerate knows of this process: shared by all Accelerators in it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return [AcceleratorState._shared_state, PartialState._shared_state, GradientState._shared_state]
