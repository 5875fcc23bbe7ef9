"""The command line: whole processes, from the shell's point of view."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import OURS, Bench, MeasureError, alternate, environment
from benchmarks.table import Row, Target

RUNS = 1000


def listing(bench: Bench) -> Iterator[Row]:
    """`paceline ls` of a thousand finished runs whose files are in the page cache, and `paceline --help`."""
    _, place = bench.make_place()
    root, count = place / "results", bench.repeats(RUNS, 200)
    bench.run(OURS / "many_runs.py", str(root), str(count))
    _check(bench, place, root, count)

    def ls() -> float:
        return _seconds(bench, place, "ls", str(root))

    def bare() -> float:
        return _seconds(bench, place, "--help")

    values = alternate(bench.repeats(9, 3), ls=ls, bare=bare)
    yield Row("C1", f"paceline ls, {count} runs", "s", values["ls"], target=Target("figure", "most", 0.5))
    yield Row("C1", "paceline --help", "s", values["bare"], target=Target("figure", "most", 0.15))


def _check(bench: Bench, place: Path, root: Path, count: int) -> None:
    """Also warms the caches of files and of bytecode."""
    rows = json.loads(_run(bench, place, "ls", str(root), "--json"))
    if len(rows) != count or {row["status"] for row in rows} != {"finished"}:
        raise MeasureError(f"the list has {len(rows)} of {count} runs")


def _seconds(bench: Bench, place: Path, *arguments: str) -> float:
    started = time.monotonic()
    _run(bench, place, *arguments)
    return time.monotonic() - started


def _run(bench: Bench, place: Path, *arguments: str) -> bytes:
    # As in an installation: bytecode is there.
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    command = [sys.executable, "-m", "paceline.cli.main", *arguments]
    return subprocess.run(
        command, check=True, cwd=place, env={**environment(bench.tree, place), **cached}, capture_output=True
    ).stdout
