"""What a worker does so that Accelerate begins anew in it, with the run's settings, and to leave no trace of that.

A worker may share its process with the driver, and with runs before and after it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_PREFIXES = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")
"""Variables that an Accelerator reads; it sets some of them itself."""
_before: tuple[dict[str, str | None], list[dict[str, Any]]] | None = None
"""Variables and Accelerate's states as they were, while a run is on."""


def enter(variables: Mapping[str, str]) -> None:
    """Set the variables, and have Accelerate forget an Accelerator that this process made earlier."""
    global _before
    import torch

    leave()  # a failed run in this same process did not get to
    # Without this one Accelerator chooses a number of threads itself.
    wanted = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(torch.get_num_threads())), **variables}
    own = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    _before = ({**own, **{name: os.environ.get(name) for name in wanted}}, [dict(state) for state in _states()])
    os.environ.update(wanted)
    for state in _states():
        state.clear()


def leave() -> None:
    """Put variables and states back."""
    global _before
    if _before is None:
        return
    variables, states = _before
    _before = None
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        del os.environ[name]
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for state, content in zip(_states(), states, strict=True):
        state.clear()
        state.update(content)


def _states() -> list[dict[str, Any]]:
    """What Accelerate knows of this process: shared by all Accelerators in it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return [AcceleratorState._shared_state, PartialState._shared_state, GradientState._shared_state]
