"""`python -m benchmarks kills --start`: workers and wardens die within 25 ms of a worker's fork. How many fits hang?

One driver does many fits, so that 1,000 kills take minutes; one that hangs is replaced. It is run as
``python -m benchmarks.kills_start <place> <workers>``.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks import processes
from benchmarks.kills_driver import STACKS_SIGNAL, tell
from benchmarks.kills_experiment import Scene, sigkill

WITHIN_S = 0.025
HANG_S = 10.0
"""A fit takes a tenth of a second, another one if it is tried again."""
OUTCOMES = ("hung", "not retried", "finished")
FITS_PER_DRIVER = 50


@dataclass(frozen=True)
class Shot:
    """One fit in which something was killed."""

    target: str
    workers: int
    delay_ms: float
    """From the moment when the worker was seen."""
    outcome: str
    seconds: float
    detail: str = ""


def campaign(options: argparse.Namespace, scratch: Path) -> bool:
    """Kill `n` times and print how the fits ended; True if any hung or was not tried again."""
    started = time.monotonic()
    print(
        f"kills --start: n={options.n} seed={options.seed} parallel={options.parallel} busy={options.busy}", flush=True
    )
    shares = [options.n // options.parallel] * options.parallel
    shares[0] += options.n - sum(shares)
    with ThreadPoolExecutor(options.parallel) as pool:
        hunts = [
            pool.submit(hunt, Hunter(f"{options.seed}-{number}", scratch / str(number), options), share, started)
            for number, share in enumerate(shares)
        ]
        shots = [shot for future in hunts for shot in future.result()]
    (scratch / "shots.json").write_text(json.dumps([asdict(shot) for shot in shots], indent=1))
    print(table(shots))
    print(f"{len(shots)} kills in {time.monotonic() - started:.0f} s; seed {options.seed}")
    return any(shot.outcome != "finished" for shot in shots)


def hunt(hunter: Hunter, count: int, started: float) -> list[Shot]:
    shots: list[Shot] = []
    while len(shots) < count:
        for shot in hunter.one_driver(min(FITS_PER_DRIVER, count - len(shots))):
            shots.append(shot)
            if shot.outcome == "hung":
                print(f"  {shot.target} killed {shot.delay_ms:.1f} ms after the fork: hung", flush=True)
        hung = sum(shot.outcome == "hung" for shot in shots)
        print(f"  {len(shots)} of {count} after {time.monotonic() - started:.0f} s, {hung} hung", flush=True)
    return shots


class Hunter:
    """Kills in one driver after the other."""

    def __init__(self, seed: str, place: Path, options: argparse.Namespace) -> None:
        self._chance = random.Random(seed)
        self._targets = [kind for kind in options.kinds if kind in ("rank", "warden")] or ["rank"]
        self._place = place
        self._drivers = 0

    def one_driver(self, count: int) -> list[Shot]:
        """Up to `count` shots; fewer if the driver hangs."""
        self._drivers += 1
        place = self._place / str(self._drivers)
        place.mkdir(parents=True)
        workers = 1 + self._drivers % 2
        mark = f"kills{uuid4().hex[:12]}"
        scene = Scene(place, mark, ["-m", "benchmarks.kills_start", str(place), str(workers)])
        shots: list[Shot] = []
        try:
            while len(shots) < count and scene.process.poll() is None:
                if (shot := self._shoot(scene, workers)) is not None:
                    shots.append(shot)
                if shots and shots[-1].outcome == "hung":
                    break
        finally:
            processes.kill_marked(mark)
            scene.process.wait()
            scene.close()
        return shots

    def _shoot(self, scene: Scene, workers: int) -> Shot | None:
        """Wait for the next fit and kill in it; None if there was no process to kill."""
        if scene.next_told() != "begin":
            return None
        target, delay = self._chance.choice(self._targets), self._chance.random() * WITHIN_S
        chosen = self._chance.randrange(workers)
        scene.wait_for(scene.ranks)
        time.sleep(delay)
        wardens = [warden] if (warden := scene.warden()) else []
        victims = scene.ranks() if target == "rank" else wardens
        landed = bool(victims) and sigkill(victims[chosen % len(victims)])
        fired = time.monotonic()
        told = scene.next_told(HANG_S)
        seconds = time.monotonic() - fired
        if told is None:
            outcome, detail = "hung", scene.stacks()
        else:
            detail = told.removeprefix("end ")
            outcome = "finished" if detail == "finished" else "not retried"
        return Shot(target, workers, delay * 1000, outcome, seconds, detail) if landed else None


def table(shots: list[Shot]) -> str:
    lines = [f"{'killed':>8}{'workers':>9}{'n':>7}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES)]
    groups = sorted({(shot.target, shot.workers) for shot in shots})
    for target, workers in groups:
        own = [shot for shot in shots if (shot.target, shot.workers) == (target, workers)]
        lines.append(f"{target:>8}{workers:>9}" + _counts(own))
    return "\n".join([*lines, f"{'all':>8}{'':>9}" + _counts(shots)])


def _counts(shots: list[Shot]) -> str:
    counts = Counter(shot.outcome for shot in shots)
    return f"{len(shots):>7}" + "".join(f"{counts[outcome]:>13}" for outcome in OUTCOMES)


# -- the driver ---------------------------------------------------------------------------


def train() -> None:
    """Long enough for every kill to meet a live worker."""
    time.sleep(2 * WITHIN_S)


def main(place: str, workers: int) -> None:
    from paceline.air import FailureConfig, RunConfig, ScalingConfig
    from paceline.train import DataParallelTrainer

    with (Path(place) / "stacks.txt").open("a") as stacks:
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        while True:
            tell("begin")
            result = DataParallelTrainer(
                train,
                scaling_config=ScalingConfig(num_workers=workers),
                run_config=RunConfig(
                    storage_path=f"{place}/storage", verbose=0, failure_config=FailureConfig(max_failures=3)
                ),
            ).fit(raise_on_error=False)
            tell(f"end {result.status if result.error is None else str(result.error).splitlines()[0]}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
