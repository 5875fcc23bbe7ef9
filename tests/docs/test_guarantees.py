"""Every guarantee names tests that run and say which fault they are about, and none of the faults is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
FAULTS = {"A": 16, "B": 9, "C": 10, "D": 5, "E": 16, "F": 14, "G": 7, "H": 8, "J": 6, "K": 5, "S": 14}
WEAKER = {
    "K4": "an hour of faults is a command (`make soak`), not a test",
}
"""Faults whose whole outcome no test asserts, and why. Another status than this needs a change here."""
_ROW = re.compile(r"^\| ([A-S]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str, str, str]]:
    return [(match[1], match[2], match[3], match[4]) for match in _ROW.finditer(PAGE.read_text())]


def named_tests() -> list[tuple[str, str, str]]:
    """Id, file and name of each test that a row names."""
    return [(id_, *found) for id_, _, tests, _ in rows() for found in _TEST.findall(tests)]


def test_every_fault_has_a_row() -> None:
    wanted = [f"{letter}{number}" for letter, count in FAULTS.items() for number in range(1, count + 1)]
    assert [id_ for id_, *_ in rows()] == wanted


def test_every_row_says_how_well_it_is_tested() -> None:
    assert {id_: status for id_, _, _, status in rows() if status not in ("exact", "weaker")} == {}
    assert {id_ for id_, _, _, status in rows() if status == "weaker"} == set(WEAKER)
    assert {id_ for id_, *_ in rows()} == {id_ for id_, *_ in named_tests()}


def test_the_tests_are_collected_and_may_run() -> None:
    assert len(named_tests()) > 150
    problems = {
        f"{path}::{name}": problem
        for _, path, name in named_tests()
        if (problem := problem_with((ROOT / path).read_text() if (ROOT / path).exists() else "", name))
    }
    assert problems == {}


def test_the_tests_say_which_fault_they_are_about() -> None:
    silent = [
        f"{id_}: {path}::{name}"
        for id_, path, name in named_tests()
        if not says(id_, collected((ROOT / path).read_text())[name])
    ]
    assert silent == []


# -- what pytest collects -----------------------------------------------------------------


@cache
def collected(source: str) -> dict[str, ast.FunctionDef]:
    """The test functions of a module, and those of its test classes; not what is nested in a function."""
    return {node.name: node for node in _functions(ast.parse(source).body) if node.name.startswith("test_")}


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _functions(node.body)


def problem_with(source: str, name: str) -> str:
    """Why a test never shows anything; empty if it does."""
    function = collected(source).get(name)
    if function is None:
        return "is not collected"
    module_marks = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    marks = [ast.unparse(mark) for mark in (*function.decorator_list, *module_marks)]
    if any(re.search(r"mark\.(skip|xfail)\b|mark\.skipif\(True", mark) for mark in marks):
        return "is always skipped or expected to fail"
    first = [node for node in function.body if not _is_docstring(node)][:1]
    if first and re.match(r"(pytest\.(skip|xfail)\(|return\b|pass\b)", ast.unparse(first[0])):
        return "does nothing"
    return ""


def says(id_: str, function: ast.FunctionDef) -> bool:
    """True if the name or the docstring of a test has the id of its row."""
    told = f"{function.name.upper().replace('_', ' ')} {ast.get_docstring(function) or ''}"
    return re.search(rf"\b{id_}\b", told) is not None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def test_a():\n    check()", ""),
        ("class TestAll:\n    def test_a(self):\n        check()", ""),
        ("@pytest.mark.skipif(not has_strace(), reason='')\ndef test_a():\n    check()", ""),
        ("def outer():\n    def test_a():\n        check()", "is not collected"),
        ("class Helper:\n    def test_a(self):\n        check()", "is not collected"),
        ("@pytest.mark.skip\ndef test_a():\n    check()", "is always skipped or expected to fail"),
        ("@pytest.mark.xfail(reason='')\ndef test_a():\n    check()", "is always skipped or expected to fail"),
        ("pytestmark = [pytest.mark.skip]\ndef test_a():\n    check()", "is always skipped or expected to fail"),
        ("def test_a():\n    '''A1.'''\n    pytest.skip('later')\n    check()", "does nothing"),
    ],
)
def test_tests_that_show_nothing_are_found(source: str, problem: str) -> None:
    assert problem_with(source, "test_a") == problem
