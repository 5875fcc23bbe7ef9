"""IPython, if the program runs in it: whether it is a notebook, and the cells that its code is in.

IPython is never imported here. Code of a cell is in no file: a worker that runs it knows the name of the cell's code
and the number of a line, and only the process of the notebook has the line itself.
"""

from __future__ import annotations

import linecache
import re
import sys
from typing import Any

_FRAME = re.compile(r'^(?P<indent>[\s|]*)File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<rest>.*)$')
_files: dict[str, str] = {}
"""Name of a cell, as people know it -> the name of its code."""


def shell() -> Any:
    """IPython's shell; None outside IPython."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if ask is None else ask()


def in_notebook() -> bool:
    """Whether the program runs in a kernel, to which a notebook is connected: not in IPython at a terminal."""
    return getattr(shell(), "kernel", None) is not None


def cell_name(file: str) -> str | None:
    """``Cell In[3]``, if the code of a cell has this name."""
    compiler = getattr(shell(), "compile", None)
    try:
        label, name = compiler.format_code_name(file)  # type: ignore[union-attr]
    except (AttributeError, TypeError):  # not in IPython, or not the code of a cell
        return None
    _files[f"{label} {name}"] = file
    return f"{label} {name}"


def with_cells(traceback: str) -> str:
    """The text of a traceback with the names of cells and their lines, as far as this process knows them."""
    if shell() is None:
        return traceback
    lines = traceback.split("\n")
    told: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        frame = _FRAME.match(line)
        name = cell_name(frame["file"]) if frame is not None else None
        if frame is None or name is None:
            told.append(line)
            continue
        told.append(f'{frame["indent"]}File "{name}", line {frame["line"]}{frame["rest"]}')
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        if source and not following.startswith(f"{frame['indent']}  "):
            told.append(f"{frame['indent']}  {source}")
    return "\n".join(told)


def source_of(file: str) -> list[str]:
    """The lines of a file, or of a cell by its name; none if they are unknown."""
    return linecache.getlines(_files.get(file, file))


def place_in_words(file: str, line: int | str) -> str:
    """``Cell In[3], line 7`` or ``/home/me/train.py:7``."""
    return f"{file}, line {line}" if file in _files or file.startswith("Cell In[") else f"{file}:{line}"
