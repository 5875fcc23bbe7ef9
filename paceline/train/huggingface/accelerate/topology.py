"""What the run decides instead of the configuration: how many processes there are, where, and on which devices."""

from __future__ import annotations

from typing import Any

from paceline.air.errors import ConfigError

_DECIDED_BY_THE_RUN = frozenset(
    [
        *("num_processes", "num_machines", "machine_rank", "gpu_ids", "main_process_ip", "main_process_port"),
        *("rdzv_backend", "same_network", "mpirun_config", "use_cpu", "distributed_type", "compute_environment"),
        *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env", "command_file", "commands"),
        "main_training_function",
    ]
)
_SECTION_OF = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
_WRAPPERS = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
"""Values of distributed_type that say how a model is trained, not on which devices."""


def for_run(settings: dict[str, Any], world_size: int, use_gpu: bool) -> dict[str, Any]:
    """The settings with the topology of the run."""
    kept = {name: value for name, value in settings.items() if name not in _DECIDED_BY_THE_RUN}
    if settings.get("distributed_type") == "FSDP" and not use_gpu:
        # Only rank 0 would load weights, for FSDP to pass them on, which it does not on CPUs.
        kept["fsdp_config"] = {**(kept.get("fsdp_config") or {}), "fsdp_cpu_ram_efficient_loading": False}
    return {
        **kept,
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(settings, use_gpu),
        "num_processes": world_size,
        "num_machines": 1,
        "machine_rank": 0,
        "main_process_port": 0,
        "use_cpu": not use_gpu,
    }


def check_devices(settings: dict[str, Any], source: str, use_gpu: bool) -> None:
    """Refuse what contradicts the devices of the workers."""
    if use_gpu and settings.get("use_cpu"):
        raise ConfigError(
            f"{source} says use_cpu: true, and ScalingConfig says use_gpu=True: which is meant? Change one of them."
        )
    precision = settings.get("mixed_precision")
    if not use_gpu and precision in ("fp16", "fp8"):
        raise ConfigError(
            f"{source}: mixed_precision {precision} needs GPUs. Use bf16 or no, or ScalingConfig(use_gpu=True)."
        )


def overridden(settings: dict[str, Any], world_size: int, use_gpu: bool) -> list[str]:
    """What of the settings has no effect, because the run has something else."""
    of_the_run: dict[str, Any] = {
        "num_processes": world_size,
        "num_machines": 1,
        "machine_rank": 0,
        "gpu_ids": "all",
        "main_process_ip": None,
        "main_process_port": None,
        "rdzv_backend": "static",
        "mpirun_config": {},
    }
    told = []
    for name, value in of_the_run.items():
        given = settings.get(name)
        if given not in (None, {}, value) and not (name == "num_processes" and given == -1):
            told.append(f"{name} {given!r}" + ("" if value in (None, {}) else f" (the run has {value!r})"))
    kind = settings.get("distributed_type")
    for wrapper, section in _SECTION_OF.items():
        if kind != wrapper and settings.get(section):
            told.append(f"{section} (it needs distributed_type: {wrapper})")
    if kind in _WRAPPERS and not use_gpu:
        told.append(
            f"distributed_type {kind} (Accelerate uses {_WRAPPERS[kind]} on GPUs only; on CPUs the model is trained "
            "with DistributedDataParallel)"
        )
    elif kind in ("MULTI_GPU", "MULTI_CPU") and kind != _distributed_type(settings, use_gpu):
        told.append(f"distributed_type {kind} (the workers have {'GPUs' if use_gpu else 'CPUs only'})")
    return told


def _distributed_type(settings: dict[str, Any], use_gpu: bool) -> str:
    kind = settings.get("distributed_type")
    if kind in _WRAPPERS:
        return str(kind)
    return "MULTI_GPU" if use_gpu else "MULTI_CPU"
