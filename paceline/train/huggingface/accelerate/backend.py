"""AccelerateBackend: a PyTorch process group whose workers also have the variables of `accelerate launch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.errors import ConfigError
from paceline.run.backend import BackendConfig
from paceline.train.huggingface import worker
from paceline.train.huggingface.accelerate import launch
from paceline.train.huggingface.accelerate.launch import for_run
from paceline.train.torch import TorchConfig
from paceline.train.torch.backend import TorchBackend
from paceline.train.torch.devices import plan_gpus

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

_LEAVE_TIMEOUT_S = 5.0


class AccelerateBackend(TorchBackend):
    """The variables are worked out by one worker, where Accelerate is loaded anyway, and are the same for all."""

    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "accelerate",
        "accelerate.commands.launch",
        "paceline.train.huggingface.accelerate.launch",
        "paceline.train.huggingface.worker",
        # Where it is installed, the first DataLoader that is prepared imports it: hundreds of modules.
        *(["datasets"] if find_spec("datasets") else []),
        # Accelerator.save_state()
        "numpy.ctypeslib",
    )

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, AccelerateConfig)
        variables = {}
        if backend_config.settings:  # else variables that the user has set hold
            use_gpu = all(plan_gpus(worker_group.places))
            variables = _launch_variables(worker_group, backend_config, use_gpu)
        worker_group.execute(worker.enter, variables)
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        super().on_shutdown(worker_group, backend_config)
        worker_group.execute(worker.leave, timeout=_LEAVE_TIMEOUT_S)


def _launch_variables(worker_group: WorkerGroup, config: AccelerateConfig, use_gpu: bool) -> dict[str, str]:
    settings = for_run(config.settings, worker_group.world_size, use_gpu)
    variables: dict[str, str]
    variables, problem = worker_group.execute_single(0, launch.variables_or_problem, settings, config.source)
    if problem is not None:
        raise ConfigError(problem)
    return variables


@dataclass
class AccelerateConfig(TorchConfig):
    """How the workers of an AccelerateTrainer are connected, and what their Accelerator finds; made by the trainer."""

    settings: dict[str, Any] = field(default_factory=dict)
    """The content of a file of `accelerate config`, read and checked."""
    source: str = "accelerate_config"
    """Where the settings are from, for messages."""

    @property
    def backend_cls(self) -> type[AccelerateBackend]:

        return AccelerateBackend
