"""Places for checkpoints: a directory with files, and a URI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "made by hand"
    (path / "sub" / "empty").mkdir(parents=True)
    (path / "model.bin").write_bytes(bytes(range(256)) * 100)
    (path / "sub" / "tool.sh").write_text("#!/bin/sh\n")
    (path / "sub" / "tool.sh").chmod(0o750)
    return path


@pytest.fixture
def memory_uri(tmp_path: Path) -> Iterator[str]:
    yield f"memory://{tmp_path.name}/checkpoint"
    fsspec.filesystem("memory").rm("/", recursive=True)
