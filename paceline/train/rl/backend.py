"""RLBackend: what a worker that trains with RLlib finds when it starts."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paceline.run.backend import Backend, BackendConfig
from paceline.storage.files import make_private_dirs
from paceline.train.rl import own_ray

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

SCRATCH = ".rllib"
"""In the trial's directory."""


class RLBackend(Backend):
    """There is one worker, so nothing is to be connected. The driver removes what Ray and RLlib write."""

    one_machine: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.rl.rllib",
        "paceline.train.rl.loop",
        # Most of what RLlib imports later: the algorithm's own package, and what fixing a seed loads.
        "ray.rllib.algorithms.ppo",
        "torch._inductor",
    )
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)

    def __init__(self) -> None:
        self._held = ExitStack()

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        sockets = self._held.enter_context(own_ray.socket_directory())
        scratch = Path(worker_group.placement.workers[0].log_path).parent.with_name(SCRATCH)
        shutil.rmtree(scratch, ignore_errors=True)  # of a driver that was killed
        make_private_dirs(scratch)
        self._held.callback(shutil.rmtree, scratch, ignore_errors=True)
        worker_group.execute(own_ray.prepare, sockets, str(scratch))

    def on_end(self) -> None:
        self._held.close()


@dataclass
class RLConfig(BackendConfig):
    """Has no settings."""

    @property
    def backend_cls(self) -> type[Backend]:
        return RLBackend
