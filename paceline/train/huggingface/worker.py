"""What a worker does so that Accelerate begins anew in it, with the run's settings, and to leave no trace of that.

A worker may share its process with the driver, and with runs before and after it. The engine then puts the variables
back; what Accelerate remembers is put back here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.run.backend import WorkerState


@dataclass
class Before(WorkerState):
    """Accelerate's states as they were, while a run is on."""

    states: list[dict[str, Any]] = field(default_factory=list)

    def close(self) -> None:
        for state, content in zip(_states(), self.states, strict=False):  # none were kept where nothing was entered
            state.clear()
            state.update(content)


def enter(variables: Mapping[str, str]) -> None:
    """Set the variables, and have Accelerate forget an Accelerator that this process made earlier."""
    import torch

    Before.end()  # a run in this same process that could not be ended did not get to
    # Without this one Accelerate chooses a number of threads itself.
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    os.environ.update(variables)
    Before.here().states = [dict(state) for state in _states()]
    for state in _states():
        state.clear()


def leave() -> None:
    """Put the states back."""
    Before.end()


def _states() -> list[dict[str, Any]]:
    """What Accelerate knows of this process: shared by all Accelerators in it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return [AcceleratorState._shared_state, PartialState._shared_state, GradientState._shared_state]
