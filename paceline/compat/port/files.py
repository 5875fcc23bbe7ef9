"""Ports files: reads them as they are encoded, and replaces them in one step."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.air.errors import ConfigError
from paceline.compat.port import notebook
from paceline.compat.port.source import Edit, NotPythonError, Ported, apply, line_number, port

SUFFIXES = (".py", ".ipynb")
_MENTIONS_RAY = re.compile(rb"\bray\b")
_NOT_THE_USERS = frozenset(["__pycache__", "node_modules", "site-packages"])


@dataclass(frozen=True)
class PortedFile:
    """One file: how it would look, and what a person must look at."""

    path: Path
    before: bytes
    after: bytes
    diff: str
    notes: list[str]
    """With the places as they are before the change."""
    notes_after: list[str]

    @property
    def changed(self) -> bool:
        return self.before != self.after


class CannotPortError(Exception):
    """Why a file is left alone."""


def files_in(path: Path) -> Iterator[Path]:
    """The file itself, or the scripts and notebooks of a folder; hidden and installed ones are left out."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist.")
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not _skipped(Path(folder, name)))
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIXES))


def _skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _NOT_THE_USERS or (folder / "pyvenv.cfg").exists()


def ported(path: Path) -> PortedFile:
    """How a file would look. Nothing is written."""
    try:
        before = path.read_bytes()
        if not _MENTIONS_RAY.search(before):
            return PortedFile(path, before, before, "", [], [])
        return _ported_notebook(path, before) if path.suffix == ".ipynb" else _ported_script(path, before)
    except OSError as error:
        raise CannotPortError(f"{path}: {error.strerror}") from error
    except (NotPythonError, notebook.NotANotebookError, SyntaxError, UnicodeError) as error:
        raise CannotPortError(f"{path}: {error}") from error


def _ported_script(path: Path, before: bytes) -> PortedFile:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(before).readline)
    source = before.decode(encoding).encode()
    result = port(source)
    changed = apply(source, result.edits)
    after = changed.decode().encode(encoding)
    places = [(f"{path}:{line_number(source, mark.position)}", mark.advice) for mark in result.marks]
    later = [(f"{path}:{line_number(source, mark.position, result.edits)}", mark.advice) for mark in result.marks]
    return PortedFile(path, before, after, _diff(str(path), source, changed), _notes(places), _notes(later))


def _ported_notebook(path: Path, before: bytes) -> PortedFile:
    book = notebook.read(before.decode())
    result = _port_cells(book)
    sources, diffs, places, later = {}, [], [], []
    for cell in book.cells:
        old = book.code[cell.start : cell.end]
        name = f"{path}:cell {cell.number + 1}"
        edits = [edit for edit in result.edits if cell.start <= edit.start <= cell.end]
        edits = [Edit(edit.start - cell.start, edit.end - cell.start, edit.text) for edit in edits]
        if edits:
            new = apply(old, edits)
            sources[cell.number] = new.decode()
            diffs.append(_diff(name, old, new))
        for mark in (mark for mark in result.marks if cell.start <= mark.position <= cell.end):
            position = mark.position - cell.start
            places.append((f"{name}:{line_number(old, position)}", mark.advice))
            later.append((f"{name}:{line_number(old, position, edits)}", mark.advice))
    after = book.written(sources).encode() if sources else before
    return PortedFile(path, before, after, "".join(diffs), _notes(places), _notes(later))


def _port_cells(book: notebook.Notebook) -> Ported:
    try:
        return port(book.program)
    except NotPythonError as error:
        for cell in reversed(book.cells):
            first = line_number(book.code, cell.start)
            if error.line is not None and error.line >= first:
                raise NotPythonError(error.reason, error.line - first + 1, f"cell {cell.number + 1}, ") from error
        raise


def _notes(places: list[tuple[str, str]]) -> list[str]:
    return [f"{place}: {advice}" for place, advice in places]


def _diff(name: str, before: bytes, after: bytes) -> str:
    def lines(text: bytes) -> list[str]:
        return text.decode().splitlines(keepends=True)

    out = []
    for line in difflib.unified_diff(lines(before), lines(after), name, name):
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def write(file: PortedFile) -> None:
    """Replace the file in one step, with its permissions. A link stays a link."""
    target = file.path.resolve()
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(descriptor, "wb") as stream:
                os.fchmod(descriptor, target.stat().st_mode)
                stream.write(file.after)
                stream.flush()
                os.fsync(descriptor)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise CannotPortError(f"{file.path}: {error.strerror}; the file is as it was") from error
