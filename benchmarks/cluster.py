"""`make bench-cluster`: paceline, Ray Train and Ray Tune in turn on the same Ray cluster of three nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.cluster_workload import HEARTBEAT_S, TRIALS_AT_ONCE, WORKERS, stamp
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome, Script, alternate
from benchmarks.ray_hosts import RayHosts
from benchmarks.table import Row, Target

SCRIPTS = {"ours": OURS / "cluster.py", "ray": PEERS / "ray_cluster.py"}
WINDOWS = 15
NODE = "h2"
"""The node whose memory is looked at: neither Ray's head nor a driver is there."""


def fits(bench: Bench) -> Iterator[Row]:
    """Cold: a fresh driver joins the cluster, fits and ends. Warm: the next fits in the same driver."""
    cold: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    warm: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    with RayHosts(bench) as cluster:
        for _ in range(bench.repeats(3)):
            for name, script in _sides(bench).items():
                outcome = cluster.run(
                    script, "fits", str(bench.repeats(6, 3) if name == "ours" else bench.repeats(3, 2))
                )
                times = outcome.data["fits"]
                cold[name].append(outcome.seconds - sum(times[1:]))
                warm[name] += times[1:]
    what = f"fit of {WORKERS} torch workers"
    yield Row("C1", f"cold {what}", "s", cold["ours"], "Ray Train", cold["ray"])
    yield Row("C1", f"warm {what}", "s", warm["ours"], "Ray Train", warm["ray"], Target("ratio", "most", 0.05))


def reports(bench: Bench) -> Iterator[Row]:
    """Rows of rank 0 per second, while all ranks report as fast as they can."""
    counts = {"ours": 10_000, "ray": 10}
    with RayHosts(bench) as cluster:
        values = _in_turn(bench, lambda name: float(_data(cluster, name, "reports", counts[name])["rate"]))
    yield Row("C2", f"reports, {WORKERS} workers", "1/s", values["ours"], "Ray Train", values["ray"])


def trials(bench: Bench) -> Iterator[Row]:
    """Trials that report once."""
    counts = {"ours": 200, "ray": bench.repeats(60, 12)}

    def rate(cluster: RayHosts, name: str) -> float:
        data = _data(cluster, name, "trials", counts[name])
        if not data["complete"]:
            raise MeasureError(f"{name}: some results did not arrive")
        return float(data["rate"])

    with RayHosts(bench) as cluster:
        values = _in_turn(bench, lambda name: rate(cluster, name))
    what = f"no-op trials, {TRIALS_AT_ONCE} at a time"
    yield Row("C3", what, "1/s", values["ours"], "Ray Tune", values["ray"], Target("ratio", "least", 20))


def restarts(bench: Bench) -> Iterator[Row]:
    """From the SIGKILL of a rank until the last rank is in the train function again."""
    counts = {"ours": bench.repeats(5, 2), "ray": bench.repeats(2, 1)}
    values: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    with RayHosts(bench) as cluster:
        for _ in range(bench.repeats(3)):
            for name, script in _sides(bench).items():
                with cluster.start(script, "restarts", str(counts[name])) as running:
                    running.finish(600)
                    for number in range(counts[name]):
                        values[name].append(_seconds(running, f"{number}-killed", f"{number}-again"))
    what = "rank SIGKILLed to train function"
    yield Row("C4", what, "s", values["ours"], "Ray Train", values["ray"], Target("ratio", "most", 0.2))


def host_kills(bench: Bench) -> Iterator[Row]:
    """From the power cut of a host until the last rank is in the train function again, on the two hosts left."""

    def measure(name: str) -> float:
        with RayHosts(bench) as cluster, cluster.start(SCRIPTS[name], "host-killed", "1") as running:
            running.wait_for_files([f"ready-{rank}" for rank in range(WORKERS)], timeout=180)
            stamp(running.place, "killed")
            cluster.hosts.kill("h3")
            running.finish(300)
            return _seconds(running, "killed", "again")

    values = _in_turn(bench, measure)
    note = f"paceline with heartbeat_timeout_s={HEARTBEAT_S:g}, Ray with its defaults"
    target = Target("worst", "most", HEARTBEAT_S + 2.0)
    yield Row("C5", "host killed to train function", "s", values["ours"], "Ray Train", values["ray"], target, "-", note)


