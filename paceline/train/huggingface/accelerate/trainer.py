"""AccelerateTrainer: a TorchTrainer whose train functions use an Accelerator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, RestoreError
from paceline.train.arguments import DataParallelArguments, chosen_config, config_as
from paceline.train.huggingface.accelerate.backend import AccelerateConfig
from paceline.train.huggingface.accelerate.launch import check_devices, overridden
from paceline.train.huggingface.accelerate.settings import read_settings
from paceline.train.torch import TorchConfig, TorchTrainer

if TYPE_CHECKING:
    import os

    from paceline.run.spec import RunSpec


class AccelerateTrainer(TorchTrainer):
    """Runs `train_loop_per_worker` on every worker; an `Accelerator()` made in it finds the group and its settings.

        def train_func():
            accelerator = Accelerator()
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            ...
            accelerator.backward(loss)
            paceline.train.report({"loss": loss.item()})

        trainer = AccelerateTrainer(
            train_func,
            accelerate_config={"mixed_precision": "bf16"},
            scaling_config=ScalingConfig(num_workers=2),
        )

    `accelerate_config` is a path to a file that `accelerate config` made, or a dict with such content; None takes the
    default file of `accelerate config` if there is one. It says how to train: mixed precision, torch.compile
    (dynamo_config), DeepSpeed, FSDP; also `gradient_accumulation_steps`. The number of processes, their machines, GPUs,
    addresses and ports are those of the run, from `scaling_config`.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        accelerate_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        torch_config: TorchConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        group = chosen_config("AccelerateTrainer", TorchConfig, torch_config=torch_config)
        if type(group).backend_cls not in (TorchConfig.backend_cls, AccelerateConfig.backend_cls):
            raise ConfigError(
                f"AccelerateTrainer(torch_config=...): {type(group).__name__} has a backend_cls of its own, and this "
                "trainer needs its own as well. Use a TorchConfig here, or your class with a TorchTrainer."
            )
        settings, source = read_settings(accelerate_config)
        self._accelerate = config_as(AccelerateConfig, group, settings=settings, source=source)
        self._chose_settings = accelerate_config is not None
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            torch_config=self._accelerate,
            **common,
        )

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.scaling_config.num_workers is not None:  # else a Tuner is to say how many, and on which devices
            check_devices(self._accelerate.settings, self._accelerate.source, self._use_gpu)

    @property
    def _use_gpu(self) -> bool:
        return bool(self.scaling_config.num_gpus_per_worker)

    def to_run_spec(self) -> RunSpec:
        spec = super().to_run_spec()
        settings, source = self._accelerate.settings, self._accelerate.source
        without_effect = overridden(settings, spec.max_workers, self._use_gpu)
        if without_effect:
            warn_at_users_line(f"Without effect in {source}: {'; '.join(without_effect)}.")
        if not self._chose_settings:
            return spec
        return replace(spec, config={**spec.config, "accelerate_config": settings})

    @classmethod
    def _restored_arguments(cls, settings: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        given = super()._restored_arguments(settings, arguments)
        stored = settings["config"]
        if stored is None and "accelerate_config" not in given:
            raise RestoreError(
                "The run's configuration holds values that cannot be stored as plain data: pass accelerate_config= to "
                "restore() again ({} if there was none)."
            )
        if stored and "accelerate_config" in stored:
            given.setdefault("accelerate_config", stored["accelerate_config"])
        return given
