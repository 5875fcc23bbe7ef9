"""Pieces of HTML for notebooks and reports: escaped, with inline styles only, good on light and dark pages.

Colours are the page's own: text is `currentColor`, backgrounds are transparent. Nothing here needs JavaScript.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from paceline.air.words import printable, value_text

LINE = "1px solid rgba(128,128,128,.3)"
"""A border that shows on light and on dark pages."""
MUTED = "opacity:.65"
GOOD, BAD, WARNING = "#2e9e5b", "#d9534f", "#b8860b"
"""Colours of words that are readable on light and on dark pages."""
STATUS_COLOURS = {"finished": GOOD, "failed": BAD, "interrupted": WARNING, "unfinished": WARNING}
_CELL = f"padding:2px 10px 2px 0;border:0;border-bottom:{LINE};vertical-align:top;white-space:pre-wrap"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;background:transparent;color:inherit;font-size:inherit"


class Markup(str):
    """HTML that is escaped already. Every other text is escaped where it is put into a page."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Text as HTML shows it: markup, quotes and control characters do no harm."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(printable(str(value)), quote=True))


def joined(parts: Iterable[object], separator: object = "") -> Markup:
    return Markup(escaped(separator).join(map(escaped, parts)))


def element(name: str, content: object = "", style: str = "", **attributes: object) -> Markup:
    """``<name style="..." a="...">content</name>``; underscores in names of attributes become hyphens."""
    given = {"style": style, **attributes} if style else attributes
    written = "".join(f' {key.replace("_", "-")}="{escaped(value)}"' for key, value in given.items())
    return Markup(f"<{name}{written}>{escaped(content)}</{name}>")


def muted(content: object) -> Markup:
    return element("span", content, MUTED)


def coloured(content: object, colour: str) -> Markup:
    return element("span", content, f"color:{colour};font-weight:600")


def status(word: str) -> Markup:
    """How a run ended, in its colour."""
    return coloured(word, STATUS_COLOURS[word]) if word in STATUS_COLOURS else escaped(word)


def heading(title: object, *facts: object) -> Markup:
    """A name, and what can be said of it at a glance."""
    return element("div", joined([element("strong", title), *facts], " · "), "margin:2px 0")


