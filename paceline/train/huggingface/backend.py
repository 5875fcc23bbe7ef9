"""HuggingFaceBackend: a process group of PyTorch, in whose workers Accelerate begins anew with the run's settings.

A worker may share its process with the driver, and with runs before and after it. The engine then puts the variables
back; what Accelerate remembers is put back here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.run.backend import WorkerState
from paceline.train.torch.backend import TorchBackend, TorchConfig

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup
    from paceline.run.backend import BackendConfig

_LEAVE_TIMEOUT_S = 5.0


class HuggingFaceBackend(TorchBackend):
    """For workers that make an Accelerator, or have Transformers make one."""

    joins_uneven: ClassVar[bool] = False  # their own loops make the batches
    preload: ClassVar[tuple[str, ...]] = (*TorchBackend.preload, "paceline.train.huggingface.backend")

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(enter, self._variables(worker_group, backend_config))
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        super().on_shutdown(worker_group, backend_config)
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)

    def _variables(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> dict[str, str]:
        """What Accelerate is to find in the environment."""
        return {}


class TransformersBackend(HuggingFaceBackend):
    """What a `transformers.Trainer` pulls in takes seconds to import: the workers share one import of it."""

    preload: ClassVar[tuple[str, ...]] = (
        *HuggingFaceBackend.preload,
        "torch.distributed.algorithms.ddp_comm_hooks",
        "paceline.train.huggingface.transformers.callback",
        "paceline.train.huggingface.transformers.loaders",
    )


@dataclass
class TransformersConfig(TorchConfig):
    """As TorchConfig."""

    @property
    def backend_cls(self) -> type[TransformersBackend]:
        return TransformersBackend


# -- in a worker -----------------------------------------------------------------------------------


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
