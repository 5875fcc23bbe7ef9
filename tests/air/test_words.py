"""Values, counts, times and sizes as people read them."""

from __future__ import annotations

import math
import time

import pytest

from paceline.air.words import brief_text, bytes_of, counted, duration_text, moment_text, size_text, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456789, "0.12346"),
        (1e-9, "1e-09"),
        (3, "3"),
        (float("nan"), "nan"),
        ("a\nb", "a b"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_value_text(value: object, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.06, "0.1 s"), (61, "1 min 01 s"), (3 * 3600 + 125, "3 h 02 min")])
def test_duration_text(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00001, "0.01 ms"),
        (0.0024, "2.4 ms"),
        (0.0575, "58 ms"),
        (0.99, "990 ms"),
        (1.234, "1.23 s"),
        (150, "2 min 30 s"),
    ],
)
def test_brief_text(seconds: float, text: str) -> None:
    assert brief_text(seconds) == text


def test_counted() -> None:
    assert [counted(count, "row") for count in (0, 1, 2, 10_000)] == ["0 rows", "1 row", "2 rows", "10,000 rows"]
    assert counted(2, "retry", "retries") == "2 retries"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (9_990, "10 kB"),
        (999_600, "1.0 MB"),
        (20_000_000, "20 MB"),
        (5_000_000_000, "5.0 GB"),
        (7_300_000_000_000_000, "7,300.0 TB"),
    ],
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_moment_text() -> None:
    assert moment_text(time.mktime((2026, 11, 18, 2, 3, 4, 0, 0, -1))) == "2026-11-18 02:03:04"
    for odd in (1e300, math.inf, math.nan):
        assert moment_text(odd) == "?"
        assert duration_text(math.copysign(math.inf, odd)) == "?"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("80 GB", 80 * 10**9),
        ("1.5k", 1500),
        ("2tib", 2 << 40),
        ("4096", 4096),
        ("512 bytes", 512),
        *((text, None) for text in ("", "GiB", "-1GB", "1 apple", "1e9")),
    ],
)
def test_sizes_that_people_write(text: str, size: int | None) -> None:
    assert bytes_of(text) == size
