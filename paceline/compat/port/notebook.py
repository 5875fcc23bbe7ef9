"""Notebooks: their code cells are one program, in which some lines are not Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WITH_PYTHON_BELOW = ("capture", "prun", "time", "timeit")
"""Cell magics (%%time) whose cell is Python all the same."""
_MAGIC_LINE = re.compile(rb"\s*(%%?[a-zA-Z]|[!?])|[^#'\"]*=\s*(%[a-zA-Z]|!)|\s*[\w.*]+\?\??\s*$")
"""%magic, !command, ?name; files = !ls; name?"""


class NotANotebookError(Exception):
    """The file is not a notebook."""


@dataclass(frozen=True)
class Cell:
    """A code cell: where it is in the notebook, and in the program."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Notebook:
    """A notebook, and its code cells as a program. Lines that are not Python are hidden in it by as many bytes."""

    content: dict[str, Any]
    text: str
    cells: list[Cell]
    code: bytes
    """The cells as they are."""
    program: bytes
    """The same, as Python."""

    def written(self, sources: dict[int, str]) -> str:
        """The notebook with new texts for some cells, laid out as it was."""
        content = {**self.content, "cells": [dict(cell) for cell in self.content["cells"]]}
        for number, source in sources.items():
            cell = content["cells"][number]
            cell["source"] = source.splitlines(keepends=True) if isinstance(cell["source"], list) else source
        return _dumped(content, self.text)


def read(text: str) -> Notebook:
    """A notebook from the text of its file."""
    try:
        content = json.loads(text)
        sources = {
            number: _source(cell) for number, cell in enumerate(content["cells"]) if cell.get("cell_type") == "code"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotANotebookError("this is not a notebook of format 4") from error
    cells, code, program = [], b"", b""
    for number, source in sources.items():
        lines = source.encode().splitlines(keepends=True)
        cells.append(Cell(number, len(code), len(code) + len(source.encode())))
        code += b"".join(lines) + b"\n"
        program += b"".join(_as_python(lines)) + b"\n"
    return Notebook(content, text, cells, code, program)


def _source(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return "".join(source) if isinstance(source, list) else str(source)


def _as_python(lines: list[bytes]) -> Iterator[bytes]:
    magic = lines[0].strip() if lines else b""
    other_language = magic.startswith(b"%%") and not magic[2:].decode().startswith(_WITH_PYTHON_BELOW)
    continued = False
    for line in lines:
        if other_language or continued:
            hidden = _hidden(line, b"")
        elif _MAGIC_LINE.match(line):
            hidden = _hidden(line, b"0")  # a statement: it may be the only one of a block
        else:
            hidden = None
        continued = hidden is not None and line.rstrip().endswith(b"\\")
        yield line if hidden is None else hidden


def _hidden(line: bytes, statement: bytes) -> bytes:
    """A comment that is as long, maybe after a statement without effect."""
    content = line.rstrip(b"\r\n")
    body = content.lstrip(b" \t")
    if not body:
        return line
    indent = content[: len(content) - len(body)]
    return indent + statement + b"#" * (len(body) - len(statement)) + line[len(content) :]


def _dumped(content: dict[str, Any], like: str) -> str:
    indent = re.search(r"\n([ \t]+)", like)
    text = json.dumps(content, indent=indent[1] if indent else None, ensure_ascii=like.isascii() and "\\u" in like)
    return text + like[len(like.rstrip()) :]
