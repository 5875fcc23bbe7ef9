"""Errors of Python name the class that users know."""

from __future__ import annotations

import pytest

from paceline import data


def test_python_names_the_class_that_users_know() -> None:
    with pytest.raises(TypeError, match=r"^Dataset\.join\(\).*'left_on'"):
        data.range(5).join(data.range(5), left_on="id")
    with pytest.raises(TypeError, match=r"^Dataset\.iter_batches\(\)"):
        data.range(5).iter_batches(size=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^DataIterator\.iter_batches\(\)"):
        data.range(5).iterator().iter_batches(size=3)  # type: ignore[call-arg]
