"""Which GPUs there are and which worker gets which."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paceline.air.errors import ConfigError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER_FOLDER = "/proc/driver/nvidia/gpus"


def visible_gpus(environment: dict[str, str] | None = None, driver_folder: str = DRIVER_FOLDER) -> list[str]:
    """The ids this process may use: what CUDA_VISIBLE_DEVICES says, else every card of the driver.

    Found without importing a framework: that alone would cost seconds and memory on each card.
    """
    variables = os.environ if environment is None else environment
    chosen = variables.get(VISIBLE_VARIABLE)
    if chosen is not None:
        return _listed(chosen)
    try:
        return [str(index) for index in range(len(os.listdir(driver_folder)))]
    except OSError:
        return []


def usable_gpus(declared: float) -> list[str]:
    """As many ids as were declared: of the cards that can be seen, or numbers where none can."""
    return (visible_gpus() or [str(number) for number in range(int(declared))])[: int(declared)]


def _listed(chosen: str) -> list[str]:
    """As CUDA reads it: the first entry that is no device ends the list."""
    ids: list[str] = []
    for entry in chosen.split(","):
        device = entry.strip()
        if not device or device.startswith("-") or device == "NoDevFiles":
            break
        ids.append(device)
    return ids


def assign_gpus(num_workers: int, gpus_per_worker: float, visible: Sequence[str]) -> list[list[str]]:
    """The device ids of each worker. Fractions share a card: 0.5 puts two workers on each."""
    if gpus_per_worker <= 0:
        return [[] for _ in range(num_workers)]
    if gpus_per_worker < 1:
        per_card = int(1 / gpus_per_worker + 1e-9)
        needed = -(-num_workers // per_card)
        _check(needed, num_workers, gpus_per_worker, visible)
        return [[visible[rank // per_card]] for rank in range(num_workers)]
    if gpus_per_worker != int(gpus_per_worker):
        raise ConfigError(f"{gpus_per_worker} GPUs per worker: above one, it must be a whole number")
    each = int(gpus_per_worker)
    _check(num_workers * each, num_workers, gpus_per_worker, visible)
    return [list(visible[rank * each : (rank + 1) * each]) for rank in range(num_workers)]


def _check(needed: int, num_workers: int, gpus_per_worker: float, visible: Sequence[str]) -> None:
    if needed > len(visible):
        raise ConfigError(
            f"{num_workers} workers with {gpus_per_worker:g} GPU(s) each need {needed} GPU(s), "
            f"but {len(visible)} can be seen here. Use fewer workers, fewer GPUs per worker, "
            f"or use_gpu=False; {VISIBLE_VARIABLE} limits which are seen."
        )
