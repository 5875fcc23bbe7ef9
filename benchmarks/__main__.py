"""`python -m benchmarks [measure ...] [--quick] [--json FILE] [--no-ray]`: one table of ratios.

With `--against COMMIT` paceline is compared with itself at an earlier commit instead (benchmarks/against.py).

`python -m benchmarks kills` measures nothing: it is the kill campaign (benchmarks/kills.py). Nor does
`python -m benchmarks soak`, which works for an hour under faults (benchmarks/soak.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from benchmarks import (
    against,
    checkpoints,
    cluster,
    command_line,
    data_compute,
    data_ingest,
    data_large,
    deaths,
    fits,
    footprint,
    frameworks,
    many_workers,
    prediction,
    reports,
    rl,
    scale,
    serving,
    sharded,
    throughput,
    trackers,
    trees,
    tuning,
    validation,
    viewing,
)
from benchmarks.harness import ROOT, Bench, MeasureError
from benchmarks.table import Failed, Row, Table

MEASURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "cold-fit": fits.cold_torch,
    "warm-fit": fits.warm_torch,
    "plain-fit": fits.plain,
    "reports": reports.rate,
    "trackers": trackers.killed_server,
    "ddp": throughput.ddp,
    "sharded-steps": sharded.steps,
    "sharded-saves": sharded.saves,
    "validation": validation.beside_training,
    "frameworks": frameworks.launchers,
    "framework-causes": frameworks.causes,
    "checkpoint": checkpoints.blocked,
    "checkpoint-budget": checkpoints.budget,
    "checkpoint-short-steps": checkpoints.short_steps,
    "checkpoint-reads": checkpoints.verified_reads,
    "restart": deaths.restart,
    "driver-kill": deaths.driver_kill,
    "memory": footprint.memory,
    "imports": footprint.imports,
    "size": footprint.installed_size,
    "list-runs": command_line.listing,
    "many-reports": reports.growth,
    "many-workers": many_workers.start,
    "scale": scale.thousand,
    "data-ingest": data_ingest.rate,
    "data-seek": data_ingest.seek,
    "data-map": data_compute.map_batches,
    "data-fit": data_compute.fit,
    "trees-xgboost": trees.xgboost,
    "trees-lightgbm": trees.lightgbm,
    "rl": rl.iterations,
    "tune-noop": tuning.noop_trials,
    "tune-torch": tuning.torch_trials,
    "tune-results": tuning.results,
    "tune-many": tuning.many_trials,
    "tune-restore": tuning.restore,
    "batch-prediction": prediction.batches,
    "serving": serving.requests,
    "view": viewing.on_screen,
    "view-live": viewing.live_rows,
    "view-http": viewing.by_http,
}
ON_REQUEST: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "data-20gb": data_large.stream,
    "scale-4000": scale.more,
    **cluster.MEASURES,
}
"""Too heavy to be measured by default."""
GROUPS = {"cluster": tuple(cluster.MEASURES)}
"""Names for several measures."""


def main() -> int:
    if sys.argv[1:2] == ["kills"]:
        from benchmarks import kills

        return kills.main(sys.argv[2:])
    if sys.argv[1:2] == ["soak"]:
        from benchmarks import soak

        return soak.main(sys.argv[2:])
    known = MEASURES | ON_REQUEST
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="paceline and its peers side by side")
    names = ", ".join([*known, *GROUPS])
    help_text = f"any of: {names} (default: the first {len(MEASURES)})"
    parser.add_argument("measures", nargs="*", metavar="measure", help=help_text)
    parser.add_argument("--quick", action="store_true", help="fewer repeats: a look, not a figure to quote")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray out, which takes most of the time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    parser.add_argument("--against", metavar="COMMIT", help="compare this tree with a commit instead of with peers")
    parser.add_argument("--rounds", type=int, default=5, help="pairs per row with --against (default: 5)")
    options = parser.parse_args()
    options.measures = [name for given in options.measures for name in GROUPS.get(given, (given,))]
    if unknown := set(options.measures) - set(known):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}; there are {names}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that scratch files are removed

    print(machine(), flush=True)
    if options.against:
        chosen = {name: known[name] for name in options.measures or MEASURES}
        with tempfile.TemporaryDirectory(prefix="plb-") as scratch:
            pairs, failed = against.compare(options.against, chosen, options.rounds, Path(scratch))
        print(against.text(pairs, failed))
        return 1 if failed or any(pair.is_worse for pair in pairs) else 0
    table = Table()
    with Bench(options.quick, not options.no_ray) as bench:
        warm_page_cache(bench)
        for name in options.measures or MEASURES:
            started = time.monotonic()
            try:
                table.rows += known[name](bench)
            except MeasureError as error:
                table.failed.append(Failed(name, str(error)))
            print(f"  {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(table.text())
    print(table.summary())
    if options.json:
        rows = [row.as_dict() for row in table.rows]
        options.json.write_text(json.dumps({"machine": machine(), "quick": options.quick, "rows": rows}, indent=1))
    return 1 if table.failed else 0


def machine() -> str:
    """Where the figures come from."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = (
        "torch", "tensorflow-cpu", "horovod", "transformers", "accelerate", "lightning", "ray", "pyarrow", "duckdb",
        "polars", "datasets", "xgboost-cpu", "lightgbm", "optuna", "gymnasium",
    )  # fmt: skip
    versions = [f"{name} {metadata.version(name)}" for name in names if _installed(name)]
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {', '.join(versions)}; "
        "seconds are medians, ratios are paceline / peer, n is the number of values (ours/theirs)"
    )


def warm_page_cache(bench: Bench) -> None:
    """Read every side's files once, so that the first one measured does not pay for the disk."""
    modules = ["torch", "torch._dynamo", "paceline.train.torch", "torch.distributed.run"]
    modules += ["ray.train.torch"] * bench.has_ray + ["accelerate"] * bench.has_accelerate
    code = ";".join(f"import {module}" for module in modules)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stderr=subprocess.DEVNULL)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
