"""TransformersBackend: a process group of PyTorch whose workers have Transformers loaded already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.train.huggingface import worker
from paceline.train.torch.backend import TorchBackend, TorchConfig

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup
    from paceline.run.backend import BackendConfig

_LEAVE_TIMEOUT_S = 5.0


class TransformersBackend(TorchBackend):
    """What a `transformers.Trainer` pulls in takes seconds to import: the workers share one import of it."""

    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "paceline.train.huggingface.worker",
        "paceline.train.huggingface.transformers.preloaded",
    )

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(worker.enter, {})
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        super().on_shutdown(worker_group, backend_config)
        worker_group.execute(worker.leave, timeout=_LEAVE_TIMEOUT_S)


@dataclass
class TransformersConfig(TorchConfig):
    """As TorchConfig."""

    @property
    def backend_cls(self) -> type[TransformersBackend]:

        return TransformersBackend
