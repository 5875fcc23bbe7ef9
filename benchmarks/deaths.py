"""Rows 11 and 12: what happens after a SIGKILL, of a rank and of the driver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.harness import OURS, PEERS, TORCHRUN, Bench, MeasureError
from benchmarks.table import Row, Target


def _seconds_to(place: Path, round_number: int, stamp: str) -> float | None:
    """From the kill to the moment when the last rank stamped; None where a rank never did."""
    stamps = [place / f"{round_number}-{stamp}-{rank}" for rank in (0, 1)]
    if not all(path.exists() for path in stamps):
        return None
    killed = float((place / f"{round_number}-killed").read_text())
    return max(float(path.read_text()) for path in stamps) - killed


def restart(bench: Bench) -> Iterator[Row]:
    """A rank is SIGKILLed: time to the first line of the train function in the next attempt, on the last rank."""
    rounds = bench.repeats(10, 5)
    with bench.start(OURS / "restart.py", str(rounds)) as script:
        script.finish()
        ours = [seconds for n in range(rounds) if (seconds := _seconds_to(script.place, n, "again")) is not None]
    if len(ours) < rounds:
        raise MeasureError(f"only {len(ours)} of {rounds} attempts were started again")

    tries, theirs, lines = bench.repeats(5, 2), [], []
    for _ in range(tries):
        with bench.start(PEERS / "torchrun_restart.py", launcher=(*TORCHRUN, "--max-restarts", "1")) as script:
            script.finish(may_fail=True)
            if (seconds := _seconds_to(script.place, 0, "again")) is not None:
                theirs.append(seconds)
            if (seconds := _seconds_to(script.place, 0, "script")) is not None:
                lines.append(seconds)
    note = f"torchrun: {tries - len(theirs)} of {tries} restarts failed"
    if lines:
        note += f", first line of the script (before imports) after {statistics.median(lines):.1f} s"
    what, target = "rank SIGKILLed to train function", Target("figure", "most", 0.5)
    yield Row("11", what, "s", ours, "torchrun", theirs, target, "-", note)
    if bench.has_ray:
        with bench.start(PEERS / "ray_restart.py") as script:
            script.finish()
            seconds = _seconds_to(script.place, 0, "again")
        yield Row("11", what, "s", ours, "Ray", [] if seconds is None else [seconds], reference="9.2 s")


def _kill_driver(
    bench: Bench, script_path: Path, *arguments: str, patience: float, after: float | None = None, **options: Any
) -> tuple[float, int]:
    """Seconds until everything is gone after the driver's SIGKILL, and how many processes stayed.

    The kill comes when both workers are up, or `after` that many seconds whatever the driver is doing then.
    """
    with bench.start(script_path, *arguments, **options) as script:
        if after is None:
            script.wait_for_files(["ready-0", "ready-1"])
        else:
            time.sleep(after)
        members = processes.tree(script.process.pid)
        # Children that escaped from the tree still carry the mark of the script.
        members += [pid for pid in processes.marked(script.mark) if pid not in members]
        killed = time.monotonic()
        seconds, left = processes.kill_and_time(script.process.pid, members, patience)
        # What was started between the look and the kill is found by its mark.
        while late := processes.marked(script.mark):
            seconds = time.monotonic() - killed
            if seconds > patience:
                break
        return seconds, len({*left, *late})


def driver_kill(bench: Bench) -> Iterator[Row]:
    """The driver is SIGKILLed while its workers have children in other sessions and double-forked ones."""
    running, starting, torch = bench.repeats(200, 20), bench.repeats(50, 5), bench.repeats(20, 3)
    moments: dict[str, tuple[str, list[float | None]]] = {
        "driver SIGKILLed to all gone": ("plain", [None] * running),
        "the same, at some moment of the start": ("plain", [0.5 * (n + 1) / starting for n in range(starting)]),
        "the same, torch workers": ("torch", [None] * torch),
    }
    for what, (kind, delays) in moments.items():
        results = [_kill_driver(bench, OURS / "idle.py", kind, "strays", "2", patience=10, after=a) for a in delays]
        times = sorted(seconds for seconds, _ in results)
        if stayed := sum(left for _, left in results):
            raise MeasureError(f"{what}: {stayed} processes outlived their driver by 10 s in {len(times)} kills")
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        note = f"max {times[-1] * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms; nothing stayed in {len(times)} kills"
        yield Row("12", what, "s", times, target=Target("worst", "most", 0.1), note=note)

    what = "driver SIGKILLed, torch workers"
    seconds, left = _kill_driver(bench, PEERS / "torchrun_idle.py", "quiet", launcher=TORCHRUN, patience=5)
    note = f"torchrun: {left} processes stay" if left else ""
    theirs = [] if left else [seconds]
    yield Row("12", what, "s", times, "torchrun", theirs, reference="workers stay", note=note)
    if bench.has_ray:
        seconds, left = _kill_driver(bench, PEERS / "ray_idle.py", "quiet", patience=20)
        note = f"Ray: {left} more processes stay for over 20 s" if left else ""
        yield Row("12", what, "s", times, "Ray", [seconds], reference="2.3 s", note=note)
