"""What the checkpoints of all frameworks share: a model of this process as a checkpoint, and as an item of its dict."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_sources import PACKED_FILES_KEY, ContentSource, Kind, LocalDirectory
from paceline.air.constants import MODEL_KEY
from paceline.air.temporary import temporary_directory

if TYPE_CHECKING:
    from paceline.air.packing import FileSink

C = TypeVar("C", bound="ModelCheckpoint")


class ModelSource(ContentSource):
    """A model in this process. It becomes files only when they are needed."""

    kind: ClassVar[Kind] = "data_dict"

    def read_file(self, name: str) -> bytes | None:
        return None


@dataclass(frozen=True)
class ModelFile(ModelSource):
    """A model as it was when the checkpoint was made: training may go on, and a file may be removed."""

    content: bytes
    file_name: str

    def describe(self) -> str:
        return f"{self.file_name} of {len(self.content):,} bytes"

    def read_file(self, name: str) -> bytes | None:
        return self.content if name == self.file_name else None

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        with sink.open(self.file_name) as file:
            file.write(self.content)

    def load_dict(self) -> dict[str, Any]:
        with temporary_directory() as folder:
            (folder / self.file_name).write_bytes(self.content)
            return LocalDirectory(str(folder)).load_dict()


class ModelCheckpoint(Checkpoint):
    """A checkpoint that holds a model of a framework."""

    @classmethod
    def _of(
        cls: type[C], source: ContentSource, preprocessor: Any = None, path: str | os.PathLike[str] | None = None
    ) -> C:
        """With `path`, written to that directory at once."""
        checkpoint = cls.__new__(cls)
        checkpoint._adopt(source)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint if path is None else cls.from_directory(checkpoint.to_directory(path))

    def to_dict(self) -> dict[str, Any]:
        """As for any checkpoint; the model is under "model"."""
        data = super().to_dict()
        if MODEL_KEY not in data and PACKED_FILES_KEY in data:
            found = self._model_in_files()
            if found is not None:
                data[MODEL_KEY] = found
                del data[PACKED_FILES_KEY]
        return data

    def _model_in_files(self) -> Any:
        """The model for the dict; None: it stays in the files."""
        return None


def file_names(folder: str | os.PathLike[str]) -> str:
    """What is in a directory, for messages."""
    return ", ".join(sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith("."))) or "none"
