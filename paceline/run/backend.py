"""How a framework connects the workers of a group: the extension point for frameworks."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    from paceline.air.config import ScalingConfig
    from paceline.air.errors import WorkerFailure
    from paceline.engine.base import Engine, WorkerGroup


class Backend:
    """Hooks around the life of a worker group; every one may be left out.

    Hooks run in the driver and reach the workers through `worker_group.execute`. An
    exception in `on_start` or `on_training_start` fails the start; `on_shutdown` is
    best effort and only called while the workers still answer. `on_end` is the last one, always.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that workers will need; imported once, before workers are forked."""
    fresh: ClassVar[bool] = False
    """True for a framework that does not work in a forked process."""
    share_cuda_visible_devices: ClassVar[bool] = False
    """True if every worker of a machine shall see the GPUs of all its workers."""
    hide_other_gpus: ClassVar[bool] = False
    """True if workers that were given no GPUs shall see none; otherwise they see what the driver sees."""
    one_machine: ClassVar[bool] = False
    """True if its workers find each other, or what the driver gives them, on the driver's own machine only."""
    in_threads: ClassVar[bool] = False
    """True if several of its workers can be threads of one process: it connects nothing that a process has once."""
    thread_setters: ClassVar[tuple[str, ...]] = ()
    """Functions such as "torch:set_num_threads" of preloaded modules that do not read OMP_NUM_THREADS again: each new
    worker calls them with its number of threads."""
    collateral_phrases: ClassVar[tuple[str, ...]] = ()
    """Words, in lower case, of errors that workers raise because another one is gone: such an error is not the cause
    of a failure. Common words of network errors ("connection reset", ...) are known."""

    collective_frames: ClassVar[tuple[str, ...]] = ()
    """Functions that only wait for other ranks, as "module:function". A rank that is seen there waits."""
    mixed_frames: ClassVar[tuple[str, ...]] = ()
    """Functions that compute, and wait for other ranks in between. A rank that is seen there waits if it is idle."""
    collective_errors: ClassVar[tuple[str, ...]] = ()
    """Words, in lower case, of errors that only collective operations raise: a rank that fails with them has waited for
    others. For frameworks whose stacks do not show the functions above."""
    joins_uneven: ClassVar[bool] = False
    """True if ranks without more batches can take part in what the others do (`uneven="join"`)."""
    ranks_leave: bool = False
    """Set it, in `on_start` at the latest, if ranks that return let go of the others (`WorkerState.leave_peers`), so
    that those get an error instead of waiting. Otherwise the frames above show which ranks wait."""

    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        """Variables that every worker must have before it imports anything; those that the user has set stay as set."""
        return {}

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """The workers are there; nothing has been set up in them yet."""

    def on_training_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """The workers are connected; their sessions and the train function start next."""

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """The train function ended on every rank; the workers go away next.

        Failed ones go away without, unless the worker shares the driver's process.
        """

    @classmethod
    def hint_for(cls, failure: WorkerFailure) -> str:
        """What may help the user with this failure, the cause of the others; "" if nothing comes to mind."""
        return ""

    def on_end(self) -> None:
        """The workers are gone, however the attempt ended: give back what the driver itself holds for them."""


class WorkerState:
    """What the functions that a backend executes in a worker remember from call to call.

    Derive a dataclass with defaults from it. Functions in the worker, and the train function, get the worker's own
    object by `here()`. It lives as long as the worker; `end()` is for workers that share the driver's process.
    """

    _kept: ClassVar[dict[type, Any]] = {}

    @classmethod
    def here(cls) -> Self:
        """The object of this class in this worker; a new one if there is none."""
        kept = WorkerState._kept.get(cls)
        if kept is None:
            kept = WorkerState._kept[cls] = cls()
        state: Self = kept
        return state

    @classmethod
    def end(cls) -> None:
        """Close the object of this worker, if there is one; the next run begins with a new one."""
        state = WorkerState._kept.pop(cls, None)
        if state is not None:
            state.close()

    @classmethod
    def leave_all(cls) -> None:
        """This worker's train function has returned. What goes wrong here is shown in the worker's output."""
        for state in list(WorkerState._kept.values()):
            try:
                state.leave_peers()
            except Exception:
                traceback.print_exc()

    def leave_peers(self) -> None:
        """This rank's train function has returned, while others may still run: let go of them, so that a rank that
        waits for this one gets an error at once. What this rank has sent before must still arrive."""

    def close(self) -> None:
        """Give back what the object holds."""


@dataclass
class BackendConfig:
    """Settings of a backend; `backend_cls` says which one they are for.

    Without a `backend_cls` of its own, a config connects nothing: its workers know only what paceline tells them.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        return Backend

    def check(self, scaling: ScalingConfig) -> None:
        """Reject settings that cannot work on such workers, before any of them starts."""

    def notes(self, world_size: int) -> list[str]:
        """What the user must know about a run with this many workers; shown once, when the run begins."""
        return []


def check_threads(backend: type[Backend], world_size: int, engine: Engine) -> None:
    """Reject several workers in one process, where they could not form the process group of a framework."""
    if world_size > 1 and engine.capabilities.in_driver_process and backend is not Backend and not backend.in_threads:
        raise ConfigError(
            f"engine={engine.name!r} runs workers as threads of this process, and {backend.__name__} connects "
            f"processes: it can run one worker here, not {world_size}. Use num_workers=1, or engine='local': "
            "breakpoint() in any rank opens in this terminal there, too."
        )