def memory(bench: Bench) -> Iterator[Row]:
    """One node: between two fits of a driver, and with an idle torch worker. Ray's own processes are in all figures."""
    between: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    working: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    bare = []
    for _ in range(bench.repeats(3)):
        for name, script in _sides(bench).items():
            with RayHosts(bench) as cluster:
                bare.append(_settled(cluster))
                with cluster.start(script, "idle", "1") as running:
                    running.wait_for_files(["between-fits"], timeout=180)
                    between[name].append(_settled(cluster))
                    stamp(running.place, "seen")
                    running.wait_for_files([f"ready-{rank}" for rank in range(WORKERS)], timeout=180)
                    working[name].append(_settled(cluster))
                    stamp(running.place, "release")
                    running.finish(120)
    own = statistics.median(bare)
    note = f"with what Ray itself takes there, {own:.0f} MB"
    most = Target("figure", "most", own + 200)
    yield Row(
        "C6", "memory of a node between fits", "MB", between["ours"], "Ray Train", between["ray"], most, "-", note
    )
    what = "memory of a node with a torch worker"
    yield Row("C6", what, "MB", working["ours"], "Ray Train", working["ray"], note=note)


def ddp(bench: Bench) -> Iterator[Row]:
    """Samples per second of a 2M-parameter MLP, timed inside the loop, one thread per worker."""
    with RayHosts(bench) as cluster:
        values = _in_turn(bench, lambda name: float(_data(cluster, name, "ddp", WINDOWS)["rate"]), full=7, quick=2)
    what, target = f"DDP samples, {WORKERS} workers", Target("ratio", "least", 0.95)
    yield Row("C7", what, "1/s", values["ours"], "Ray Train", values["ray"], target, paired=True)


MEASURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "cluster-fits": fits,
    "cluster-reports": reports,
    "cluster-trials": trials,
    "cluster-restarts": restarts,
    "cluster-host-kills": host_kills,
    "cluster-memory": memory,
    "cluster-ddp": ddp,
}


def _data(cluster: RayHosts, name: str, what: str, count: int) -> dict[str, float]:
    outcome: Outcome = cluster.run(SCRIPTS[name], what, str(count))
    return outcome.data


def _sides(bench: Bench) -> dict[str, Path]:
    """Who is measured, in turn; with --no-ray, the cluster is Ray's still."""
    return {name: script for name, script in SCRIPTS.items() if bench.has_ray or name == "ours"}


def _in_turn(bench: Bench, measure: Callable[[str], float], full: int = 3, quick: int = 1) -> dict[str, list[float]]:
    sides = {name: partial(measure, name) for name in _sides(bench)}
    return {"ray": [], **alternate(bench.repeats(full, quick), **sides)}


def _seconds(running: Script, begin: str, end: str) -> float:
    """Between two stamps; the second is that of the last rank."""
    stamps = [running.place / f"{end}-{rank}" for rank in range(WORKERS)]
    if not all(path.exists() for path in stamps):
        raise MeasureError(f"some rank did not come back after {begin}:\n{running.log_tail()}")
    return max(map(_modified, stamps)) - _modified(running.place / begin)


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def _settled(cluster: RayHosts) -> float:
    """Memory of the node once it does not change any more by itself."""
    before = cluster.memory_mb(NODE)
    for _ in range(20):
        time.sleep(1.0)
        now = cluster.memory_mb(NODE)
        if abs(now - before) < 2.0:
            return now
        before = now
    return before
