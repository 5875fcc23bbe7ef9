"""LightningCheckpoint: a file that Lightning saved, as a checkpoint."""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.errors import CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.air.packing import tree
from paceline.train.lightning.packages import package_of
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource, file_names
from paceline.train.torch.loading import load_plain

if TYPE_CHECKING:
    from paceline.air.packing import FileSink

CHECKPOINT_FILE = "checkpoint.ckpt"
_READABLE_FILES = (CHECKPOINT_FILE, "model")
"""Ours first; the other is what another program calls it."""

C = TypeVar("C", bound="LightningCheckpoint")
M = TypeVar("M")


@dataclass(frozen=True)
class SavedByLightning(ModelSource):
    """What `trainer.save_checkpoint(path)` wrote: a file, or a directory where each rank saved its part."""

    path: str

    def describe(self) -> str:
        return f"Lightning's {self.path}"

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        saved = Path(self.path)
        inside = tree(saved) if saved.is_dir() else [("", saved)]
        for name, path in inside:
            with path.open("rb") as source, sink.open(f"{CHECKPOINT_FILE}/{name}" if name else CHECKPOINT_FILE) as file:
                shutil.copyfileobj(source, file, 1 << 20)

    def load_dict(self) -> dict[str, Any]:
        import torch

        loaded: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=False)
        return loaded


class LightningCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a file of Lightning's, "checkpoint.ckpt": weights, optimizers, progress, callbacks.

    Such a file is a pickle. It is only loaded if it holds nothing but tensors and plain values, and then cannot
    run code; a module whose hyperparameters are other objects needs your word, ``weights_only=False``: give it for
    checkpoints from people you trust.
    """

    @classmethod
    def from_path(cls: type[C], path: str | os.PathLike[str], *, preprocessor: Any = None) -> C:
        """A checkpoint of a file that Lightning saved."""
        if not os.path.exists(path):
            raise CheckpointNotFoundError(f"LightningCheckpoint.from_path: there is no file {os.fspath(path)}.")
        return cls._of(SavedByLightning(os.path.abspath(path)), preprocessor)

    @classmethod
    def _at(cls: type[C], path: str) -> C:
        """The same of a file that only rank 0 need have."""
        return cls._of(SavedByLightning(path))

    def get_model(
        self,
        model_class: type[M] | None = None,
        *,
        weights_only: bool = True,
        **load_from_checkpoint_kwargs: Any,
    ) -> M:
        """The module, made by `model_class.load_from_checkpoint()` with these arguments.

        Arguments of the module's constructor are needed where it does not call `self.save_hyperparameters()`.
        """
        if model_class is None:
            raise ConfigError(
                "get_model() needs the class of the LightningModule, which a checkpoint does not hold: "
                "checkpoint.get_model(MyModule), for example."
            )
        if not isinstance(model_class, type) or package_of(model_class) is None:
            raise ConfigError(
                f"get_model() takes the class of the LightningModule, not {_shown(model_class)}: "
                "checkpoint.get_model(MyModule)."
            )
        loader: Any = model_class
        arguments = {"map_location": "cpu", **load_from_checkpoint_kwargs}
        if "weights_only" in inspect.signature(loader.load_from_checkpoint).parameters:
            arguments["weights_only"] = weights_only
        with self.as_lightning_file() as path:
            if weights_only:
                check_is_plain(path, "checkpoint.get_model(MyModule, weights_only=False)")
            model: M = loader.load_from_checkpoint(path, **arguments)
        return model

    @contextmanager
    def as_lightning_file(self) -> Iterator[str]:
        """The path of Lightning's file, for `trainer.fit(ckpt_path=...)`."""
        if isinstance(self._source, SavedByLightning):
            yield self._source.path
            return
        with self._directory(lambda name: name.split("/")[0] in _READABLE_FILES) as folder:
            found = next((path for name in _READABLE_FILES if (path := Path(folder, name)).exists()), None)
            if found is None:
                raise CheckpointError(
                    f"{self!r} holds nothing that Lightning saved: it has no file {CHECKPOINT_FILE}, but "
                    f"{file_names(folder)}. Make one of a file with LightningCheckpoint.from_path()."
                )
            yield str(found)


def check_is_plain(path: str, advice: str) -> None:
    """Refuse a file whose loading could run code; `advice` is how to load it nevertheless."""
    if os.path.isdir(path):
        raise CheckpointError(
            f"{path} is a directory that each rank saved its part to, and could run code when it is loaded. If you "
            f"know where it comes from: {advice}."
        )
    try:
        load_plain(path, map_location="meta", mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds objects other than tensors and plain values, such as hyperparameters of the module, and "
            f"could run code when it is loaded. If you know where it comes from: {advice}."
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is not a file that Lightning saved, or is damaged: {error}") from error


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
