"""Every guarantee names tests that exist, and none of the faults is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
FAULTS = {"A": 16, "B": 9, "C": 10, "D": 5, "E": 16, "F": 14, "G": 7, "H": 8, "J": 6, "K": 5, "S": 14}
_ROW = re.compile(r"^\| ([A-S]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    return [(match[1], match[2], match[3], match[4]) for match in _ROW.finditer(PAGE.read_text())]


def test_every_fault_has_a_row() -> None:
    wanted = [f"{letter}{number}" for letter, count in FAULTS.items() for number in range(1, count + 1)]
    assert [id_ for id_, *_ in rows()] == wanted


def test_every_row_says_how_well_it_is_tested() -> None:
    assert {id_: status for id_, _, _, status in rows() if status not in ("exact", "weaker", "in progress")} == {}
    assert [id_ for id_, _, tests, status in rows() if status != "in progress" and "::" not in tests] == []


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 100
    missing = [
        f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in _functions(ROOT / path)
    ]
    assert missing == []
