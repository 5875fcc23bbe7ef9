"""What can happen to a file or a directory."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def garble(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(max(300, path.stat().st_size)))


def overwrite_with_text(path: Path) -> None:
    path.write_text('something, else\n{"a"\n1\n')


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


TO_FILES = [garble, overwrite_with_text, truncate, empty, delete, replace_by_directory]
TO_DIRECTORIES = [delete, replace_by_file]
