"""Which cases run every day, and how often the long runs repeat theirs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

_GIVEN = os.environ.get("PACELINE_FAULT_ROUNDS", "1")
if not _GIVEN.isdecimal() or int(_GIVEN) < 1:
    raise pytest.UsageError(f"PACELINE_FAULT_ROUNDS is {_GIVEN!r}: give a whole number of 1 or more.")
FACTOR = int(_GIVEN)


def rounds(usual: int) -> int:
    """How often a long run repeats its fault; PACELINE_FAULT_ROUNDS=10 makes that ten times as often."""
    return usual * FACTOR


def long_run(*values: Any, seconds: int = 120, **param: Any) -> Any:
    """A case of the long runs. `seconds` is the time limit with the usual number of rounds."""
    return pytest.param(*values, marks=[pytest.mark.faults, pytest.mark.timeout(seconds * FACTOR)], **param)


def mostly_slow(cases: Iterable[Any], *, everyday: Collection[Any]) -> list[Any]:
    """All cases; those that are not in `everyday` are marked slow."""
    cases = list(cases)
    assert all(case in cases for case in everyday), f"of {everyday}, some are not among the cases"

    def mark(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return case if case in everyday else pytest.param(*values, marks=pytest.mark.slow)

    return [mark(case) for case in cases]
