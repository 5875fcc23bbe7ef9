"""Which browser the tests of the page use."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tools import browser


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