def table(headings: Sequence[object], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> Markup:
    """A table; columns whose numbers are in `right` are aligned to the right."""

    def line(kind: str, cells: Sequence[object], weight: str) -> Markup:
        return element(
            "tr",
            joined(
                element(kind, cell, f"{_CELL};{weight};text-align:{'right' if place in right else 'left'}")
                for place, cell in enumerate(cells)
            ),
            "background:transparent",
        )

    head = element("thead", line("th", headings, "font-weight:600")) if headings else ""
    body = element("tbody", joined(line("td", cells, "font-weight:inherit") for cells in rows))
    return element("table", joined([head, body]), _TABLE)


def pairs(values: Mapping[str, object] | Iterable[tuple[object, object]]) -> Markup:
    """Names and values, one pair per line."""
    items = values.items() if isinstance(values, Mapping) else values
    return table((), ((muted(name), value) for name, value in items))


def short(value: object, longest: int = 0) -> Markup:
    """A value in a few characters, or in `longest`. One that is cut can be read as a whole by pointing at it."""
    complete = str(value)
    text = value_text(value)
    if longest:
        text = complete if len(complete) <= longest else f"{complete[: longest - 1]}…"
    if isinstance(value, float) or text == complete:
        return escaped(text)
    return element("span", text, title=complete[:2000])


def details(summary: object, content: object, *, is_open: bool = False) -> Markup:
    """Something to unfold."""
    shown = joined([element("summary", summary, "cursor:pointer"), content])
    return element("details", shown, "margin:4px 0", **({"open": "open"} if is_open else {}))


def scrolling(text: object, height: str = "14em") -> Markup:
    """Text in a box with a scroll bar that begins at the end of it, where what is newest stands."""
    pre = element("pre", text, "margin:0;padding:0;white-space:pre-wrap;background:transparent;color:inherit")
    # Reversed, a box is scrolled to its end from the start, which otherwise needs JavaScript.
    style = f"max-height:{height};overflow:auto;display:flex;flex-direction:column-reverse"
    return element("div", pre, f"{style};border:{LINE};padding:4px 8px;margin:4px 0")


def progress_bar(part: float, width: int = 160) -> Markup:
    """How much of something is done, from 0 to 1."""
    part = min(1.0, max(0.0, part))
    done = element("span", "", f"display:block;height:100%;width:{part:.1%};background:{GOOD}")
    style = f"display:inline-block;vertical-align:middle;width:{width}px;height:8px;border:{LINE}"
    return element("span", done, style, role="img", aria_label=f"{part:.0%}")


def whole(*parts: object) -> Markup:
    """What a `_repr_html_` returns."""
    return element("div", joined(parts), "line-height:1.4;color:inherit;background:transparent")


# -- curves ---------------------------------------------------------------------------------


def sparkline(
    values: Sequence[float | None], xs: Sequence[float] | None = None, *, width: int = 120, height: int = 24
) -> Markup:
    """A small curve without axes. What is not a finite number is a gap."""
    lines, dots = _paths(values, xs, width, height, margin=2)
    path = element("path", "", d=lines, fill="none", stroke="currentColor", stroke_width="1.5", stroke_linejoin="round")
    drawn = joined([path, *(element("circle", "", cx=x, cy=y, r="1.5", fill="currentColor") for x, y in dots)])
    style = f"width:{width}px;height:{height}px;vertical-align:middle;overflow:visible"
    return element("svg", drawn, style, viewBox=f"0 0 {width} {height}", role="img", aria_label=_in_words(values))


def chart(
    values: Sequence[float | None],
    xs: Sequence[float] | None = None,
    *,
    label: str = "",
    width: int = 420,
    height: int = 110,
) -> Markup:
    """A curve with its lowest and highest value at the side and the range of x below."""
    left, below = 64, 16
    finite = [value for value in values if value is not None and isfinite(value)]
    lines, dots = _paths(values, xs, width - left, height - below, margin=3)
    frame = element(
        "rect",
        "",
        x="0",
        y="0",
        width=width - left,
        height=height - below,
        fill="none",
        stroke="currentColor",
        stroke_opacity=".25",
    )
    path = element("path", "", d=lines, fill="none", stroke="currentColor", stroke_width="1.5", stroke_linejoin="round")
    circles = [element("circle", "", cx=x, cy=y, r="2", fill="currentColor") for x, y in dots]
    plot = element("g", joined([frame, path, *circles]), transform=f"translate({left},0)")
    texts: list[Markup] = []
    if finite:
        first, last = (xs[0], xs[-1]) if xs else (1, len(values))
        texts = [
            _text(left - 6, 10, value_text(float(max(finite))), "end"),
            _text(left - 6, height - below, value_text(float(min(finite))), "end"),
            _text(left, height - 2, _number(first), "start"),
            _text(width, height - 2, _number(last), "end"),
            _text((left + width) / 2, height - 2, label, "middle"),
        ]
    style = f"width:{width}px;max-width:100%;height:{height}px;display:block;margin:4px 0"
    spoken = f"{label}: {_in_words(values)}" if label else _in_words(values)
    view = f"0 0 {width} {height}"
    return element("svg", joined([plot, *texts]), style, viewBox=view, role="img", aria_label=spoken)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return element(
        "text",
        text,
        "font-size:10px;font-family:inherit",
        x=f"{x:g}",
        y=f"{y:g}",
        text_anchor=anchor,
        fill="currentColor",
        fill_opacity=".7",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.5g}"


def _in_words(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None and isfinite(value)]
    if not finite:
        return "no values"
    return f"{len(finite)} values, last {finite[-1]:.5g}, lowest {min(finite):.5g}, highest {max(finite):.5g}"


def _paths(
    values: Sequence[float | None], xs: Sequence[float] | None, width: int, height: int, margin: int
) -> tuple[str, list[tuple[str, str]]]:
    """The lines of a curve, and the points that have no neighbours and would not be seen as lines."""
    places: Sequence[float] = range(len(values)) if xs is None else xs
    known = [
        (float(x), None if value is None or not isfinite(value) else float(value))
        for x, value in zip(places, values, strict=True)
    ]
    finite = [value for _, value in known if value is not None]
    if not finite:
        return "", []
    low, high = min(finite), max(finite)
    first, last = known[0][0], known[-1][0]
    # Halved, because the difference of two finite numbers may be infinite.
    span_x, span_y = (last / 2 - first / 2) or 1.0, (high / 2 - low / 2)

    def point(x: float, value: float) -> tuple[str, str]:
        across = (x / 2 - first / 2) / span_x
        up = (value / 2 - low / 2) / span_y if span_y else 0.5
        return f"{margin + across * (width - 2 * margin):.1f}", f"{margin + (1 - up) * (height - 2 * margin):.1f}"

    pieces: list[list[tuple[str, str]]] = [[]]
    for x, value in _thinned(known, 2 * width):
        if value is not None:
            pieces[-1].append(point(x, value))
        elif pieces[-1]:
            pieces.append([])
    lines = " ".join("M" + " L".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1)
    return lines, [piece[0] for piece in pieces if len(piece) == 1]


def _thinned(known: list[tuple[float, Any]], most: int) -> list[tuple[float, Any]]:
    """At most about so many points: of each stretch its lowest and highest, in their order."""
    if len(known) <= most:
        return known
    kept: list[tuple[float, Any]] = []
    size = 2 * len(known) / most
    for number in range(most // 2):
        stretch = known[int(number * size) : int((number + 1) * size)]
        with_value = [each for each in stretch if each[1] is not None]
        if not with_value:
            kept.append(stretch[0])
            continue
        ends = {min(with_value, key=lambda each: each[1]), max(with_value, key=lambda each: each[1])}
        kept += sorted(ends)
    return kept
