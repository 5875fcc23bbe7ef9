"""What a soak does over and over: trainings, searches, datasets and servers, with faults from the chaos kit.

Each function does one round in a directory of its own, checks what it left there, and returns how many faults happened.
"""

from __future__ import annotations

import gc
import json
import random
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import soak_loops
from paceline import data, serve, tune
from paceline.air import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.testing import Chaos, chaos
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer
from paceline.train.torch import TorchTrainer

STEPS = 8
ROWS = 96


def run_config(place: Path, **settings: Any) -> RunConfig:
    settings.setdefault("failure_config", FailureConfig(max_failures=6, hang_timeout_s=2.0))
    return RunConfig(name="soak", storage_path=str(place / "storage"), verbose=0, **settings)


def random_faults(dice: random.Random, workers: int) -> dict[str, Any]:
    """One to three faults that a run with retries survives. No two at one step: one would hide the other."""
    faults: dict[str, Any] = {}
    steps = dice.sample(range(3, STEPS + 1), 3)
    for kind in dice.sample(["kill", "fail", "sigterm", "stall", "damage", "slow", "slow_storage"], dice.randint(1, 3)):
        at = {"rank": dice.randrange(workers), "step": steps.pop()}
        if kind == "damage":  # of the newest checkpoint when rank 0 dies; there is an older one
            step = dice.choice([4, 6])
            faults["corrupt_checkpoint"] = {"step": step, "how": dice.choice(["flip", "truncate", "empty", "delete"])}
            faults.setdefault("kill", []).append({"rank": 0, "step": step + 1})
        elif kind == "slow":
            faults["slow"] = {"rank": at["rank"], "seconds": 0.01}
        elif kind == "slow_storage":
            faults["slow_storage"] = {"seconds": 0.002}
        elif kind == "stall":
            how = dice.choice(["sleep", "sleep", "sigstop"])
            faults["stall"] = {**at, "how": how}
        else:
            faults.setdefault(kind, []).append(at)
    return faults


