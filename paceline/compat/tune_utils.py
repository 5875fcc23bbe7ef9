"""Helpers for people who write trainables: is it picklable, does it restore, is the GPU free; and dicts in dicts."""

from __future__ import annotations

import copy
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paceline.air.absent import advise
from paceline.air.errors import ConfigError, SerializationError
from paceline.air.metrics import flattened
from paceline.engine.serialization import culprit_of, dumps
from paceline.tune.registry import get_trainable
from paceline.tune.trainable.trainable import Trainable

__all__ = [
    "date_str",
    "deep_update",
    "diagnose_serialization",
    "flatten_dict",
    "merge_dicts",
    "unflattened_lookup",
    "validate_save_restore",
    "wait_for_gpu",
]

_STEPS_BEFORE_SAVING = 3


def diagnose_serialization(trainable: Any) -> Literal[True] | set[Any]:
    """True if a trainable can be sent to workers; otherwise it prints why not, and returns the object to blame."""
    name = getattr(trainable, "__name__", repr(trainable))
    try:
        dumps(trainable, name)
    except SerializationError as error:
        print(error)
        culprit = culprit_of(trainable)
        return {culprit if culprit.__hash__ is not None else repr(culprit)}
    return True


def validate_save_restore(
    trainable_cls: type[Trainable] | str, config: Mapping[str, Any] | None = None, num_gpus: int = 0
) -> bool:
    """Check that a Trainable class continues from its checkpoints: True, or an error that says what is wrong.

    It runs in this process, so `num_gpus` changes nothing.
    """
    kind = get_trainable(trainable_cls) if isinstance(trainable_cls, str) else trainable_cls
    if not (isinstance(kind, type) and issubclass(kind, Trainable)):
        raise ConfigError(f"validate_save_restore() takes a class derived from tune.Trainable, not {kind!r}.")
    trained, restored = kind(config), kind(config)
    try:
        for _ in range(_STEPS_BEFORE_SAVING):
            trained.train()
        with tempfile.TemporaryDirectory(prefix="paceline-validate-") as directory:
            restored.restore(trained.save(directory))
        row = restored.train()
    finally:
        trained.stop()
        restored.stop()
    if row["training_iteration"] != _STEPS_BEFORE_SAVING + 1:
        raise ConfigError(
            f"{kind.__name__} was saved after iteration {_STEPS_BEFORE_SAVING}, and its next one is "
            f"{row['training_iteration']}: load_checkpoint() must not change the number of iterations."
        )
    return True


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> Literal[True]:
    """Wait until at most the share `target_util` of a GPU's memory is in use; RuntimeError after `retry` attempts.

    `gpu_id` is the number or UUID of a GPU; by default the first of CUDA_VISIBLE_DEVICES.
    """
    wanted = str(gpu_id) if gpu_id is not None else os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    limit = target_util if gpu_memory_limit is None else gpu_memory_limit
    used = 1.0
    for attempt in range(max(1, retry)):
        if attempt:
            time.sleep(delay_s)
        used = _memory_in_use(wanted)
        if used <= limit:
            return True
    raise RuntimeError(f"GPU {wanted}: {used:.0%} of its memory is still in use after {retry} attempts.")


def _memory_in_use(gpu: str) -> float:
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"wait_for_gpu() asks nvidia-smi, which does not run here: {error}") from error
    known = []
    for line in listed.splitlines():
        index, uuid, used, total = (part.strip() for part in line.split(","))
        if gpu in (index, uuid):
            return float(used) / float(total)
        known.append(index)
    raise ValueError(f"gpu_id is {gpu!r}: nvidia-smi lists {', '.join(known) or 'none'}.")


def date_str() -> str:
    """Now, as names of directories have it."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def flatten_dict(dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False) -> dict[str, Any]:
    """Dicts in dicts as one dict with keys such as "a/b". With `prevent_delimiter`, keys must not contain it."""
    if prevent_delimiter and any(delimiter in str(key) for key in _all_keys(dt)):
        raise ValueError(f"A key contains {delimiter!r}, which flatten_dict() puts between keys.")
    return flattened(dt, delimiter)


def _all_keys(values: Mapping[str, Any]) -> list[Any]:
    inner = [key for value in values.values() if isinstance(value, Mapping) for key in _all_keys(value)]
    return [*values, *inner]


def unflattened_lookup(flat_key: str, lookup: Any, delimiter: str = "/", default: Any = None) -> Any:
    """The value at "a/b" in dicts or lists; `default` if there is none."""
    value = lookup
    for part in flat_key.lstrip(delimiter).split(delimiter):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return default
    return value


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of `d1` with the values of `d2` in it, dict by dict."""
    return deep_update(copy.deepcopy(dict(d1)), d2, new_keys_allowed=True)


def deep_update(
    original: dict[str, Any],
    new_dict: Mapping[str, Any],
    new_keys_allowed: bool = False,
    allow_new_subkey_list: Sequence[str] | None = None,
    override_all_if_type_changes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Put the values of `new_dict` into `original`, dict by dict; an unknown key raises unless it is allowed.

    Below the keys of `allow_new_subkey_list` new keys are allowed. A dict under a key of
    `override_all_if_type_changes` is replaced as a whole where its "type" changes.
    """
    for key, value in new_dict.items():
        if key not in original and not new_keys_allowed:
            raise KeyError(f"{key!r} is not one of the keys {', '.join(map(str, original))}.")
        there = original.get(key)
        if not (isinstance(there, dict) and isinstance(value, Mapping)) or (
            key in (override_all_if_type_changes or ()) and value.get("type", there.get("type")) != there.get("type")
        ):
            original[key] = value
        else:
            deep_update(there, value, new_keys_allowed or key in (allow_new_subkey_list or ()))
    return original


_VERBOSE = "RunConfig(verbose=0), 1, 2 or 3 says how much is printed"
_FILES = "RunConfig(storage_path=...) puts the results where you need them, and uploads them to remote storage"
_PICKLE = "cloudpickle.dumps() and base64 turn a function into text"
_TIME = "time.perf_counter() around the call measures it"
_ADVICE = {
    **dict.fromkeys(("Verbosity", "disable_ipython", "has_verbosity", "log", "set_verbosity"), _VERBOSE),
    **dict.fromkeys(("delete_on_node", "file_transfer", "sync_dir_between_nodes"), _FILES),
    **dict.fromkeys(("TuneFunctionDecoder", "TuneFunctionEncoder", "serialization"), _PICKLE),
    "Tee": "RunConfig(log_to_file=True) writes what a trial prints to files",
    "UtilMonitor": "psutil.cpu_percent() and nvidia-smi say how busy the machine is",
    "retry_fn": "FailureConfig(max_failures=...) repeats a failed trial",
    "validate_warmstart": "points_to_evaluate and evaluated_rewards of the searcher are checked when it is made",
    "warn_if_slow": _TIME,
}
advise(__name__, _ADVICE)
