"""TorchCheckpoint: a model's weights, or a whole model, as a checkpoint."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint_files import Discard
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, ConfigError
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource
from paceline.train.torch.loading import load_plain

if TYPE_CHECKING:
    import torch

    from paceline.air.packing import FileSink

WEIGHTS_FILE = "model_weights.pt"
MODEL_FILE = "model_pickled.pt"
SHARDED_METADATA_FILE = ".metadata"
"""What torch.distributed.checkpoint writes beside the parts of a sharded checkpoint."""

C = TypeVar("C", bound="TorchCheckpoint")


@dataclass(frozen=True)
class TorchObject(ModelSource):
    """Weights or a model in this process; written as a file of `torch.save`."""

    value: Any
    file_name: str

    def describe(self) -> str:
        return "model weights" if self.file_name == WEIGHTS_FILE else f"model {type(self.value).__name__}"

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        import torch

        with sink.open(self.file_name) as file:
            if self.file_name == MODEL_FILE:
                torch.save(self.value, file, pickle_module=_pickle_for(self.value))
            else:
                torch.save(self.value, file)

    def load_dict(self) -> dict[str, Any]:
        return {MODEL_KEY: self.value}


class TorchCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a PyTorch model.

    Weights (`from_state_dict`) are loaded with ``weights_only=True``: a file that was tampered
    with cannot run code. A whole model (`from_model`) is a pickle: call `get_model` or `to_dict`
    only on such checkpoints from people you trust.
    """

    @classmethod
    def from_state_dict(cls: type[C], state_dict: Mapping[str, Any], *, preprocessor: Any = None) -> C:
        """A checkpoint of a model's weights."""
        if not isinstance(state_dict, Mapping):
            raise ConfigError(
                f"from_state_dict() takes what model.state_dict() gives, not {type(state_dict).__name__}. For a model "
                "use from_model()."
            )
        return cls._of(TorchObject(state_dict, WEIGHTS_FILE), preprocessor)

    @classmethod
    def from_model(cls: type[C], model: torch.nn.Module, *, preprocessor: Any = None) -> C:
        """A checkpoint of a whole model, taken out of its DistributedDataParallel.

        Of a model in FullyShardedDataParallel the full weights are kept: they are collected from all
        ranks, so every rank must call this.
        """
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.nn import Module

        from paceline.train.torch.accelerator import unwrap

        if not isinstance(model, Module):
            raise ConfigError(f"from_model() takes a torch.nn.Module, not {type(model).__name__}.")
        model = unwrap(model)
        if isinstance(model, FullyShardedDataParallel):
            return cls.from_state_dict(_full_weights(model), preprocessor=preprocessor)
        return cls._of(TorchObject(model, MODEL_FILE), preprocessor)

    def get_model(self, model: torch.nn.Module | None = None) -> torch.nn.Module:
        """The model. Where only weights were saved, they are loaded into `model`, which must be given."""
        from torch.nn import Module

        saved = self._saved()
        if isinstance(saved, Module):
            if model is None:
                return saved
            saved = saved.state_dict()
        if not isinstance(saved, Mapping):
            raise CheckpointError(f"{self!r} holds a {type(saved).__name__} as its model.")
        if model is None:
            raise ConfigError(
                "This checkpoint holds weights but no model. Build the model and pass it: "
                "checkpoint.get_model(MyModel())."
            )
        model.load_state_dict(_fitting(saved, model))
        return model

    def get_weights(self) -> dict[str, torch.Tensor]:
        """The model's tensors by name, in main memory. Nothing but tensors and plain values is loaded, so that no code
        runs: a whole model, saved by `from_model`, is refused."""
        import torch

        with self._directory(lambda name: name == WEIGHTS_FILE) as folder:
            path = Path(folder, WEIGHTS_FILE)
            found = _load_weights(path) if path.exists() else self._whole_weights()
        if found is None:
            raise CheckpointError(
                f"{self!r} holds no weights: it has no file {WEIGHTS_FILE}, and is not sharded. Save weights with "
                "TorchCheckpoint.from_state_dict(model.state_dict()) or save_sharded(model)."
            )
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    def _saved(self) -> Any:
        """The weights or the model, read in the safest way that this checkpoint allows."""
        if isinstance(self._source, TorchObject):
            return self._source.value
        found = self._model_in_files()
        if found is not None:
            return found
        data = self.to_dict()
        if MODEL_KEY not in data:
            raise CheckpointError(
                f"{self!r} holds no model: it has no file {WEIGHTS_FILE} or {MODEL_FILE}, is not sharded, and has no "
                f"item {MODEL_KEY!r}. Save one with TorchCheckpoint.from_state_dict() or from_model()."
            )
        return data[MODEL_KEY]

    def _model_in_files(self) -> Any:
        """What the checkpoint's file of weights or its model file holds; None if it has neither."""
        import torch

        with self._directory(lambda name: name in (WEIGHTS_FILE, MODEL_FILE)) as folder:
            weights, model = Path(folder, WEIGHTS_FILE), Path(folder, MODEL_FILE)
            if weights.exists():
                return _load_weights(weights)
            if model.exists():
                return torch.load(model, map_location="cpu", weights_only=False)
        return self._whole_weights()

    def _whole_weights(self) -> dict[str, Any] | None:
        """The weights of a sharded checkpoint, put together; None if it is not one."""
        if self.part is not None or self.read_file(SHARDED_METADATA_FILE) is None:
            return None
        from paceline.train.torch.sharded_reading import sharded_metadata, whole_weights

        metadata = sharded_metadata(self)
        return None if metadata is None else whole_weights(self, metadata)


def _pickle_for(model: Any) -> Any:
    """pickle, or cloudpickle for what pickle cannot find by its name, such as a class defined in a function.

    Not cloudpickle for all: it would copy the classes of a script, so that what is loaded is no instance of them.
    """
    import torch

    class Probe(pickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:  # no tensor's content is read
            return "storage" if torch.is_storage(value) else None

    try:
        Probe(Discard()).dump(model)
    except Exception:  # the second attempt says what is wrong
        import cloudpickle

        return cloudpickle
    return pickle


def _load_weights(path: Path) -> Any:
    try:
        return load_plain(path, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, or holds objects other than tensors and plain values, which are not loaded from a "
            "file of weights. Save such a model with from_model(), or the objects with Checkpoint.from_dict()."
        ) from error


def _full_weights(model: torch.nn.Module) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def _fitting(weights: Mapping[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Weights that were saved from inside of a DistributedDataParallel have a prefix that a bare model has not."""
    prefix = "module."
    names = model.state_dict().keys()
    if weights and all(name.startswith(prefix) for name in weights) and not names & weights.keys():
        return {name.removeprefix(prefix): value for name, value in weights.items()}
    return dict(weights)
