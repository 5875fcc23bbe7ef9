"""What a measurement says, and the one table that all of them are printed in."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["s", "1/s", "MB"]


@dataclass(frozen=True)
class Target:
    """What a row must reach: a bound on the ratio to the peer, or on our own figure."""

    of: Literal["ratio", "figure", "worst"]
    """`worst` bounds the largest of our values instead of their median."""
    at: Literal["most", "least"]
    bound: float


@dataclass(frozen=True)
class Row:
    """One line of the table: our values, a peer's values, and what is asked for."""

    number: str
    what: str
    unit: Unit
    ours: Sequence[float]
    peer: str = "-"
    """The peer's name; "-" where a figure stands alone."""
    theirs: Sequence[float] = ()
    """The peer's values; empty where it has none (see `note`)."""
    target: Target | None = None
    reference: str = "-"
    """The peer's figure on the reference machine: a check that the peer was measured fairly."""
    note: str = ""
    paired: bool = False
    """Take the median of the ratios of neighbours: for differences smaller than the machine's drift."""

    @property
    def figure(self) -> float:
        return statistics.median(self.ours)

    @property
    def ratio(self) -> float | None:
        if not self.theirs:
            return None
        if self.paired:
            return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))
        return self.figure / statistics.median(self.theirs)

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        if self.target.of == "ratio":
            value = self.ratio
        else:
            value = max(self.ours) if self.target.of == "worst" else self.figure
        if value is None:
            return None
        return value <= self.target.bound if self.target.at == "most" else value >= self.target.bound

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, for `--json`."""
        return {
            "row": self.number,
            "what": self.what,
            "unit": self.unit,
            "paceline": list(self.ours),
            "peer": self.peer,
            "theirs": list(self.theirs),
            "ratio": self.ratio,
            "target": _target(self),
            "reached": self.reached,
            "reference": self.reference,
            "note": self.note,
        }


@dataclass
class Failed:
    """A measurement that could not be made."""

    name: str
    reason: str


@dataclass
class Table:
    """Rows as they come in."""

    rows: list[Row] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    HEAD = ("row", "measure", "paceline", "peer", "peer's", "ratio", "target", "reached", "n", "reference", "note")

    def text(self) -> str:
        """The table as aligned Markdown, so that it can be read here and pasted elsewhere."""
        failures = [f"{failure.name}: NOT MEASURED: {failure.reason}" for failure in self.failed]
        return "\n".join([columns(self.HEAD, [_cells(row) for row in self.rows]), *failures])

    def summary(self) -> str:
        judged = [row for row in self.rows if row.reached is not None]
        missed = [f"{row.number} {row.what}" for row in judged if not row.reached]
        return f"{len(judged) - len(missed)} of {len(judged)} targets reached" + (
            f"; missed: {'; '.join(missed)}" if missed else ""
        )


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    printed = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    printed.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(printed)


def _cells(row: Row) -> tuple[str, ...]:
    reached = {True: "yes", False: "NO", None: "-"}[row.reached]
    counts = f"{len(row.ours)}/{len(row.theirs)}" if row.theirs else str(len(row.ours))
    theirs = show(statistics.median(row.theirs), row.unit) if row.theirs else "-"
    ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
    ours = show(row.figure, row.unit)
    return (
        row.number, row.what, ours, row.peer, theirs, ratio, _target(row), reached, counts, row.reference, row.note,
    )  # fmt: skip


def _target(row: Row) -> str:
    if row.target is None:
        return "-"
    sign = "<=" if row.target.at == "most" else ">="
    if row.target.of == "ratio":
        return f"{sign} {row.target.bound:g} x"
    return f"{'max ' if row.target.of == 'worst' else ''}{sign} {show(row.target.bound, row.unit)}"


def spread(values: Sequence[float]) -> str:
    """How far the values lie apart: for notes."""
    return f"{(max(values) - min(values)) / max(values):.0%}"


def show(value: float, unit: Unit) -> str:
    """A figure with as many digits as it deserves."""
    if unit == "1/s":
        return f"{value:,.0f}/s" if value >= 100 else f"{value:.2g}/s"
    if unit == "MB":
        return f"{value:.0f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{value:.3f} s" if value >= 0.01 else f"{value * 1000:.2f} ms"
