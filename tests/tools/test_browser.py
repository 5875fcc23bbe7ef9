"""Which browser the tests of the page use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tools import browser

PROJECT = Path(__file__).parents[2]


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert browser.find() is None
    on_path = program(tmp_path / "bin" / "chromium-browser")
    assert browser.find() == browser.Browser(str(on_path))
    downloaded = browser.Browser(str(program(browser.cache() / "shell")), {"LD_LIBRARY_PATH": "somewhere"})
    (browser.cache() / "browser.json").write_text(json.dumps(asdict(downloaded)))
    assert browser.find() == downloaded  # the one on the PATH did not work, or it would not have been downloaded
    Path(downloaded.executable).unlink()
    assert browser.find() == browser.Browser(str(on_path))
    monkeypatch.setenv("PACELINE_CHROMIUM", "/my/own")
    assert browser.find() == browser.Browser("/my/own")


@pytest.mark.parametrize("target", ["test", "test-slow"])
def test_make_looks_for_the_browser_each_time(target: str) -> None:
    """A file that says it was there would outlive the cache that it is in."""
    done = subprocess.run(["make", "-n", target], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True)
    assert "tools/browser.py" in done.stdout


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_browser_the_summary_says_so(tmp_path: Path, ci: str) -> None:
    pytest.importorskip("playwright")
    name = "tests/view/test_browser_list.py::test_a_server_that_is_gone_and_comes_back"
    environment = {**os.environ, "PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path), "CI": ci}
    environment.pop("PACELINE_CHROMIUM", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", name]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120)
    assert "no Chromium: `python tools/browser.py` downloads it, without root" in done.stdout
    assert ("1 test in a browser did NOT run" in done.stdout) == (not ci)
    assert (done.returncode != 0) == bool(ci)
