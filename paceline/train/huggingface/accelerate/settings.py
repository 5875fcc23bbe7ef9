"""`accelerate_config` as the user gives it: read, checked and made plain data, without importing Accelerate.

Importing Accelerate imports PyTorch, which takes seconds in a driver that may need neither.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.air.checks import check_choice, near_miss, whole_number
from paceline.air.errors import ConfigError

TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Values of distributed_type that workers of ours can be."""
SECTIONS = (
    "deepspeed_config",
    "dynamo_config",
    "fp8_config",
    "fsdp_config",
    "megatron_lm_config",
    "mpirun_config",
    "parallelism_config",
)
ACCUMULATION = "gradient_accumulation_steps"
"""Accelerator reads it from a variable with every distributed_type; files of `accelerate config` have it for DeepSpeed
only."""
_PRECISIONS = ("no", "fp16", "bf16", "fp8")
DECIDED_BY_THE_RUN = frozenset(
    [
        *("num_processes", "num_machines", "machine_rank", "gpu_ids", "main_process_ip", "main_process_port"),
        *("rdzv_backend", "same_network", "mpirun_config", "use_cpu", "distributed_type", "compute_environment"),
        *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env", "command_file", "commands"),
        "main_training_function",
    ]
)
KNOWN = frozenset(
    [
        *(*SECTIONS, ACCUMULATION, *DECIDED_BY_THE_RUN),
        *("mixed_precision", "debug", "enable_cpu_affinity", "downcast_bf16"),
        *("fp16", "dynamo_backend"),  # of older files; Accelerate still takes them
    ]
)
_DYNAMO_BACKEND = ("dynamo_backend", "backend")
"""Both are taken in dynamo_config."""
_DS_FILE = "deepspeed_config_file"


def read_settings(given: object) -> tuple[dict[str, Any], str]:
    """The settings as plain data, and where they are from."""
    if isinstance(given, Mapping):
        return _checked(given, "accelerate_config"), "accelerate_config"
    if given is None:
        path = default_file()
        if not path.is_file():
            return {}, "accelerate_config"
    elif isinstance(given, str | os.PathLike):
        path = Path(os.fspath(given)).expanduser()
    else:
        raise ConfigError(
            "accelerate_config must be a path to a file of `accelerate config`, a dict with such content, or None for "
            f"the default file, not {type(given).__name__}."
        )
    source = f"accelerate_config {path}"
    return _checked(_read_file(path, source), source, path.parent), source


def default_file() -> Path:
    """Where `accelerate config` writes to and `accelerate launch` looks."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def _read_file(path: Path, source: str) -> Any:
    import yaml  # Accelerate depends on it

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{source}: there is no such file. `accelerate config --config_file {path.name}` makes one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: the file cannot be read: {error}") from error
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise ConfigError(f"{source}: this is no valid {kind}: {error}") from error


def _checked(content: Any, source: str, folder: Path | None = None) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{source} must hold settings by name, as `accelerate config` writes them.")
    settings = _plain(content, source)
    _check_place(settings, source)
    _check_names(settings, source)
    for name in SECTIONS:
        if not isinstance(settings.get(name) or {}, dict):
            raise ConfigError(f"{source}: {name} must be a dict of settings, not {settings[name]!r}.")
    if settings.get("mixed_precision") is not None:
        settings["mixed_precision"] = _word(settings["mixed_precision"]).lower()
        check_choice(settings["mixed_precision"], f"{source}: mixed_precision", _PRECISIONS)
    for holder in (settings, settings.get("dynamo_config") or {}):
        for name in _DYNAMO_BACKEND:
            if holder.get(name) is False:
                holder[name] = _word(False)
    if ACCUMULATION in settings:
        settings[ACCUMULATION] = whole_number(settings[ACCUMULATION], f"{source}: {ACCUMULATION}", least=1)
    if settings.get("distributed_type") == "DEEPSPEED":
        _inline_deepspeed_file(settings.get("deepspeed_config") or {}, source, folder)
        if find_spec("deepspeed") is None:
            raise ConfigError(
                f"{source} asks for DeepSpeed (distributed_type: DEEPSPEED), which is not installed: "
                "pip install deepspeed"
            )
    return settings


def _plain(content: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """A copy of the settings that can be stored and sent; Accelerate's enumerations become their values."""

    def value_of(item: Any) -> Any:
        if isinstance(item, enum.Enum):
            return item.value
        if isinstance(item, Mapping):
            return dict(item)
        raise TypeError(f"a {type(item).__name__}")

    try:
        copy: dict[str, Any] = json.loads(json.dumps(content, default=value_of))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{source} holds something that a file of `accelerate config` cannot hold: {error}."
        ) from error
    return copy


def _word(value: Any) -> str:
    """YAML takes an unquoted no for False."""
    return "no" if value is False else str(value)


def _check_place(settings: dict[str, Any], source: str) -> None:
    place = settings.get("compute_environment") or "LOCAL_MACHINE"
    if place != "LOCAL_MACHINE":
        raise ConfigError(
            f"{source}: compute_environment is {place!r}, but paceline starts the workers of this trainer. Make a "
            "configuration with `accelerate config` for 'This machine', or use `accelerate launch` for SageMaker."
        )
    if settings.get("distributed_type") is None:
        settings.pop("distributed_type", None)
        return
    kind = settings["distributed_type"] = _word(settings["distributed_type"]).upper()
    if kind in ("TPU", "XLA"):
        raise ConfigError(
            f"{source}: distributed_type is {kind}, but there are no TPU workers here: use `accelerate launch` for "
            "TPUs, or a configuration for CPUs or GPUs."
        )
    if kind not in TYPES:
        raise ConfigError(
            f"{source}: distributed_type is {kind!r}, but workers compute on CPUs or CUDA GPUs: use one of "
            f"{', '.join(TYPES)}, or leave it out."
        )


def _check_names(settings: dict[str, Any], source: str) -> None:
    unknown = [name for name in settings if name not in KNOWN]
    if not unknown:
        return
    # Perhaps a setting of a newer Accelerate: the one installed knows.
    from accelerate.commands.config.config_args import ClusterConfig

    known = sorted(KNOWN | ClusterConfig.__dataclass_fields__.keys())
    refused = [f"has no setting {name!r}{near_miss(name, known)}" for name in unknown if name not in known]
    if refused:
        raise ConfigError(f"{source} {' It '.join(refused)}")


def _inline_deepspeed_file(section: dict[str, Any], source: str, folder: Path | None) -> None:
    """Put the content of DeepSpeed's own file in the place of its path: a worker's directory is another one."""
    given = section.get(_DS_FILE)
    if not isinstance(given, str) or given == "none":
        return
    path = Path(given).expanduser()
    if folder is not None and not path.exists():
        path = folder / path
    try:
        section[_DS_FILE] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source}: {_DS_FILE} {given} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{source}: {_DS_FILE} {given} is no valid JSON: {error}") from error
