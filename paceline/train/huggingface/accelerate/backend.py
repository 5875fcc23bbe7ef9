"""AccelerateBackend: a PyTorch process group whose workers also have the variables of `accelerate launch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.errors import ConfigError
from paceline.train.huggingface.accelerate.launch import for_run, variables_or_problem
from paceline.train.huggingface.backend import HuggingFaceBackend
from paceline.train.torch.backend import TorchConfig
from paceline.train.torch.devices import plan_gpus

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup
    from paceline.run.backend import BackendConfig


class AccelerateBackend(HuggingFaceBackend):
    """The variables are worked out by one worker, where Accelerate is loaded anyway, and are the same for all."""

    preload: ClassVar[tuple[str, ...]] = (
        *HuggingFaceBackend.preload,
        "accelerate",
        "accelerate.commands.launch",
        "paceline.train.huggingface.accelerate.launch",
        # Where it is installed, the first DataLoader that is prepared imports it: hundreds of modules.
        *(["datasets"] if find_spec("datasets") else []),
        # Accelerator.save_state()
        "numpy.ctypeslib",
    )

    def _variables(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> dict[str, str]:
        assert isinstance(backend_config, AccelerateConfig)
        if not backend_config.settings:  # variables that the user has set hold
            return {}
        use_gpu = all(plan_gpus(worker_group.places))
        settings = for_run(backend_config.settings, worker_group.world_size, use_gpu)
        variables: dict[str, str]
        variables, problem = worker_group.execute_single(0, variables_or_problem, settings, backend_config.source)
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
