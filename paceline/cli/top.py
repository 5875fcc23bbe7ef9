"""``paceline top``: the live runs of this machine, and what their ranks take of it."""

from __future__ import annotations

import argparse
import math
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.air.words import brief_text, counted, duration_text, size_text
from paceline.cli.arguments import seconds
from paceline.cli.ls import progress_text, run_row
from paceline.cli.output import (
    add_format,
    age_text,
    has_colors,
    terminal_width,
    write,
    write_csv,
    write_json,
    write_table,
)
from paceline.cli.places import name_below, shown_place
from paceline.cli.table import Cell, Column, cell, table_lines
from paceline.run.timing import NOT_MEASURED
from paceline.storage.run_dir import RunDir, default_storage_root
from paceline.view.live import LiveRun, Usage, live_runs
from paceline.view.recent_ranks import RecentRank, recent_ranks

DESCRIPTION = """\
Shows the live runs of your drivers on this machine, and how each rank did lately: the time since its LAST report, the
RATE in reports per second, the time of a STEP, the share of it that was spent waiting (DATA: for batches; REPORT: in
reports and barriers; SAVE: for checkpoints; SYNC: for other ranks in the all-reduce of DDP), and the memory (now,
when the attempt began, and at its peak) and the share of a core that its processes take. The picture is renewed until
you press q or Ctrl-C; with --once, in a pipe, or as JSON it is printed once.
"""

SAMPLE_S = 0.5
"""How long the use of cores is measured for what is printed once."""
MOST_RANKS = 16
"""Ranks are listed if all runs together have so many at most, or on request."""
SILENT_S, SILENT_GAPS = 30.0, 20
"""Without a report for that long, and for so many times the usual, a run may hang."""
WIDE = 110
"""Characters; a narrower terminal has no room for the columns of MORE."""

COLUMNS = [
    Column("name", "RUN", folds=True),
    Column("progress", "PROGRESS", right=True),
    Column("last", "LAST", right=True),
    Column("rate", "RATE", right=True),
    Column("step", "STEP", right=True),
    Column("data", "DATA", right=True),
    Column("report", "REPORT", right=True),
    Column("save", "SAVE", right=True),
    Column("sync", "SYNC", right=True),
    Column("cpu", "CPU", right=True),
    Column("memory", "MEMORY", right=True),
    Column("start", "AT START", right=True),
    Column("peak", "PEAK", right=True),
    Column("processes", "PROCESSES", right=True),
    Column("age", "AGE", right=True),
    Column("driver", "DRIVER", right=True),
]

WAITS = {"data": "data_wait_s", "report": "report_wait_s", "save": "checkpoint_wait_s", "sync": "collective_wait_s"}
"""Columns that are shown if some rank has waited for that."""

MORE = {"start", "peak"}
"""Columns that JSON has anyway."""

WIDTHS = {
    "last": len("59 s"),
    "rate": len("99.9/s"),
    "step": len("999 ms"),
    "cpu": len("100%"),
    "memory": len("999 MB"),
    "age": len("119 min"),
}
"""What columns need sooner or later: with less at first, the table would move while somebody reads it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="S", help="between two looks (default: %(default)s)"
    )
    parser.add_argument(
        "--ranks", action="store_true", help=f"list every rank, also if there are more than {MOST_RANKS}"
    )
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Show the runs once, or until the user has seen enough."""
    if given.once or given.format != "table" or not sys.stdout.isatty():
        rows = _rows(*_two_looks(SAMPLE_S))
        if given.format == "json":
            write_json(rows)
        elif given.format == "csv":
            write_csv([{**run, **rank} for run in rows for rank in run.pop("ranks") or [{}]])
        elif rows:
            cells = list(_cells(rows, given.ranks))
            write_table(_columns(cells, set()), cells)
        else:
            write("No run is live.")
        return 0
    _watch(given.interval, given.ranks)
    return 0


def _two_looks(seconds: float) -> tuple[list[LiveRun], list[LiveRun]]:
    """A share of a core is known only from two looks."""
    before = live_runs()
    if before:
        time.sleep(seconds)
    return before, live_runs() if before else []


def _rows(before: list[LiveRun], now: list[LiveRun]) -> list[dict[str, Any]]:
    """The runs as JSON has them."""
    earlier = {each.summary.path: each for each in before}
    return [_row(each, earlier.get(each.summary.path)) for each in now]


def _row(live: LiveRun, before: LiveRun | None) -> dict[str, Any]:
    row = {**run_row(live.summary, live.summary.path, None), "name": _name(live.summary.path)}
    wanted = ("name", "path", "trainer", "workers", "attempts", "iteration", "most_iterations", "started", "metrics")
    earlier = before or LiveRun(summary=live.summary, driver=live.driver, rate=None, seen=live.seen)
    seconds = live.seen - earlier.seen
    recent = recent_ranks(RunDir(Path(live.summary.path)).journal)
    ranks = [
        _rank(rank, recent.get(rank, RecentRank()), live.ranks.get(rank), earlier.ranks.get(rank), seconds)
        for rank in sorted({*live.ranks, *recent})
    ]
    total = _usage(live.usage, earlier.usage, seconds)
    return {**{key: row[key] for key in wanted}, "rate": live.rate, "driver": live.driver, **total, "ranks": ranks}


