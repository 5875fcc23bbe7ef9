from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from paceline.train.imports import AfterImport

NAME = "a_package_to_correct.inner"


def correct(module: ModuleType) -> None:
    vars(module)["answer"] += 1


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that nobody has imported yet."""
    folder = tmp_path / "a_package_to_correct"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text("answer = 41")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in (NAME, "a_package_to_correct"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder / "inner.py"


@pytest.fixture
def hook() -> Iterator[AfterImport]:
    hook = AfterImport({NAME: correct})
    yield hook
    hook.remove()


def test_a_module_is_corrected_when_it_is_imported(source: Path, hook: AfterImport) -> None:
    before = list(sys.meta_path)
    hook.install()
    hook.install()
    assert len(sys.meta_path) == len(before) + 1
    assert NAME not in sys.modules
    assert importlib.import_module(NAME).answer == 42
    hook.remove()
    assert sys.meta_path == before
    hook.install()
    assert sys.modules[NAME].answer == 42  # only once


def test_a_module_that_was_there_before_is_corrected_too(source: Path, hook: AfterImport) -> None:
    module = importlib.import_module(NAME)
    hook.install()
    assert module.answer == 42
    assert importlib.reload(module).answer == 42


def test_an_import_that_fails_is_not_the_last_chance(source: Path, hook: AfterImport) -> None:
    hook.install()
    source.write_text("raise ValueError('not now')")
    with pytest.raises(ValueError, match="not now"):
        importlib.import_module(NAME)
    source.write_text("answer = 41")
    assert importlib.import_module(NAME).answer == 42


def test_several_of_them_see_the_same_module(source: Path, hook: AfterImport) -> None:
    other = AfterImport({NAME: correct})
    hook.install()
    other.install()
    try:
        assert importlib.import_module(NAME).answer == 43
    finally:
        other.remove()


def test_what_nobody_finds_is_missing_as_before(source: Path, hook: AfterImport) -> None:
    source.unlink()
    hook.install()
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)
