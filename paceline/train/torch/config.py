"""Settings of the PyTorch process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError
from paceline.air.keywords import names_what_was_meant
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.air.config import ScalingConfig
    from paceline.train.torch.backend import TorchBackend

_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
_NEED_GPUS = ("nccl", "cuda:nccl")
_INIT_METHODS = ("env", "tcp")


@names_what_was_meant()
@dataclass
class TorchConfig(BackendConfig):
    """How the workers of a TorchTrainer are connected."""

    backend: str | None = None
    """"gloo", "nccl", ... or a mix such as "cpu:gloo,cuda:nccl"; None takes nccl with GPUs and gloo without."""
    init_method: str = "env"
    """"env" meets in memory and opens no port; "tcp" meets at a store that rank 0 hosts on the loopback address.
    With both, MASTER_ADDR and MASTER_PORT are set for groups that the train function makes itself."""
    timeout_s: float = 1800
    """How long a collective operation may take before it fails."""

    def __post_init__(self) -> None:
        if self.backend is not None:
            _check_backend(self.backend)
        if self.init_method not in _INIT_METHODS:
            raise ConfigError(f"TorchConfig(init_method={self.init_method!r}): choose 'env' or 'tcp'.")
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not number or not 0 < self.timeout_s < float("inf"):
            raise ConfigError(
                f"TorchConfig(timeout_s={self.timeout_s!r}): give a number of seconds greater than 0, e.g. 1800."
            )

    def check(self, scaling: ScalingConfig) -> None:
        if self.backend in _NEED_GPUS and not scaling.num_gpus_per_worker:
            raise ConfigError(
                f"TorchConfig(backend={self.backend!r}) connects GPUs, but the workers have none: ask for them with "
                "ScalingConfig(use_gpu=True), or leave backend out, which takes gloo without GPUs."
            )

    @property
    def backend_cls(self) -> type[TorchBackend]:
        from paceline.train.torch.backend import TorchBackend

        return TorchBackend


def _check_backend(backend: str) -> None:
    """Refuse a misspelt backend here: in a worker it would only fail after the start."""
    parts = backend.split(",") if isinstance(backend, str) else []
    names = [part.rpartition(":")[2] for part in parts]
    if not names or any(name not in _BACKENDS for name in names):
        raise ConfigError(
            f"TorchConfig(backend={backend!r}): choose one of {', '.join(map(repr, _BACKENDS))}, a mix such as "
            "'cpu:gloo,cuda:nccl', or None to let the devices decide."
        )
