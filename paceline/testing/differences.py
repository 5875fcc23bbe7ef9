"""Where two values, or the files of two checkpoints, differ first. Numbers are compared bit for bit.

Files that may hold code when they are read (pickles, torch's own format) are read as such: whoever compares two
checkpoints has just made both.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.air.constants import (
    ADDED_BY_TO_DICT,
    CHECKPOINT_DATA_FILE,
    CHECKPOINT_MANIFEST_FILE,
    CHECKPOINT_METADATA_FILE,
    DICT_CHECKPOINT_FILE,
)

OWN_FILES = {CHECKPOINT_DATA_FILE, CHECKPOINT_MANIFEST_FILE, CHECKPOINT_METADATA_FILE}
"""What paceline adds to a checkpoint: times, hashes, attempts."""
_MISSING = object()


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """The first place at which `other` is not exactly like `one`, which is what was expected; None if it is."""
    array = _as_array(one), _as_array(other)
    if array[0] is not None and array[1] is not None:
        return _arrays(array[0], array[1], path)
    if type(one) is not type(other):
        return f"{path} is {_shown(other)} instead of {_shown(one)}"
    if isinstance(one, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            found = _present(one.get(key, _MISSING), other.get(key, _MISSING), f"{path}[{key!r}]")
            if found is not None:
                return found
        return None
    if isinstance(one, Sequence) and not isinstance(one, str | bytes | bytearray):
        for number in range(max(len(one), len(other))):
            values = [each[number] if number < len(each) else _MISSING for each in (one, other)]
            found = _present(values[0], values[1], f"{path}[{number}]")
            if found is not None:
                return found
        return None
    if isinstance(one, float):
        return None if one.hex() == other.hex() else f"{path} is {other!r} instead of {one!r}"
    if hasattr(one, "__dict__") and "__eq__" not in {name for cls in type(one).__mro__[:-1] for name in vars(cls)}:
        return first_difference(vars(one), vars(other), f"{path}.__dict__")
    return None if _equal(one, other) else f"{path} is {_shown(other)} instead of {_shown(one)}"


def _present(one: Any, other: Any, path: str) -> str | None:
    if other is _MISSING:
        return f"{path} is missing"
    if one is _MISSING:
        return f"{path} should not be there"
    return first_difference(one, other, path)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return pickle.dumps(one) == pickle.dumps(other)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _as_array(value: Any) -> Any:
    """A numpy array for arrays and tensors; None for everything else."""
    import numpy

    if isinstance(value, numpy.ndarray | numpy.generic):
        return numpy.asarray(value)
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        import torch

        tensor = value.detach().cpu()
        tensor = (tensor.to_dense() if tensor.is_sparse else tensor).contiguous()
        return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return None


def _arrays(one: Any, other: Any, path: str) -> str | None:
    import numpy

    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{path} is {other.dtype}{list(other.shape)} instead of {one.dtype}{list(one.shape)}"
    if one.dtype == object:
        return first_difference(one.tolist(), other.tolist(), path)
    if one.tobytes() == other.tobytes():
        return None
    width = one.dtype.itemsize
    differs = (
        (
            numpy.frombuffer(one.tobytes(), dtype=numpy.uint8).reshape(-1, width)
            != numpy.frombuffer(other.tobytes(), dtype=numpy.uint8).reshape(-1, width)
        )
        .any(axis=1)
        .reshape(one.shape)
    )
    where = tuple(int(place) for place in numpy.argwhere(differs)[0])
    index = f"[{', '.join(map(str, where))}]" if where else ""
    count = f" ({int(differs.sum())} of {differs.size} elements differ)" if differs.size > 1 else ""
    return f"{path}{index} is {other[where].item()!r} instead of {one[where].item()!r}{count}"


# -- files --------------------------------------------------------------------------------


def first_file_difference(one: Path, other: Path) -> str | None:
    """The same for two directories of files."""
    names = [
        {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - OWN_FILES
        for root in (one, other)
    ]
    for name in sorted(names[0] | names[1]):
        if name not in names[1]:
            return f"{name} is missing"
        if name not in names[0]:
            return f"{name} should not be there"
        found = _files(one / name, other / name, name)
        if found is not None:
            return found
    return None


def _files(one: Path, other: Path, name: str) -> str | None:
    contents = one.read_bytes(), other.read_bytes()
    if contents[0] == contents[1]:
        return None
    try:
        values = _read(one), _read(other)
    except Exception:  # not what its name says: the bytes have to do
        values = contents
    if isinstance(values[0], bytes) and isinstance(values[1], bytes):
        if len(values[0]) != len(values[1]):
            return f"{name} has {len(values[1])} bytes instead of {len(values[0])}"
        offset = next(at for at, (a, b) in enumerate(zip(*values, strict=True)) if a != b)
        return f"{name}: byte {offset} is {values[1][offset]} instead of {values[0][offset]}"
    return first_difference(values[0], values[1], f"{name}: ")


def _read(path: Path) -> Any:
    """What a file holds, by its format."""
    suffix = path.suffix
    if suffix in (".npy", ".npz"):
        import numpy

        loaded = numpy.load(path, allow_pickle=False)
        return loaded if suffix == ".npy" else dict(loaded)
    if suffix == ".json":
        return json.loads(path.read_text())
    if suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(sorted(load_file(path).items()))
    if zipfile.is_zipfile(path) and suffix in (".pt", ".pth", ".bin", ".ckpt", ".tar"):
        import torch

        return torch.load(path, map_location="cpu", weights_only=False)
    if suffix in (".pkl", ".pickle"):
        with path.open("rb") as file:
            value = pickle.load(file)
        if path.name == DICT_CHECKPOINT_FILE and isinstance(value, dict):
            return {key: item for key, item in value.items() if key not in ADDED_BY_TO_DICT}
        return value
    return path.read_bytes()
