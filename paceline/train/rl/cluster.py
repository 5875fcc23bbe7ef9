"""How the worker of an RLTrainer joins the Ray cluster that its run is on.

The room of the run is one placement group: a bundle for the worker, and one for each env runner and learner. The worker
is a driver of its own to Ray, so that everything it starts there ends with it, however it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.engine.base import ClusterAccess
from paceline.train.rl import rllib


def bundles(config: Any, *, use_gpu: bool) -> tuple[Mapping[str, float], ...]:
    """What an algorithm needs on a cluster: first the worker's own. RLlib puts env runner n into the bundle n."""
    main = {"CPU": float(config.num_cpus_for_main_process), "GPU": 1.0 if use_gpu else 0.0}
    runner = {
        "CPU": float(config.num_cpus_per_env_runner),
        "GPU": float(config.num_gpus_per_env_runner),
        **config.custom_resources_per_env_runner,
    }
    runners = config.num_env_runners + (config.evaluation_num_env_runners if config.evaluation_interval else 0)
    gpus = float(max(0, config.num_gpus_per_learner))
    asked = config.num_cpus_per_learner
    learner = {"CPU": float(asked) if asked != "auto" else float(not gpus), "GPU": gpus}
    return main, *[runner] * runners, *[learner] * config.num_learners


@contextmanager
def joined(access: ClusterAccess) -> Iterator[None]:
    """Connect to the cluster; what RLlib starts goes into the run's room."""
    import ray

    ray.init(
        address=access.address,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {**rllib.WITHOUT_OTHER_FRAMEWORKS, "PYTHONPATH": _own_paths()}},
    )
    try:
        with _inside(access.room):
            yield
    finally:
        ray.shutdown()


def _own_paths() -> str:
    """Where the program's own modules are, for env runners on nodes that have the same files."""
    installed = (sys.prefix, sys.base_prefix)
    return os.pathsep.join(path for path in sys.path if path and not path.startswith(installed))


@contextmanager
def _inside(room: str) -> Iterator[None]:
    """As in a task that runs in the placement group: Ray has no other way to say that of a driver."""
    from ray import PlacementGroupID
    from ray._private.worker import Worker

    told = {
        "placement_group_id": PlacementGroupID(bytes.fromhex(room)),
        "should_capture_child_tasks_in_placement_group": True,
    }
    before = {name: vars(Worker)[name] for name in told}
    for name, value in told.items():
        setattr(Worker, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(Worker, name, value)
