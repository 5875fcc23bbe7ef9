"""Files that the maps of the code name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPS = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "decisions.md", *sorted(ROOT.glob("paceline/**/README.md"))]


@pytest.mark.parametrize("path", MAPS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:[\w]+/)*[\w]+\.py)`", path.read_text()))
    assert [name for name in sorted(named) if not _is_there(name, path.parent)] == []


def _is_there(name: str, folder: Path) -> bool:
    """Paths begin at the package. A README may name files of its folder, and such as each of its subfolders has."""
    return (ROOT / "paceline" / name).exists() or (ROOT / name).exists() or any(folder.rglob(name))
