"""``paceline export --to safetensors``: the weights of a checkpoint in one file that many programs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError
from paceline.cli.errors import USAGE, CommandError
from paceline.cli.places import place
from paceline.storage.run_dir import RunDir

if TYPE_CHECKING:
    from torch import Tensor

_ENDING = ".safetensors"


def checkpoint_at(given: str) -> tuple[Checkpoint, str]:
    """The checkpoint at a path or URI, and its name; a run is told which ones it has."""
    path = place(given).rstrip("/")
    if "://" in path:
        return Checkpoint.from_uri(path), path.rpartition("/")[2]
    directory = Path(path).expanduser()
    checkpoints = RunDir(directory).checkpoints() if (directory / "journal.jsonl").exists() else []
    if checkpoints:
        newest = checkpoints[-1][1]
        raise CommandError(f"{given} is a run. Name one of its checkpoints, such as {given}/{newest.name}.", USAGE)
    return Checkpoint.from_directory(directory), directory.name


def save_weights(checkpoint: Checkpoint, path: Path) -> int:
    """Write the model's tensors; returns how many there are. Nothing of the checkpoint is unpickled."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise CommandError("safetensors is not installed: pip install safetensors.") from error
    import torch

    weights = _stored_weights(checkpoint)
    seen: set[int] = set()
    for name, tensor in weights.items():  # the format has no two names for the same memory
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        weights[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    return len(weights)


def _stored_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    from paceline.train.torch import TorchCheckpoint

    with checkpoint._directory(lambda name: name.endswith(_ENDING)) as folder:
        files = sorted(Path(folder).rglob(f"*{_ENDING}"))
        if files:
            return _merged(files)
    try:
        return TorchCheckpoint.from_checkpoint(checkpoint).get_weights()
    except CheckpointError as error:
        raise type(error)(f"{error} A pickled model is not exported: that would run code of the checkpoint.") from error


def _merged(files: list[Path]) -> dict[str, Any]:
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    came_from: dict[str, Path] = {}
    for file in files:
        for name, tensor in load_file(file).items():
            if name in came_from:
                raise CheckpointError(
                    f"{came_from[name].name} and {file.name} both have weights named {name!r}: they belong to several "
                    "models. Copy the file of the model that you need."
                )
            weights[name], came_from[name] = tensor, file
    return weights
