"""Which devices a worker computes on, and how batches get there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air import session
from paceline.run.backend import WorkerState

if TYPE_CHECKING:
    import torch

    from paceline.engine.places import WorkerPlace

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclasses.dataclass(frozen=True)
class WorkerGpus:
    """The GPUs of one worker: what its process shall see, and which of those are its own."""

    visible: str
    """Value of CUDA_VISIBLE_DEVICES."""
    own: tuple[int, ...]
    """Positions in `visible`."""


def plan_gpus(places: Sequence[WorkerPlace]) -> list[WorkerGpus | None]:
    """Every rank's GPUs; None where a rank was given none.

    A worker sees the GPUs of all workers on its machine, because NCCL's direct copies
    between two GPUs need both to be visible, and computes on its own.
    """
    seen: dict[int, list[str]] = {}
    for place in places:
        machine = seen.setdefault(place.node_rank, [])
        machine.extend(gpu for gpu in place.gpus or () if gpu not in machine)
    plan: list[WorkerGpus | None] = []
    for place in places:
        visible = seen[place.node_rank]
        positions = tuple(visible.index(gpu) for gpu in place.gpus or ())
        plan.append(WorkerGpus(",".join(visible), positions) if positions else None)
    return plan


@dataclasses.dataclass
class OwnGpus(WorkerState):
    """Device numbers of this worker, set before its train function starts."""

    numbers: tuple[int, ...] = ()


def assign_gpus(own: tuple[int, ...]) -> None:
    """Say which of the visible GPUs are this worker's."""
    OwnGpus.here().numbers = own


def get_device() -> torch.device | list[torch.device]:
    """The device this worker shall compute on; a list if it was given several GPUs.

    Outside of a training function: the first GPU if there is one, else the CPU.
    """
    import torch

    available = torch.cuda.is_available()
    if session.current() is None:
        return torch.device("cuda", 0) if available else torch.device("cpu")
    numbers = OwnGpus.here().numbers
    if not numbers:
        return torch.device("cpu")
    if not available:
        raise RuntimeError(
            "This worker was given a GPU, but PyTorch cannot use CUDA here: install a CUDA build of torch and check "
            "the driver with nvidia-smi, or set ScalingConfig(use_gpu=False)."
        )
    devices = [torch.device("cuda", index) for index in numbers]
    return devices[0] if len(devices) == 1 else devices


def get_devices() -> list[torch.device]:
    """The devices of this worker, always as a list."""
    device = get_device()
    return device if isinstance(device, list) else [device]


def main_device() -> torch.device:
    """The device of this worker, the first one of several."""
    device = get_device()
    return device[0] if isinstance(device, list) else device


def move_to(data: Any, device: torch.device) -> Any:
    """The batch on `device`: tensors in tuples, lists, dicts and dataclasses are moved, other values stay as they are.

    Copies from pinned memory do not block the host.
    """
    if hasattr(data, "to") and callable(data.to):
        try:
            return data.to(device, non_blocking=True)
        except TypeError:  # e.g. a tokenizer's batch, whose to() knows only the device
            return data.to(device)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to(item, device) for item in data))
    if isinstance(data, tuple | list):
        return type(data)(move_to(item, device) for item in data)
    if isinstance(data, Mapping):
        return _like(data, {key: move_to(value, device) for key, value in data.items()})
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {f.name: move_to(getattr(data, f.name), device) for f in dataclasses.fields(data) if f.init}
        return dataclasses.replace(data, **fields)
    return data


def _like(original: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    """A mapping of the same type where that type can be made from a dict."""
    if type(original) is dict:
        return moved
    try:
        return type(original)(moved)  # type: ignore[call-arg]
    except TypeError:
        return moved
