"""Rows 1-3: how long a fit takes, cold in a fresh process and warm in a driver that has done one."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import OURS, PEERS, TORCHRUN, Bench, Outcome, alternate
from benchmarks.table import Row, Target


def _without_later_fits(outcome: Outcome) -> float:
    """The whole process as it would have been with one fit only."""
    return outcome.seconds - float(sum(outcome.data["fits"][1:]))


def cold_torch(bench: Bench) -> Iterator[Row]:
    """Start of a fresh process to its end: 2 torch workers, DDP, 3 steps, 1 report."""
    sides = {
        "lean": lambda: bench.run(OURS / "fit.py", "torch", "1").seconds,
        "torchrun": lambda: bench.run(PEERS / "torchrun_fit.py", launcher=TORCHRUN).seconds,
        "usual": lambda: bench.run(OURS / "fit.py", "torch-in-driver", "1").seconds,
    }
    if bench.has_accelerate:
        sides["accelerate"] = lambda: bench.run(PEERS / "accelerate_fit.py").seconds
    values = alternate(bench.repeats(5, 2), **sides)
    what, half = "cold torch fit", Target("ratio", "most", 0.5)
    yield Row("1", what, "s", values["lean"], "torchrun", values["torchrun"], half, "8.0 s")
    imports = f"{what}, script imports torch"
    yield Row("1", imports, "s", values["usual"], "torchrun", values["torchrun"], half, "8.0 s")
    if bench.has_accelerate:
        peer = "accelerate debug_launcher"
        yield Row("1", what, "s", values["lean"], peer, values["accelerate"], reference="3.6 s")
    if bench.has_ray:
        cold = [_without_later_fits(bench.ray_fits("torch"))]
        yield Row("1", what, "s", values["lean"], "Ray", cold, reference="32.8 s")


def warm_torch(bench: Bench) -> Iterator[Row]:
    """The next fit in the same driver."""
    ours = bench.run(OURS / "fit.py", "torch", str(bench.repeats(11, 6))).data["fits"][1:]
    theirs = bench.ray_fits("torch").data["fits"][1:] if bench.has_ray else []
    yield Row("2", "warm torch fit", "s", ours, "Ray", theirs, Target("ratio", "most", 0.02), "19-22 s")


def plain(bench: Bench) -> Iterator[Row]:
    """The same without a framework: what paceline itself costs."""
    cold = [bench.run(OURS / "fit.py", "plain", "1").seconds for _ in range(bench.repeats(7, 3))]
    warm = bench.run(OURS / "fit.py", "plain", str(bench.repeats(21, 11))).data["fits"][1:]
    ray_cold, ray_warm = [], []
    if bench.has_ray:
        outcome = bench.ray_fits("plain")
        ray_cold, ray_warm = [_without_later_fits(outcome)], outcome.data["fits"][1:]
    target = Target("figure", "most", 0.6)
    yield Row("3", "cold fit without torch", "s", cold, "Ray", ray_cold, target, "20.9 s")
    target = Target("figure", "most", 0.1)
    yield Row("3", "warm fit without torch", "s", warm, "Ray", ray_warm, target, "12.1 s")
