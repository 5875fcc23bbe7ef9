"""Methods of the user's are called by the names of their arguments, or in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.air.checks import keyword_call
from paceline.air.errors import ConfigError

ARGUMENTS = {"trial": "t", "result": "r", "error": "e"}


@pytest.mark.parametrize(
    ("method", "got"),
    [
        (lambda trial, result, error: (trial, result, error), ("t", "r", "e")),
        (lambda error, trial, result: (trial, result, error), ("t", "r", "e")),
        (lambda result, **info: (result, sorted(info)), ("r", ["error", "trial"])),
        (lambda a, b, c: (a, b, c), ("t", "r", "e")),
        (lambda *all_of_them: all_of_them, ("t", "r", "e")),
        (lambda trial, row, failed=False: (trial, row, failed), ("t", "r", "e")),
    ],
)
def test_every_form_gets_what_it_asks_for(method: Callable[..., Any], got: Any) -> None:
    assert keyword_call(method, tuple(ARGUMENTS))(ARGUMENTS) == got


def test_the_last_arguments_may_be_dispensable() -> None:
    for method, got in ((lambda trial, result=None: (trial, result), ("t", "r")), (lambda trial: trial, "t")):
        assert keyword_call(method, tuple(ARGUMENTS), least=1)(ARGUMENTS) == got


@pytest.mark.parametrize("method", [lambda trial: None, lambda row, trial, error: None, lambda: None])
def test_what_cannot_be_called_is_rejected(method: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"trial=.*def <lambda>\(self, trial, result, error, \*\*info\)"):
        keyword_call(method, tuple(ARGUMENTS))
