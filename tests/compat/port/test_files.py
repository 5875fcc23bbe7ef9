"""Porting files: encodings, permissions, folders, notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.compat.port.files import CannotPortError, files_in, ported, write


def ported_and_written(path: Path) -> bytes:
    write(ported(path))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# coding: latin-1\nimport ray\nx = '\xe9'\n", b"# coding: latin-1\nimport paceline\nx = '\xe9'\n"),
        (b"\xef\xbb\xbfimport ray\r\nray.init()", b"\xef\xbb\xbfimport paceline\r\npaceline.init()"),
        (b"x = 1\n\x0c\nimport ray\n", b"x = 1\n\x0c\nimport paceline\n"),
        (b"", b""),
    ],
)
def test_encoding_and_line_ends_stay(before: bytes, after: bytes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(before)
    assert ported_and_written(script) == after


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    script, link = tmp_path / "script", tmp_path / "link.py"
    script.write_text("#!/usr/bin/env python\nimport ray\n")
    script.chmod(0o750)
    link.symlink_to(script)
    assert b"import paceline" in ported_and_written(link)
    assert link.is_symlink()
    assert script.stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == ["link.py", "script"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("script.py", b"import ray\ndef f(:\n"),
        ("script.py", b"# coding: no-such-thing\nimport ray\n"),
        ("script.py", b"import ray\n\xff"),
        ("book.ipynb", b"import ray"),
        ("book.ipynb", b'{"worksheets": "ray"}'),
    ],
)
def test_what_cannot_be_parsed_is_not_written(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotPortError, match=name):
        ported(tmp_path / name)


def test_a_folder_is_searched_for_what_is_the_users(tmp_path: Path) -> None:
    for name in ("a.py", "deep/b.ipynb", ".git/c.py", "env/pyvenv.cfg", "env/d.py", "__pycache__/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in files_in(tmp_path)] == ["a.py", "deep/b.ipynb"]
    with pytest.raises(ConfigError, match="no-such"):
        list(files_in(tmp_path / "no-such"))


def code(*lines: str, as_list: bool = True) -> dict[str, Any]:
    text = "\n".join(lines)
    source = text.splitlines(keepends=True) if as_list else text
    return {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": source}


BOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["`import ray`, naïvely"]},
        code("%pip install ray", "!echo ray \\", "  more", "import ray"),
        code("%%time", "files = !ls", "ray.init('a %s'", "  % 'b')", "ray?"),
        code("%%bash", "import ray && (("),
        code("if True:", "    %matplotlib inline", "    x = ray.get(1)", "ray.data.from_items([1])"),
        code("from ray import tune", as_list=False),
        code(),
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def test_the_cells_of_a_notebook_are_one_program(tmp_path: Path) -> None:
    book = tmp_path / "book.ipynb"
    book.write_text(json.dumps(BOOK, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    before = book.read_text(encoding="utf-8")
    result = ported(book)
    assert [note.partition(": ")[0] for note in result.notes] == [f"{book}:cell 5:3"]
    assert f"+++ {book}:cell 3\n" in result.diff
    write(result)
    after = book.read_text(encoding="utf-8")
    cells = ["".join(cell["source"]).splitlines() for cell in json.loads(after)["cells"]]
    assert cells[1] == ["%pip install ray", "!echo ray \\", "  more", "import paceline", "import ray"]
    assert cells[2] == ["%%time", "files = !ls", "paceline.init('a %s'", "  % 'b')", "ray?"]
    assert cells[3] == ["%%bash", "import ray && (("]
    assert cells[4][1] == "    %matplotlib inline"
    assert cells[4][3:] == ["    x = ray.get(1)", "paceline.data.from_items([1])"]
    assert json.loads(after)["cells"][5]["source"] == "from paceline import tune"
    # Nothing else moved: every line that is new has something to do with the change.
    new = set(after.splitlines()) - set(before.splitlines())
    assert all("paceline" in line or "import ray" in line for line in new)
    assert not ported(book).changed


def test_the_cell_that_is_not_python_is_named(tmp_path: Path) -> None:
    book = tmp_path / "book.ipynb"
    book.write_text(json.dumps({"cells": [code("import ray"), code("x = 1", "y = = 2"), code("z")]}))
    with pytest.raises(CannotPortError, match="cell 2, line 2"):
        ported(book)


def test_files_that_only_sound_like_ray_are_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'an array'\n")
    assert not ported(tmp_path / "old.py").changed
