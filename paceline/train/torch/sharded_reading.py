"""The reading half of sharded checkpoints: into a sharded model, or as whole tensors into one process.

What is read has been compared with the checkpoint's manifest, file by file. Nothing is unpickled but tensors and plain
values.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from paceline.air.errors import CheckpointError
from paceline.train.torch.loading import load_plain
from paceline.train.torch.sharded_files import METADATA_FILE, decode_metadata

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import ReadItem

    from paceline.air.checkpoint import Checkpoint

_WEIGHTS = ("model", "state_dict")
"""What the names of a model's weights begin with: ours, and those of others."""


def sharded_metadata(checkpoint: Checkpoint, trust: bool = False) -> Metadata | None:
    """What its `.metadata` says; None for a checkpoint that is not a sharded one."""
    content = checkpoint.read_file(METADATA_FILE)
    if content is None:
        return None
    if not trust:
        return decode_metadata(content, repr(checkpoint))
    metadata: Metadata = pickle.loads(content)
    return metadata


def read_state(checkpoint: Checkpoint, metadata: Metadata, state: dict[str, Any], *, trust: bool = False) -> None:
    """Fill a state dict, whose tensors may be parts, with what the checkpoint holds of it."""
    planner = _Planner(checkpoint, trust)
    planner.set_up_planner(state, metadata, is_coordinator=False)
    try:
        plan = planner.finish_plan(planner.create_local_plan())
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint!r} does not fit the model or the optimizer: {error}") from error
    places = metadata.storage_data
    names = {places[item.storage_index].relative_path for item in plan.items}
    with checkpoint._directory(lambda name: name in names) as folder:
        reader = FileSystemReader(folder)
        reader.storage_data = places
        try:
            reader.read_data(plan, planner).wait()
        except FileNotFoundError as error:
            named = f"which its {METADATA_FILE} names"
            raise CheckpointError(f"{checkpoint!r} has no file {error.filename}, {named}.") from error


def whole_weights(checkpoint: Checkpoint, metadata: Metadata) -> dict[str, Any]:
    """The model's weights, each as one tensor in main memory; no optimizer."""
    paths = metadata.planner_data or {}
    stored = metadata.state_dict_metadata
    prefix = next((each for each in _WEIGHTS if any(name.startswith(f"{each}.") for name in stored)), None)
    weights: dict[str, Any] = {}
    names: dict[str, str] = {}
    for full_name, entry in stored.items():
        head, *rest = paths.get(full_name) or full_name.split(".", 1)
        if prefix is not None and head != prefix:
            continue
        names[full_name] = ".".join(map(str, rest)) if prefix is not None else full_name
        weights[full_name] = None
        if isinstance(entry, TensorStorageMetadata):
            weights[full_name] = torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
    read_state(checkpoint, metadata, weights)
    return {name: weights[full_name] for full_name, name in names.items()}


class _Planner(DefaultLoadPlanner):
    """Loads values, which are pickles, as plain ones."""

    def __init__(self, checkpoint: Checkpoint, trust: bool) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._trust = trust

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        set_element(self.original_state_dict, self.mappings[name], self._loaded(name, value))

    def _loaded(self, name: str, value: io.BytesIO) -> Any:
        if self._trust:
            return torch.load(value, map_location="cpu", weights_only=False)
        try:
            return load_plain(value, map_location="cpu")
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{self._checkpoint!r} holds an object as {name!r} that is neither a tensor nor a plain value. It is "
                "not loaded, because it could run code. If you know who made the checkpoint, load it with trust=True."
            ) from error