def _rank(rank: int, lately: RecentRank, seen: Usage | None, before: Usage | None, seconds: float) -> dict[str, Any]:
    """The run itself knows what ranks on other machines use."""
    usage: dict[str, Any] = {"cpu": None, "memory": None, "processes": None}
    if seen is not None:
        usage = _usage(seen, before, seconds)
    elif lately.use is not None:
        usage = {"cpu": lately.use.cpu, "memory": lately.use.memory, "processes": lately.use.processes}
    start = peak = None
    if lately.use is not None and lately.use.peak:
        start, peak = lately.use.start, max(lately.use.peak, usage["memory"] or 0)
    times = lately.times.per_step() if lately.times is not None else NOT_MEASURED
    measured = {name: value if math.isfinite(value) else None for name, value in times.items()}
    return {
        "rank": rank,
        "iteration": lately.last_index,
        "last_report": lately.last_report,
        "rate": lately.rate,
        "usual_gap_s": lately.usual_gap_s,
        **measured,
        **usage,
        "memory_at_start": start,
        "memory_peak": peak,
    }


def _name(path: str) -> str:
    """What other commands take: the path, or what of it is below the results directory."""
    root = str(default_storage_root().absolute())
    return name_below(path, root) if path.startswith(f"{root}/") else shown_place(path)


def _usage(usage: Usage, before: Usage | None, seconds: float) -> dict[str, Any]:
    is_known = before is not None and seconds > 0 and usage.cpu_s >= before.cpu_s  # less, if one of them has ended
    cpu = (usage.cpu_s - before.cpu_s) / seconds if is_known and before is not None else None
    return {"cpu": cpu, "memory": usage.memory, "processes": usage.processes}


def _cells(rows: list[dict[str, Any]], all_ranks: bool) -> Iterator[dict[str, Cell]]:
    lists_ranks = all_ranks or sum(len(row["ranks"]) for row in rows) <= MOST_RANKS
    for row in rows:
        yield {
            "name": cell(row["name"]),
            "progress": progress_text({"kind": "run", **row}),
            "rate": _rate_cell(row),
            "age": age_text(row["started"]),
            "driver": f"{row['driver']}",
            **_usage_cells(row),
        }
        if lists_ranks:
            for rank in row["ranks"]:
                yield {"name": f"  rank {rank['rank']}", **_rank_cells(rank), **_usage_cells(rank)}
            if notice := _silence(row):
                yield {"name": f"  {notice}"}
        elif row["ranks"]:
            yield {"name": f"  {counted(len(row['ranks']), 'rank')}: see --ranks"}


def _silence(row: dict[str, Any]) -> str:
    """What to say of a run that may hang: no rank has reported for a time that is long for it."""
    known = [rank for rank in row["ranks"] if rank["last_report"] is not None and rank["usual_gap_s"] is not None]
    if not known:
        return ""
    silent_s = time.time() - max(rank["last_report"] for rank in known)
    gap_s = max(rank["usual_gap_s"] for rank in known)
    if silent_s < max(SILENT_S, SILENT_GAPS * gap_s):
        return ""
    return f"no report for {duration_text(silent_s)}, before one every {brief_text(gap_s)}: see paceline stacks"


def _columns(cells: list[dict[str, Cell]], waits: set[str]) -> list[Column]:
    """Without those for which there is no room, and without waits that no rank has had.

    `waits` are those that were shown before: they stay.
    """
    waits.update(name for name in WAITS if any(name in row for row in cells))
    left_out = WAITS.keys() - waits
    if (terminal_width() or WIDE) < WIDE:
        left_out |= MORE
    return [column for column in COLUMNS if column.key not in left_out]


def _rate_cell(row: dict[str, Any]) -> str:
    return f"{row['rate']:.3g}/s" if row["rate"] is not None else ""


def _rank_cells(rank: dict[str, Any]) -> dict[str, Cell]:
    """Of the waits, their share of a step."""
    cells: dict[str, Cell] = {"progress": f"{rank['iteration'] or ''}", "rate": _rate_cell(rank)}
    if rank["last_report"] is not None:
        cells["last"] = age_text(rank["last_report"])
    step = rank["step_time_s"]
    if step:
        shares = {name: f"{(rank[column] or 0) / step:.0%}" for name, column in WAITS.items()}
        cells.update(step=brief_text(step), **{name: share for name, share in shares.items() if share != "0%"})
    return cells


def _usage_cells(row: dict[str, Any]) -> dict[str, Cell]:
    if not row["processes"]:
        return {}
    cpu = f"{row['cpu']:.0%}" if row["cpu"] is not None else ""
    known = {"start": row.get("memory_at_start"), "peak": row.get("memory_peak")}
    sizes: dict[str, Cell] = {name: size_text(size) for name, size in known.items() if size}
    return {"cpu": cpu, "memory": size_text(row["memory"]), **sizes, "processes": f"{row['processes']}"}


def _watch(interval: float, all_ranks: bool) -> None:
    from rich.live import Live
    from rich.text import Text

    before: list[LiveRun] = []
    widest, waits = dict(WIDTHS), set[str]()
    with _keys(), Live(screen=True, auto_refresh=False) as picture:
        while True:
            now = live_runs()
            rows = _rows(before, now)
            height = shutil.get_terminal_size().lines
            title = f"{counted(len(rows), 'live run')}, {time.strftime('%H:%M:%S')}   (q to quit)"
            cells = list(_cells(rows, all_ranks))
            table = table_lines(_columns(cells, waits), cells, terminal_width(), colors=has_colors(), widest=widest)
            lines = [title, "", *table]
            if len(lines) > height:
                lines = [*lines[: height - 1], f"... and {len(lines) - height + 1} more lines: see paceline top --once"]
            picture.update(Text.from_ansi("\n".join(lines)), refresh=True)
            before = now
            if _quits_within(interval):
                return


@contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive as they are pressed, and are not shown."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    settings = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def _quits_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not sys.stdin.isatty():
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0]:
            key = os.read(sys.stdin.fileno(), 1)
            if key in (b"q", b"Q", b""):
                return True
    return False
