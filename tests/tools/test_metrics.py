"""tools/metrics.py reads the size of a package from its source and counts the files that a walk enters."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "metrics.py"
SOURCE = """
class Run:
    limit: int = 3

    def __init__(self):
        self.first = 1
        self.second: int = 2

    def step(self):
        global counter
        self.first = 4
"""


@pytest.fixture(scope="module")
def metrics():
    spec = importlib.util.spec_from_file_location("metrics", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_of_a_small_package(tmp_path, metrics):
    package = tmp_path / "paceline"
    package.mkdir()
    (package / "__init__.py").write_text("from paceline.other import Run as Other\n")
    (package / "run.py").write_text(SOURCE)
    (package / "other.py").write_text("from typing import Any\n\n\nclass Run:\n    field: Any\n")

    figures = metrics.source_figures(package)

    assert figures["files"] == 3
    assert figures["uses of global"] == 1
    assert figures["uses of Any"] == 2
    assert figures["attributes"]["Run"] == 3
    assert figures["class names defined in several files"] == "Run(2)"
    assert figures["longest files"]["paceline/run.py"] == SOURCE.count("\n")
    assert figures["files of at most 70 lines that one other file imports"] == 1


def test_walks_see_the_driver_and_the_worker(metrics):
    entered = metrics.walk(SCRIPT.parent.parent, "fit(), local: driver, warden and worker")
    assert "paceline/run/run.py" in entered
    assert "paceline/run/session.py" in entered
    assert "paceline/engine/local/warden.py" in entered


def test_everything_as_json(tmp_path):
    package = tmp_path / "paceline"
    package.mkdir()
    (package / "__init__.py").write_text("")
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, "--json", "--no-walks"], check=True, capture_output=True)
    assert json.loads(done.stdout)["files"] == 1
