"""What every fault test has: a laboratory with a place for results, marks, and temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.laboratory import Laboratory


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laboratory]:
    """A laboratory whose temporary directory must be empty again at the end."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield Laboratory(tmp_path)
    # torch keeps a cache of its own there.
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert not left, f"temporary files are left: {left}"
