"""One driver with 1,000 simulated workers on 50 nodes, or 4,000 on 200: what it takes, and how it grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness import OURS, Bench
from benchmarks.table import Row, Target

FEW = (100, 5)
THOUSAND = (1_000, 50)
MORE = (4_000, 200)


def _fit(bench: Bench, size: tuple[int, int], reports: int, pace: str) -> dict[str, Any]:
    workers, nodes = size
    return bench.run(OURS / "scale.py", str(workers), str(nodes), str(reports), pace).data


def thousand(bench: Bench) -> Iterator[Row]:
    yield from _rows(bench, THOUSAND)


def more(bench: Bench) -> Iterator[Row]:
    yield from _rows(bench, MORE)


def _rows(bench: Bench, size: tuple[int, int]) -> Iterator[Row]:
    """Start, reports, one worker's death, end; beside the same with 100 workers."""
    workers, nodes = size
    few = [_fit(bench, FEW, 200, "free") for _ in range(bench.repeats(3))]
    many = [_fit(bench, size, 20, "free") for _ in range(bench.repeats(3))]
    locked = [_fit(bench, size, 10, "lockstep") for _ in range(bench.repeats(3))]
    name, peer = f"{workers:,} workers on {nodes} nodes", f"{FEW[0]} on {FEW[1]}"

    def row(what: str, key: str, of: str = "s") -> Row:
        note = f"driver's CPU {many[0][key]['cpu_s']:.2f} s"
        values = [each[key][of] for each in many]
        return Row("S", f"{what}, {name}", "s", values, peer, [each[key][of] for each in few], note=note)

    yield row("start", "start")
    yield row("one dies to all at work again", "recovery")
    yield row("end", "end")
    rates = [each["rate"] for each in many]
    yield Row("S", f"reports at will, {name}", "1/s", rates, peer, [each["rate"] for each in few])
    yield Row("S", f"reports in step, {name}", "1/s", [each["rate"] for each in locked])
    cpu, flat = [each["cpu_per_report"] for each in many], Target("ratio", "most", 1.5)
    yield Row("S", f"driver's CPU per report, {name}", "s", cpu, peer, [each["cpu_per_report"] for each in few], flat)
    memory = [each["memory_mb"] for each in many]
    note = f"{many[0]['memory_per_worker_kb']:.0f} kB for each worker"
    yield Row("S", f"driver's memory, {name}", "MB", memory, peer, [each["memory_mb"] for each in few], note=note)
