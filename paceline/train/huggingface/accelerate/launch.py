"""The variables that `accelerate launch` would set for a configuration, by Accelerate's own code; runs in a worker."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from argparse import Namespace
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.train.huggingface.accelerate.settings import ACCUMULATION, DECIDED_BY_THE_RUN, SECTIONS

_SECTION_OF = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
_WRAPPERS = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
"""Values of distributed_type that say how a model is trained, not on which devices."""

_KNOWN_WHEN_PLACED = ("num_machines", "machine_rank")
"""The engine decides on them when workers start."""


def for_run(settings: dict[str, Any], world_size: int, use_gpu: bool) -> dict[str, Any]:
    """The settings with the topology of the run."""
    kept = {name: value for name, value in settings.items() if name not in DECIDED_BY_THE_RUN}
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
            is_known = value not in (None, {}) and name not in _KNOWN_WHEN_PLACED
            told.append(f"{name} {given!r}" + (f" (the run has {value!r})" if is_known else ""))
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


_NOT_ACCELERATES = frozenset(
    [
        # Where the ranks meet: the process group is there already.
        *("MASTER_ADDR", "MASTER_PORT"),
        # How many threads compute, and on which cores: shared out by the engine.
        *("OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME"),
        # Where modules are found: as in the driver.
        "PYTHONPATH",
        # Which devices: set for every run, with settings or without.
        "ACCELERATE_USE_CPU",
    ]
)
_PREFIXES = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_"}
"""Settings of these sections may be written without the prefix."""
_UNCHECKED = "fp8_config"
"""`accelerate config` itself writes names there that `accelerate launch` does not know."""


def variables_or_problem(settings: dict[str, Any], source: str) -> tuple[dict[str, str], str | None]:
    """The variables, or else what is wrong with the settings, for a driver that shall tell its user."""
    try:
        return launch_variables(settings, source), None
    except ConfigError as error:
        return {}, str(error)


def launch_variables(settings: dict[str, Any], source: str) -> dict[str, str]:
    """Variable by name; `settings` are complete, with the topology of the run."""
    from accelerate.utils import launch

    try:
        arguments = _launch_arguments(settings, source)
        if arguments.use_deepspeed:
            _, environment = launch.prepare_deepspeed_cmd_env(arguments)
        elif arguments.use_fsdp or arguments.use_megatron_lm or arguments.multi_gpu:
            environment = launch.prepare_multi_gpu_env(arguments)
        else:
            _, environment = launch.prepare_simple_launcher_cmd_env(arguments)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{source} is refused by Accelerate: {error}") from error
    new = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    variables = {name: value for name, value in new.items() if name not in _NOT_ACCELERATES}
    if ACCUMULATION in settings:
        variables[f"ACCELERATE_{ACCUMULATION.upper()}"] = str(settings[ACCUMULATION])
    return variables


def _launch_arguments(settings: dict[str, Any], source: str) -> Namespace:
    """The arguments of `accelerate launch --config_file`, as that command itself completes them."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(_for_file(settings), file)
        file.flush()
        # A number of threads keeps the command from choosing one.
        options = ["--config_file", file.name, "--num_cpu_threads_per_process", "1", "train_function"]
        arguments: Namespace = launch_command_parser().parse_args(options)
        _check_sections(settings, source, list(vars(arguments)))
        arguments, defaults, precision_is_set = _validate_launch_command(arguments)
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if precision_is_set else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
    return arguments


def _for_file(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as a file of `accelerate config` has them."""
    content = {name: value for name, value in settings.items() if name != ACCUMULATION}
    deepspeed = dict(content.get("deepspeed_config") or {})
    inlined = deepspeed.get("deepspeed_config_file")
    if isinstance(inlined, dict):  # Accelerate takes the content in place of a path in this form
        deepspeed["deepspeed_config_file"] = base64.urlsafe_b64encode(json.dumps(inlined).encode()).decode()
        content["deepspeed_config"] = deepspeed
    return content


def _check_sections(settings: dict[str, Any], source: str, known: list[str]) -> None:
    """Accelerate passes over what it does not know in a section: a misspelt setting would be without effect."""
    for section in [each for each in SECTIONS if each != _UNCHECKED]:
        prefix = _PREFIXES.get(section, "")
        for name in settings.get(section) or {}:
            full = name if name.startswith(prefix) else prefix + name
            if full not in known:
                own = [each for each in known if each.startswith(prefix)]
                raise ConfigError(f"{source}: {section} has no setting {name!r}{near_miss(full, own)}")
