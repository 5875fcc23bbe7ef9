"""Rows 13-15: memory of a run that does nothing, time of imports, size on disk."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import processes
from benchmarks.harness import OURS, PEERS, ROOT, TORCHRUN, Bench
from benchmarks.table import Row, Target


def memory(bench: Bench) -> Iterator[Row]:
    """Proportional memory of driver and helpers and 2 torch workers that wait inside the train function."""

    def weigh(script_path: Path, *arguments: str, **options: Any) -> tuple[float, int]:
        with bench.start(script_path, *arguments, **options) as script:
            script.wait_for_files(["ready-0", "ready-1"])
            time.sleep(1.0)  # let start-up's last allocations and releases pass
            members = processes.tree(script.process.pid)
            weight = processes.proportional_mb(members)
            (script.place / "release").touch()
            script.finish()
            return weight, len(members)

    torchrun, _ = weigh(PEERS / "torchrun_idle.py", "quiet", launcher=TORCHRUN)
    lean, count = weigh(OURS / "idle.py", "torch", "quiet", "2")
    usual, _ = weigh(OURS / "idle.py", "torch-in-driver", "quiet", "2")
    what, note = "memory, 2 idle torch workers", f"{count} processes"
    yield Row("13", what, "MB", [lean], "torchrun", [torchrun], Target("figure", "most", 350), "690 MB", note)
    yield Row(
        "13", f"{what}, script imports torch", "MB", [usual], "torchrun", [torchrun],
        Target("figure", "most", 500), "690 MB", note,
    )  # fmt: skip
    if bench.has_ray:
        theirs, count = weigh(PEERS / "ray_idle.py", "quiet")
        yield Row("13", what, "MB", [lean], "Ray", [theirs], reference="2351 MB", note=f"Ray: {count} processes")


def imports(bench: Bench) -> Iterator[Row]:
    """What a statement adds to a bare interpreter."""
    statements = {
        "bare": "pass",
        "package": "from paceline.train import RunConfig, ScalingConfig, report",
        "torch": "import torch",
        "trainer": "import torch; from paceline.train.torch import TorchTrainer",
    }
    if bench.has_ray:
        statements["ray"] = "from ray.train import RunConfig, ScalingConfig, report"
        statements["ray_trainer"] = "import torch; from ray.train.torch import TorchTrainer"
    values: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(bench.repeats(5, 3)):
        for name, statement in statements.items():
            started = time.monotonic()
            subprocess.run([sys.executable, "-c", statement], check=True, cwd=bench.tree, stderr=subprocess.DEVNULL)
            values[name].append(time.monotonic() - started)
    bare = statistics.median(values.pop("bare"))
    added = {name: [seconds - bare for seconds in times] for name, times in values.items()}
    what = "import of paceline.train"
    yield Row("14", what, "s", added["package"], "Ray", added.get("ray", []), Target("figure", "most", 0.15), "1.8 s")
    trainer = "import of the torch trainer"
    most = Target("figure", "most", statistics.median(added["torch"]) + 0.1)
    yield Row("14", trainer, "s", added["trainer"], "import torch", added["torch"], most, "2.4 s")
    if bench.has_ray:
        yield Row("14", trainer, "s", added["trainer"], "Ray", added["ray_trainer"], reference="4.3 s")


def installed_size(bench: Bench) -> Iterator[Row]:
    """Files of the package and of everything it requires, torch left out on both sides."""
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = _closure(core)
    own = sum(path.stat().st_size for path in (bench.tree / "paceline").rglob("*") if path.is_file()) / 10**6
    base = _megabytes(_closure(["numpy", "pandas", "pyarrow"]))
    ours, note = own + _megabytes(needed), f"{len(needed) + 1} packages; numpy + pandas + pyarrow {base:.0f} MB"
    target = Target("figure", "most", base + 15)
    peers = [("Ray", "ray[train]", "595 MB in 29 packages")] if bench.has_ray else []
    peers += [("accelerate", "accelerate", "110 MB")] if bench.has_accelerate else []
    if not peers:
        yield Row("15", "installed size without torch", "MB", [ours], target=target, note=note)
    for peer, requirement, reference in peers:
        theirs = _closure([requirement])
        yield Row(
            "15", "installed size without torch", "MB", [ours], peer, [_megabytes(theirs)],
            target if peer == peers[0][0] else None, reference, f"{note}; {peer}: {len(theirs)} packages",
        )  # fmt: skip


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of all distributions that these requirements bring, torch and what only it brings left out."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name == "torch" or str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found.add(name)
        for text in metadata.requires(name) or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                waiting.append(inner)
    return found


def _megabytes(names: Iterable[str]) -> float:
    """The size of the files that pip recorded for these distributions."""
    total = 0
    for name in names:
        for file in metadata.files(name) or []:
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.is_file() else 0
    return total / 10**6