def train_plain(dice: random.Random, place: Path) -> int:
    """Workers that count, with files in their checkpoints."""
    planned = random_faults(dice, 2)
    # Saved in the background, a damaged checkpoint could be committed after the kill that is meant to find it.
    in_background = "corrupt_checkpoint" not in planned and dice.random() < 0.5
    checkpoints = CheckpointConfig(num_to_keep=dice.choice([None, 2]), async_save=in_background)
    failures = FailureConfig(max_failures=6, hang_timeout_s=2.0, heartbeat_timeout_s=2.0)
    trainer = DataParallelTrainer(
        soak_loops.count,
        train_loop_config={"steps": STEPS, "place": str(place)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(place, checkpoint_config=checkpoints, failure_config=failures),
    )
    # Rank 0 may be ahead of the rank that fails, so that a fault meets nobody.
    with chaos(**planned, all_must_fire=False) as faults:
        result = trainer.fit()
    check_run(result.path, result=result, iterations=STEPS)
    return _disturbances(faults)


def train_interrupted(dice: random.Random, place: Path) -> int:
    """SIGTERM to the driver, which stops; then the run is continued."""
    trainer = DataParallelTrainer(
        soak_loops.count,
        train_loop_config={"steps": STEPS, "place": str(place)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(place, stop={"training_iteration": STEPS}),
    )
    with chaos(sigterm={"rank": "driver", "step": dice.randint(1, STEPS - 2)}) as faults:
        code: object = "a result"
        try:
            trainer.fit()
        except SystemExit as ended:
            code = ended.code
    assert code == 143, f"fit() ended with {code} after SIGTERM"
    result = trainer.fit(resume="must")
    check_run(result.path, result=result, iterations=STEPS)
    return _disturbances(faults)


def train_slowly(dice: random.Random, place: Path) -> int:
    """A rank that is slow but healthy is left alone by the settings that everybody has; there is no retry.

    Once in a while it is slow for longer than a process may give no sign of life: rarely, to leave time for faults.
    """
    defaults = FailureConfig()
    assert defaults.heartbeat_timeout_s is not None
    seconds = defaults.heartbeat_timeout_s + 10 if dice.random() < 0.02 else 0.3
    trainer = DataParallelTrainer(
        soak_loops.plod,
        train_loop_config={"steps": 4, "how": dice.choice(list(soak_loops.BEING_SLOW)), "seconds": seconds},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(place, failure_config=defaults),
    )
    result = trainer.fit()
    check_run(result.path, result=result, iterations=4, attempts=1)
    return 0


def train_torch(dice: random.Random, place: Path) -> int:
    """Two workers in a process group; one of them is killed."""
    trainer = TorchTrainer(
        soak_loops.learn,
        train_loop_config={"steps": STEPS},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(place, failure_config=FailureConfig(max_failures=3)),
    )
    with chaos(kill={"rank": dice.randrange(2), "step": dice.randint(2, STEPS)}) as faults:
        result = trainer.fit()
    check_run(result.path, result=result, iterations=STEPS, attempts=2)
    return _disturbances(faults)


def read_dataset(dice: random.Random, place: Path) -> int:
    """Every row reaches exactly one report that counts, whatever is killed; a pool of processes prepares them."""
    last = ROWS // 2 // soak_loops.BATCH
    with chaos(kill={"rank": dice.randrange(2), "step": dice.randint(2, last)}) as faults:
        result = _fit_on_dataset(dice, place)
    gc.collect()  # The processes of a dataset live as long as it does.
    check_run(result.path, result=result, iterations=last)
    seen = Counter(row for ids in result.rank_dataframe["ids"] for row in ids)
    assert seen == Counter(range(ROWS)), f"rows lost or repeated: {seen - Counter(range(ROWS))}"
    return _disturbances(faults)


def _fit_on_dataset(dice: random.Random, place: Path) -> Result:
    rows = data.range(ROWS).map_batches(soak_loops.shift, concurrency=dice.choice([None, 2]))
    trainer = DataParallelTrainer(
        soak_loops.read,
        datasets={"train": rows.random_shuffle(seed=dice.randrange(100))},
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(place, failure_config=FailureConfig(max_failures=3)),
    )
    return trainer.fit()


def search(dice: random.Random, place: Path) -> int:
    """Six trials, two at a time; workers of some of them fail and are retried."""
    steps = 4
    tuner = tune.Tuner(
        soak_loops.trial,
        param_space={"x": tune.uniform(0, 1), "steps": steps},
        tune_config=tune.TuneConfig(num_samples=6, metric="score", mode="max", max_concurrent_trials=2),
        run_config=run_config(place, failure_config=FailureConfig(max_failures=3)),
    )
    kills = [{"rank": 0, "step": dice.randint(1, steps)} for _ in range(2)]
    with chaos(kill=kills, fail={"rank": 0, "step": dice.randint(1, steps)}) as faults:
        grid = tuner.fit()
    assert len(grid) == 6
    assert not grid.errors, grid.errors
    for result in grid:
        check_run(result.path, result=result, iterations=steps)
    return _disturbances(faults)


def serve_model(dice: random.Random, place: Path) -> int:
    """A server that is given a damaged checkpoint to load, and clients that misbehave."""
    trainer = DataParallelTrainer(
        soak_loops.count,
        train_loop_config={"steps": 4, "place": str(place)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=run_config(place),
    )
    with chaos(corrupt_checkpoint={"step": 4, "how": "flip", "file": "weights.bin"}) as faults:
        result = trainer.fit()
    good = result.best_checkpoints[0][0]
    server = serve.run(soak_loops.Doubling, good, port=0, blocking=False)
    assert server is not None
    with server:
        ask = _client(server.url, server.token)
        for _ in range(dice.randint(5, 30)):
            number = dice.randrange(1000)
            assert ask("/predict", {"rows": [{"x": number}]}) == (200, {"y": [2 * number]})
        assert ask("/predict", "no rows")[0] in (400, 422)
        damaged = _refused(lambda: server.reload(result.checkpoint))
        assert "weights.bin" in damaged or "hash" in damaged or "damaged" in damaged, damaged
        assert ask("/predict", {"rows": [{"x": 1}]})[0] == 200, "the model before no longer answers"
    return _disturbances(faults) + 2


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    raise AssertionError("a damaged checkpoint was loaded")


def _client(url: str, token: str | None) -> Callable[[str, Any], tuple[int, Any]]:
    def ask(path: str, document: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(url + path, data=json.dumps(document).encode(), headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return ask


def _disturbances(faults: Chaos) -> int:
    """How many faults happened; slow ones are not counted."""
    return sum(not fired.fault.startswith("slow") for fired in faults.fired)


WORK: dict[str, Callable[[random.Random, Path], int]] = {
    "train": train_plain,
    "interrupt": train_interrupted,
    "slow": train_slowly,
    "torch": train_torch,
    "dataset": read_dataset,
    "search": search,
    "serve": serve_model,
}
"""In this order, over and over."""
