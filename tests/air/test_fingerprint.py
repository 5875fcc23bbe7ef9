"""The code of a run is recognised, and so are its changes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.air.settings import changes, fingerprint

SCRIPT = """
def helper(x):
    return x + 1

def unused():
    return 0

class Net:
    def forward(self, x):
        return helper(x)

def train(config):
    return Net().forward(config["x"])
"""


def loaded(directory: Path, source: str, name: str = "script.py") -> dict[str, Any]:
    """The names of a script that was just imported from a file of its own."""
    path = directory / name
    path.write_text(source)
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(source, str(path), "exec"), names)
    return names


def test_the_function_and_what_it_refers_to_in_its_module(tmp_path: Path) -> None:
    found = fingerprint(loaded(tmp_path, SCRIPT)["train"])
    assert found is not None
    assert list(found["functions"]) == ["Net.forward", "helper", "train"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("x + 1", "x + 2", "changed: helper"),
        ('config["x"]', 'config["y"]', "changed: train"),
        ("return helper(x)", "return x", r"changed: Net.forward; gone: helper"),
        ("return 0", "return 1", "^$"),
    ],
)
@pytest.mark.parametrize("with_source", [True, False])
def test_changes_are_named(tmp_path: Path, old: str, new: str, told: str, with_source: bool) -> None:
    before = fingerprint(_made(tmp_path, SCRIPT, "before.py", with_source))
    after = fingerprint(_made(tmp_path, SCRIPT.replace(old, new), "after.py", with_source))
    assert re.search(told, changes(before, after))
    assert changes(before, before) == ""


def _made(directory: Path, source: str, name: str, with_source: bool) -> Any:
    names = loaded(directory, source, name)
    if not with_source:
        (directory / name).unlink()
    return names["train"]


def test_python_is_part_of_it() -> None:
    now = fingerprint(loaded)
    assert now is not None
    assert "Python 2.7" in changes({**now, "python": "2.7"}, now)


@pytest.mark.parametrize("unknown", [None, print, 3, functools.partial(print)])
def test_unknown_code_has_not_changed(unknown: Any) -> None:
    assert fingerprint(unknown) is None
    assert changes(fingerprint(unknown), fingerprint(loaded)) == ""
    assert changes(fingerprint(loaded), fingerprint(unknown)) == ""


def test_partials_methods_and_objects_stand_for_their_functions(tmp_path: Path) -> None:
    names = loaded(tmp_path, SCRIPT + "\nclass Loop:\n    def __call__(self):\n        return helper(1)\n")
    assert fingerprint(functools.partial(names["train"], {})) == fingerprint(names["train"])
    found = fingerprint(names["Loop"]())
    assert found is not None
    assert list(found["functions"]) == ["Loop.__call__", "helper"]
    found = fingerprint(names["Net"]().forward)
    assert found is not None
    assert list(found["functions"]) == ["Net.forward", "helper"]


@pytest.mark.parametrize("text", ["def train(config):\n    return (1,\n", '"""\n'])
def test_a_script_that_is_being_edited_is_no_error(tmp_path: Path, text: str) -> None:
    train = loaded(tmp_path, "def train(config):\n    return 1\n")["train"]
    (tmp_path / "script.py").write_text(text)
    found = fingerprint(train)
    assert found is not None
    assert found["functions"]["train"].startswith("code:")
