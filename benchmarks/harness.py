"""Runs the scripts of both sides as fresh processes, in places of their own, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks import processes

ROOT = Path(__file__).resolve().parent.parent
OURS = ROOT / "benchmarks" / "ours"
PEERS = ROOT / "benchmarks" / "peers"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class MeasureError(Exception):
    """A script failed, so that there is no figure."""


@dataclass(frozen=True)
class Outcome:
    """A script that ran to its end."""

    seconds: float
    """From before the process existed until after it was gone."""
    data: dict[str, Any]
    """What the script wrote to the file named by BENCH_OUT."""


class Script:
    """A running script: its process and the directory it shares with us."""

    def __init__(self, process: subprocess.Popen[bytes], place: Path, mark: str, started: float) -> None:
        self.process = process
        self.place = place
        self.mark = mark
        self.started = started

    def wait_for_files(self, names: Sequence[str], timeout: float = 120) -> None:
        """Wait until the script's workers have written these files."""
        deadline = time.monotonic() + timeout
        while not all((self.place / name).exists() for name in names):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise MeasureError(f"the script did not get ready:\n{self.log_tail()}")
            time.sleep(0.005)

    def finish(self, timeout: float = 300, may_fail: bool = False) -> Outcome:
        """Wait for the end. `may_fail` is for peers that are known to fail at what is measured."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"the script did not end within {timeout:.0f} s:\n{self.log_tail()}") from None
        seconds = time.monotonic() - self.started
        if code != 0 and not may_fail:
            raise MeasureError(f"the script ended with {code}:\n{self.log_tail()}")
        out = self.place / "out.json"
        return Outcome(seconds, json.loads(out.read_text()) if out.exists() else {})

    def log_tail(self) -> str:
        return (self.place / "log.txt").read_text(errors="replace")[-3000:]


@contextmanager
def ended_at_last(script: Script) -> Iterator[Script]:
    """On leaving, end whatever the script started, and remove its files."""
    try:
        yield script
    finally:
        if script.process.poll() is None:
            script.process.kill()
        script.process.wait()
        processes.kill_marked(script.mark)
        shutil.rmtree(script.place, ignore_errors=True)


class Bench:
    """The settings of one benchmark run and its scratch space."""

    def __init__(
        self, quick: bool, with_ray: bool, *, tree: Path = ROOT, peers: dict[str, Outcome] | None = None
    ) -> None:
        self.quick = quick
        self.tree = tree
        """Where the scripts find paceline."""
        self._peers = peers
        """What peers' scripts gave before, where nobody looks at them: each runs once."""
        self.has_ray = with_ray and importlib.util.find_spec("ray") is not None
        self.has_accelerate = importlib.util.find_spec("accelerate") is not None
        self._ray_fits: dict[str, Outcome] = {}

    def __enter__(self) -> Bench:
        # The name is short because Ray puts sockets below it, and socket paths are limited to 107 bytes.
        self.scratch = Path(tempfile.mkdtemp(prefix="plb-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def repeats(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    def make_place(self) -> tuple[str, Path]:
        """A mark by which the processes of a script are found, and a directory that has it in its name."""
        mark = f"b{uuid4().hex[:9]}"
        place = self.scratch / mark
        place.mkdir()
        return mark, place

    @contextmanager
    def start(
        self,
        script: Path,
        *arguments: str,
        launcher: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Script]:
        """Start a script; on leaving, whatever it started is ended and its files are removed."""
        with self.start_command([sys.executable, *launcher, str(script), *arguments], env) as running:
            yield running

    @contextmanager
    def start_command(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Script]:
        """The same for any command."""
        mark, place = self.make_place()
        with (place / "log.txt").open("wb") as log:
            started = time.monotonic()
            process = subprocess.Popen(
                command,
                env={**environment(self.tree, place), **(env or {})},
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        with ended_at_last(Script(process, place, mark, started)) as running:
            yield running

    def run(self, script: Path, *arguments: str, **options: Any) -> Outcome:
        """Run a script to its end; a peer's only once, where nobody looks at it."""
        if self._peers is None or script.parent != PEERS:
            return self._run(script, *arguments, **options)
        key = repr((script, arguments, sorted(options.items())))
        if key not in self._peers:
            self._peers[key] = self._run(script, *arguments, **options)
        return self._peers[key]

    def _run(self, script: Path, *arguments: str, **options: Any) -> Outcome:
        with self.start(script, *arguments, **options) as running:
            return running.finish()

    def ray_fits(self, kind: str) -> Outcome:
        """Two Ray fits in one driver. Kept, because a Ray fit takes half a minute and two rows need it."""
        if kind not in self._ray_fits:
            self._ray_fits[kind] = self.run(PEERS / "ray_fit.py", kind, "2")
        return self._ray_fits[kind]


def environment(tree: Path, place: Path) -> dict[str, str]:
    """The variables of a script that finds paceline in `tree` and shares `place` with us."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PACELINE_", "RAY_", "OMP_", "MKL_"))}
    ours = {
        "PYTHONPATH": str(tree),
        "HOME": str(place),
        "TMPDIR": str(place),
        "BENCH_PLACE": str(place),
        "BENCH_OUT": str(place / "out.json"),
        "PACELINE_RESULTS_DIR": str(place / "results"),
        "RAY_TMPDIR": str(place),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return {**kept, **ours}


def alternate(rounds: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Measure the sides in turn, so that a slow moment of the machine meets all of them."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            values[name].append(measure())
    return values
