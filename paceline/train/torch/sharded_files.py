"""The files of a sharded checkpoint, in the format of torch.distributed.checkpoint (DCP), which reads them too.

Each rank's part is one file, in which every entry is what torch.save makes of it; `.metadata` says where each entry is.
The length of an entry follows from shape and type, so rank 0 knows every place before anybody has written anything:
ranks need not meet again after they have written. What torch.save puts around a tensor's memory is made once for each
shape. It has no checksums of its own, because the run's manifest has one of the whole file.

`.metadata` is a pickle. It is read without calling anything that it names: each class that DCP writes has a stand-in
that only remembers what it was given, and the objects are made of these afterwards.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.utils.serialization import config

from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.air.manifest import is_inside
from paceline.train.torch.checkpoint import SHARDED_METADATA_FILE

METADATA_FILE = SHARDED_METADATA_FILE


def part_file(rank: int) -> str:
    """The name of a rank's file."""
    return f"__{rank}_0.distcp"


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One entry of a file: a tensor's memory with what comes before and after it, or bytes alone."""

    before: bytes
    tensor: torch.Tensor | None = None
    after: bytes = b""

    def write(self, file: BinaryIO) -> None:
        file.write(self.before)
        if self.tensor is not None:
            file.write(memory_of(self.tensor))
            file.write(self.after)


@dataclass(frozen=True)
class Frame:
    """What torch.save writes before and after the memory of a tensor."""

    before: bytes
    after: bytes
    memory: int

    @property
    def length(self) -> int:
        return len(self.before) + self.memory + len(self.after)


@lru_cache(maxsize=4096)
def frame_of(shape: tuple[int, ...], dtype: torch.dtype) -> Frame:
    """The frame of a contiguous tensor of this shape and type."""
    example = torch.empty(shape, dtype=dtype, device="cpu")  # its memory is never touched
    sink = _FrameSink(example.data_ptr(), example.nbytes)
    with config.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
        torch.save(example, sink)  # type: ignore[arg-type]  # it only writes
    if len(sink.pieces) != (2 if example.nbytes else 1):
        raise CheckpointError(
            f"this version of PyTorch ({torch.__version__}) stores tensors in a layout that paceline does not support. "
            "Use torch.distributed.checkpoint directly, or another version."
        )
    before, after = (*sink.pieces, bytearray())[:2]
    return Frame(bytes(before), bytes(after), example.nbytes)


class _FrameSink(io.RawIOBase):
    """Takes what torch.save writes, and leaves out the tensor's memory."""

    def __init__(self, address: int, size: int) -> None:
        self.pieces = [bytearray()]
        self._memory = address, size

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        size = view.nbytes
        if size > 0 and (np.frombuffer(view, dtype=np.uint8).ctypes.data, size) == self._memory:
            self.pieces.append(bytearray())
        else:
            self.pieces[-1] += view
        return size


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is nothing but its shape, its type and its memory."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The content of a plain tensor, in order; not a copy if it is contiguous and in main memory."""
    array: Any = flat_bytes(tensor.cpu()).numpy()
    return memoryview(array)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a row of bytes, where the tensor is."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def saved_bytes(value: Any) -> bytes:
    """What torch.save makes of a value."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def encode_metadata(metadata: Metadata, places: Mapping[MetadataIndex, _StorageInfo]) -> bytes:
    """The content of `.metadata`."""
    metadata.storage_data = dict(places)
    metadata.version = "1.0.0"
    return pickle.dumps(metadata)


def place(rank: int, offset: int, length: int) -> _StorageInfo:
    return _StorageInfo(part_file(rank), offset, length)


# -- reading ---------------------------------------------------------------------------------------


def decode_metadata(content: bytes, where: str) -> Metadata:
    """What `.metadata` says. Nothing that it names is called or changed."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
        return _metadata(found)
    except _UnexpectedError as error:
        raise CheckpointError(
            f"{where}: its {METADATA_FILE} holds {error}, which torch.distributed.checkpoint does not write there. It "
            "is not loaded, because it could run code. If you know who made the checkpoint, load it with trust=True."
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointCorruptError(f"{where}: its {METADATA_FILE} is damaged: {error!r}") from error


class _UnexpectedError(Exception):
    """Something that does not belong into a `.metadata`."""


class _StandIn:
    """In place of an object: what it was made from."""

    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any) -> _StandIn:
        self = object.__new__(cls)
        self.args = args
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


_OF_DCP = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        (_OF_DCP, name)
        for name in (
            *("Metadata", "StorageMeta", "MetadataIndex", "TensorProperties", "_MEM_FORMAT_ENCODING"),
            *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        )
    ),
    ("pathlib", "PosixPath"),  # where it was written
    ("pathlib", "WindowsPath"),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._made: dict[tuple[str, str], type[_StandIn]] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _KNOWN:
            return self._made.setdefault((module, name), type(name, (_StandIn,), {}))
        value = vars(torch).get(name) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise _UnexpectedError(f"{module}.{name}")


def _metadata(found: Any) -> Metadata:
    state = _state_of(found, "Metadata")
    return Metadata(
        state_dict_metadata=_mapped(state["state_dict_metadata"], _text, _stored),
        planner_data=None if state["planner_data"] is None else _mapped(state["planner_data"], _text, _path),
        storage_data=_mapped(state["storage_data"], _index, _place),
        version=state.get("version"),
    )


def _state_of(found: Any, name: str) -> Any:
    if not isinstance(found, _StandIn) or type(found).__name__ != name:
        raise _UnexpectedError(f"{type(found).__name__} in place of {name}")
    return found.state


def _mapped(found: Any, key: Callable[[Any], Any], value: Callable[[Any], Any]) -> dict[Any, Any]:
    if type(found) is not dict:
        raise _UnexpectedError(f"{type(found).__name__} in place of a dict")
    return {key(name): value(content) for name, content in found.items()}


def _text(found: Any) -> str:
    if type(found) is not str:
        raise _UnexpectedError(f"{type(found).__name__} in place of a text")
    return found


def _number(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise _UnexpectedError(f"{found!r} in place of a number")
    return found


def _path(found: Any) -> tuple[Any, ...]:
    if type(found) not in (tuple, list) or any(type(part) not in (str, int) for part in found):
        raise _UnexpectedError(f"{type(found).__name__} in place of a path")
    return tuple(found)


def _size(found: Any) -> torch.Size:
    _state_of(found, "Size")
    return torch.Size(_number(number) for number in found.args[0])


def _stored(found: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if type(found).__name__ == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _state_of(found, "TensorStorageMetadata")
    dtype = _state_of(state["properties"], "TensorProperties")[0]
    if not isinstance(dtype, torch.dtype):
        raise _UnexpectedError(f"{type(dtype).__name__} in place of a dtype")
    chunks = [_state_of(chunk, "ChunkStorageMetadata") for chunk in state["chunks"]]
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype),
        _size(state["size"]),
        [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _index(found: Any) -> MetadataIndex:
    state = _state_of(found, "MetadataIndex")
    offset, index = state.get("offset"), state.get("index")
    return MetadataIndex(
        _text(state["fqn"]), None if offset is None else _size(offset), None if index is None else _number(index)
    )


def _place(found: Any) -> _StorageInfo:
    state = _state_of(found, "_StorageInfo")
    name = _text(state["relative_path"])
    if not is_inside(name) or state.get("transform_descriptors"):
        raise _UnexpectedError(
            f"a place that is not inside the checkpoint ({name!r})" if not is_inside(name) else "a codec"
        )
    return _StorageInfo(name, _number(state["offset"]), _number(state["length"]))
