"""The first place at which two values or two directories differ."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.testing.differences import first_difference, first_file_difference


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, "x", None, b"b"], "n": math.nan},
        np.arange(6.0).reshape(2, 3),
        np.array([math.nan, 1.0]),
        Plain(np.ones(2)),
        np.array([{"a": 1}], dtype=object),
        (),
    ],
)
def test_equal_values(value: Any) -> None:
    assert first_difference(value, pickle.loads(pickle.dumps(value))) is None


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "['a']['b'][1] is 3 instead of 2"),
        ({"a": 1}, {}, "['a'] is missing"),
        ({}, {"a": 1}, "['a'] should not be there"),
        ([1], [1, 2], "[1] should not be there"),
        (1, 1.0, "is 1.0 instead of 1"),
        (0.0, -0.0, "is -0.0 instead of 0.0"),
        (np.arange(4).reshape(2, 2), np.array([[0, 1], [2, 4]]), "[1, 1] is 4 instead of 3 (1 of 4 elements differ)"),
        (np.zeros(2), np.zeros(3), "is float64[3] instead of float64[2]"),
        (np.zeros(2), np.zeros(2, dtype="float32"), "is float32[2] instead of float64[2]"),
        (Plain(1), Plain(2), ".__dict__['value'] is 2 instead of 1"),
    ],
)
def test_different_values(one: Any, other: Any, said: str) -> None:
    found = first_difference(one, other)
    assert found is not None
    assert found.strip() == said


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        tensor = torch.ones(2, 2, dtype=kind)
        changed = tensor.clone()
        changed[1, 0] = 2
        assert first_difference({"w": tensor}, {"w": tensor.clone()}) is None
        assert "['w'][1, 0]" in str(first_difference({"w": tensor}, {"w": changed}))


def write(folder: Path, value: float) -> Path:
    (folder / "nested").mkdir(parents=True)
    (folder / "MANIFEST.json").write_text(str(folder))
    (folder / "a.json").write_text(json.dumps({"x": 1}))
    np.savez(folder / "nested" / "weights.npz", w=np.array([1.0, value]))
    return folder


def test_files(tmp_path: Path) -> None:
    one, same, other = (write(tmp_path / name, value) for name, value in (("1", 2.0), ("2", 2.0), ("3", 3.0)))
    (same / "a.json").write_text('{"x":   1}')
    assert first_file_difference(one, same) is None, "spaces in JSON do not matter, nor do our own files"
    assert first_file_difference(one, other) == (
        "nested/weights.npz: ['w'][1] is 3.0 instead of 2.0 (1 of 2 elements differ)"
    )
    (one / "extra.bin").write_bytes(b"abc")
    assert first_file_difference(one, same) == "extra.bin is missing"
    (same / "extra.bin").write_bytes(b"abd")
    assert first_file_difference(one, same) == "extra.bin: byte 2 is 100 instead of 99"
