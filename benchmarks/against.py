"""`python -m benchmarks --against COMMIT`: the same measures with the code of a commit and with this working tree.

Both sides run the scripts of this tree, in turn, so that a slow moment of the machine meets both. Figures measured
right after each other are compared; the median of these pairs is the change. Peers run once, only because a measure
asks for them: they are not shown.
"""

from __future__ import annotations

import compileall
import io
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import ROOT, Bench, MeasureError, Outcome
from benchmarks.table import Row, Unit, columns, show

TOLERATED = 0.05
"""How much worse a row may get."""


@dataclass
class Pairs:
    """One row of both sides."""

    what: str
    unit: Unit
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def changes(self) -> list[float]:
        """By which share each pair got worse; negative: better."""
        ratios = (
            new / old if self.unit != "1/s" else old / new for old, new in zip(self.before, self.after, strict=True)
        )
        return sorted(ratio - 1 for ratio in ratios)

    @property
    def is_worse(self) -> bool:
        """Worse than tolerated, and not only by noise: three pairs of four got worse."""
        changes = self.changes
        return statistics.median(changes) > TOLERATED and changes[len(changes) // 4] > 0

    def cells(self) -> tuple[str, ...]:
        changes = self.changes
        return (
            self.what,
            show(statistics.median(self.before), self.unit),
            show(statistics.median(self.after), self.unit),
            f"{statistics.median(changes):+.1%}",
            f"{changes[0]:+.1%} to {changes[-1]:+.1%}",
            str(len(changes)),
            "WORSE" if self.is_worse else "ok",
        )


def compare(
    commit: str, measures: dict[str, Callable[[Bench], Iterator[Row]]], rounds: int, scratch: Path
) -> tuple[list[Pairs], list[str]]:
    """Every row of the measures, before and after; and what could not be measured."""
    old = tree_of(commit, scratch)
    pairs: list[Pairs] = []
    failed: list[str] = []
    for name, measure in measures.items():
        started = time.monotonic()
        found: dict[str, Pairs] = {}
        try:
            measure_in_turn(measure, old, rounds, found)
        except MeasureError as error:
            failed.append(f"{name}: NOT MEASURED: {error}")
        pairs += found.values()
        print(f"  {name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        for pair in found.values():  # now: who interrupts this has what was measured
            print("   ", *pair.cells(), sep="  ", file=sys.stderr, flush=True)
    return pairs, failed


def measure_in_turn(measure: Callable[[Bench], Iterator[Row]], old: Path, rounds: int, found: dict[str, Pairs]) -> None:
    """Measure both trees, each time with an empty scratch folder, as the measures expect."""
    peers: dict[str, Outcome] = {}
    for turn in range(rounds):
        rows = {}
        for tree in (old, ROOT) if turn % 2 == 0 else (ROOT, old):
            with Bench(quick=True, with_ray=False, tree=tree, peers=peers) as bench:
                rows[tree] = list(measure(bench))
        pair_up(found, rows[old], rows[ROOT])


def pair_up(found: dict[str, Pairs], before: Sequence[Row], after: Sequence[Row]) -> None:
    """Add a round. A row that is shown beside several peers is one row here."""
    old = {f"{row.number} {row.what}": row for row in before}
    for name, row in {f"{row.number} {row.what}": row for row in after}.items():
        if name in old:
            pairs = found.setdefault(name, Pairs(name, row.unit))
            pairs.before.append(old[name].figure)
            pairs.after.append(row.figure)


def tree_of(commit: str, scratch: Path) -> Path:
    """A folder with the package as it was at a commit, beside the scripts of this tree."""
    archive = subprocess.run(["git", "archive", commit, "paceline"], cwd=ROOT, check=True, capture_output=True).stdout
    tree = scratch / "before"
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    (tree / "benchmarks").symlink_to(ROOT / "benchmarks")
    compileall.compile_dir(tree / "paceline", quiet=2)
    compileall.compile_dir(ROOT / "paceline", quiet=2)
    return tree


def text(pairs: Sequence[Pairs], failed: Sequence[str]) -> str:
    head = ("measure", "before", "after", "change", "of single pairs", "n", f"worse than {TOLERATED:.0%}?")
    return "\n".join([columns(head, [pair.cells() for pair in pairs]), *failed])
