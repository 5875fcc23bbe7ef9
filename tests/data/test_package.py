"""The names that paceline.data offers, and older ones."""

from __future__ import annotations

import pytest

import paceline.data


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("from_polars", r"from_arrow\(\)"),
        ("from_mars", r"from_pandas\(\)"),
        ("read_datasource", "read_ functions"),
    ],
)
def test_names_that_are_not_here_say_what_is(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"paceline\.data\.{name}\b.*{advice}"):
        getattr(paceline.data, name)
