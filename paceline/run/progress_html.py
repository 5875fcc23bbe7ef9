"""A run as a notebook shows it: the state in a line, its metrics with their curves, and its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from paceline.air import html
from paceline.air.metrics import flattened, reported
from paceline.air.result import Result
from paceline.air.words import brief_text, counted, size_text
from paceline.run.curves import Curves
from paceline.run.observers import RankState

_METRICS = 12
_RANKS = 16
_LONGEST_LINE = 80
_SIDE_BY_SIDE = "display:flex;flex-wrap:wrap;gap:4px 32px;align-items:flex-start"
_COLOURS = {"failed": html.BAD, "running": html.GOOD}


@dataclass
class RunView:
    """What can be seen of a run."""

    name: str
    facts: Sequence[str]
    row: Mapping[str, Any]
    curves: Curves
    ranks: Sequence[RankState] = ()
    last_lines: Mapping[int, str] = field(default_factory=dict)
    result: Result | None = None
    """How it ended, if it did."""


def run_html(view: RunView) -> html.Markup:
    status = html.coloured("running", html.GOOD) if view.result is None else html.status(view.result.status)
    beside = html.element("div", html.joined([_main_curve(view), _metrics(view), _ranks(view)]), _SIDE_BY_SIDE)
    return html.joined([html.heading(view.name, status, *view.facts), beside, _end(view)])


def _main_curve(view: RunView) -> html.Markup:
    name = view.curves.main()
    if name is None:
        return html.Markup()
    values, iterations = view.curves.of(name)
    return html.element("div", html.joined([element_label(name), html.chart(values, iterations, label="iteration")]))


def element_label(name: str) -> html.Markup:
    return html.element("div", html.short(name, 60), "font-weight:600")


def _metrics(view: RunView) -> html.Markup:
    metrics = flattened(reported(view.row))
    if not metrics:
        return html.Markup()
    with_curve = set(view.curves.names())
    rows: list[tuple[object, ...]] = []
    for name, value in islice(metrics.items(), _METRICS):
        curve = html.sparkline(*view.curves.of(name), width=80, height=18) if name in with_curve else ""
        rows.append((html.short(name, 40), html.short(value), curve))
    if len(metrics) > _METRICS:
        rows.append((html.muted(f"… and {counted(len(metrics) - _METRICS, 'more metric', 'more metrics')}"), "", ""))
    return html.table(["metric", "last", ""], rows, right=[1])


def _ranks(view: RunView) -> html.Markup:
    """Those that are furthest behind come first where there are many."""
    ranks = sorted(view.ranks, key=lambda rank: (rank.state != "failed", rank.iteration, rank.rank))[:_RANKS]
    if len(view.ranks) <= _RANKS:
        ranks = sorted(ranks, key=lambda rank: rank.rank)
    if not ranks:
        return html.Markup()
    rows: list[tuple[object, ...]] = [
        (
            rank.rank,
            html.coloured(rank.state, _COLOURS[rank.state]) if rank.state in _COLOURS else rank.state,
            f"{rank.iteration:,}",
            *_measured(rank),
            html.short(view.last_lines.get(rank.rank, ""), _LONGEST_LINE),
        )
        for rank in ranks
    ]
    if len(view.ranks) > _RANKS:
        others = counted(len(view.ranks) - _RANKS, "more worker", "more workers")
        rows.append(("…", html.muted(f"and {others}, further ahead"), *[""] * 6))
    return html.table(
        ["rank", "worker", "iteration", "step", "data wait", "CPU", "memory", "last output"],
        rows,
        right=[2, 3, 4, 5, 6],
    )


def _measured(rank: RankState) -> tuple[str, str, str, str]:
    """What is not known is left empty."""
    times, use = rank.times, rank.use
    step = (brief_text(times.step_s), f"{times.data_s / times.step_s:.0%}") if times and times.step_us else ("", "")
    return (*step, *((f"{use.cpu:.0%}", size_text(use.memory)) if use else ("", "")))


def _end(view: RunView) -> html.Markup:
    result = view.result
    if result is None:
        return html.Markup()
    rows: list[tuple[object, object]] = []
    if result.checkpoint is not None and result.checkpoint.path:
        rows.append(("checkpoint", result.checkpoint.path))
    if result.how_to_continue:
        rows.append(("to continue", html.element("code", result.how_to_continue)))
    return html.pairs(rows) if rows else html.Markup()
