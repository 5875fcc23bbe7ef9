"""What every fault test has: a laboratory with a place for results, marks, and temporary files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.choose import choose_engine
from paceline.testing import invariants
from tests.faults.laboratory import Laboratory


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laboratory]:
    """A laboratory whose temporary directory must be empty again at the end."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SERVICE_PASSWORD", invariants.CANARY)
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield Laboratory(tmp_path)
    # torch keeps a cache of its own there.
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert not left, f"temporary files are left: {left}"


@pytest.fixture(scope="session", params=["local", pytest.param("ray", marks=pytest.mark.cluster)])
def cluster_of_engine(request: pytest.FixtureRequest) -> Any:
    """None for the engine of one machine."""
    return request.getfixturevalue("ray_cluster") if request.param == "ray" else None


@pytest.fixture
def fault_engine(cluster_of_engine: Any, results_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that runs of this test use: every test that asks for this runs once with each.

    Modules and tests ask for it by ``usefixtures("fault_engine")``.
    """
    if cluster_of_engine is None:
        return "local"
    monkeypatch.setenv("PACELINE_ENGINE", "ray")
    monkeypatch.setenv("RAY_ADDRESS", cluster_of_engine.address)  # For drivers in processes of their own.
    choose_engine()
    invariants.sockets_before = set(invariants.listening_sockets(os.getpid()))  # An engine listens as long as it lives.
    return "ray"
