"""Pieces of HTML: nothing that a user's text contains gets out of its place, and curves survive any numbers."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from paceline.air import html

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\x00"


def parsed(markup: str) -> ElementTree.Element:
    """Everything here is well-formed, so that a strict parser accepts it, too."""
    return ElementTree.fromstring(markup)


@pytest.mark.parametrize(
    "markup",
    [
        html.escaped(HOSTILE),
        html.joined([HOSTILE, HOSTILE], HOSTILE),
        html.element("div", HOSTILE, title=HOSTILE),
        html.heading(HOSTILE, HOSTILE),
        html.table([HOSTILE], [[HOSTILE]]),
        html.pairs({HOSTILE: HOSTILE}),
        html.pairs([(HOSTILE, html.short(HOSTILE * 9))]),
        html.details(HOSTILE, HOSTILE, is_open=True),
        html.scrolling(HOSTILE),
        html.status(HOSTILE),
        html.chart([1, 2], label=HOSTILE),
        html.whole(HOSTILE),
    ],
)
def test_text_stays_text(markup: html.Markup) -> None:
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert "\x00" not in markup
    found = parsed(f"<div>{markup}</div>")
    assert "script" not in {each.tag for each in found.iter()}
    assert "alert(1)" in "".join(found.itertext()) or "alert(1)" in found[0].attrib.get("aria-label", "")


def test_markup_is_escaped_once() -> None:
    assert html.element("b", html.escaped("a & b")) == "<b>a &amp; b</b>"


def test_a_cut_value_can_be_read_as_a_whole() -> None:
    assert html.short("short") == "short"
    assert html.short(0.123456789) == "0.12346"
    assert parsed(html.short("x" * 100)).get("title") == "x" * 100
    assert html.short("x" * 100, 100) == "x" * 100
    assert parsed(html.short("x" * 101, 100)).text == "x" * 99 + "…"


def test_a_table_is_aligned() -> None:
    cells = [each for each in parsed(html.table(["a", "b"], [["x", 1]], right=[1])).iter() if each.tag in ("th", "td")]
    assert ["right" in cell.attrib["style"] for cell in cells] == [False, True, False, True]


@pytest.mark.parametrize("part", [-1.0, 0.0, 0.5, 2.0])
def test_a_bar_stays_in_its_box(part: float) -> None:
    width = re.search(r"width:([\d.]+)%", html.progress_bar(part))
    assert width is not None
    assert 0 <= float(width.group(1)) <= 100


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [math.nan, math.inf, -math.inf],
        [1.0],
        [1.0, 1.0],
        [1.0, None, 2.0, math.nan, 3.0, 4.0],
        [-1.7e308, 1.7e308],
        [5e-324, 0.0],
        [math.sin(x) for x in range(100_000)],
    ],
    ids=["none", "unknown", "not finite", "one", "equal", "gaps", "huge", "tiny", "many"],
)
@pytest.mark.parametrize("drawing", [html.sparkline, html.chart])
def test_curves_stay_in_their_picture(values: list[float | None], drawing: object) -> None:
    assert callable(drawing)
    picture = parsed(drawing(values, width=200, height=60))
    points = [
        (float(x), float(y))
        for path in picture.iter("path")
        for x, y in re.findall(r"([-\d.]+|nan|inf),([-\d.]+|nan|inf)", path.attrib["d"])
    ]
    points += [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in picture.iter("circle")]
    assert all(0 <= x <= 200 and 0 <= y <= 60 for x, y in points)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert bool(points) == bool(finite)
    assert len(points) <= 500


def test_the_highest_and_lowest_of_many_are_kept() -> None:
    values: list[float | None] = [0.0] * 50_000
    values[12_345], values[40_000] = 1.0, -1.0
    heights = [float(y) for y in re.findall(r",([\d.]+)", html.sparkline(values, height=24))]
    assert (min(heights), max(heights)) == (2.0, 22.0)


def test_gaps_are_not_bridged() -> None:
    path = next(parsed(html.sparkline([1, 2, None, 3, 4])).iter("path")).attrib["d"]
    assert path.count("M") == 2


def test_x_says_where_a_value_is() -> None:
    path = next(parsed(html.sparkline([1, 2, 3], [0, 1, 10], width=104)).iter("path")).attrib["d"]
    assert [float(x) for x in re.findall(r"[ML]([\d.]+),", path)] == [2.0, 12.0, 102.0]
