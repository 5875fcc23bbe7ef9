"""Programs that use a Ray cluster, as processes of their own: python programs.py NAME ARGUMENT...

The functions here are those of a script: they travel to workers by value.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import paceline
from paceline import train
from paceline.air import Checkpoint
from paceline.air.errors import TrainingFailedError
from paceline.run.callbacks import Callback
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def say(**values: Any) -> None:
    """To the test, after whatever the run has shown."""
    print("SAYS " + json.dumps(values), flush=True)


def show_surroundings() -> None:
    import in_py_modules
    import in_working_dir

    directory = Path(os.environ["TUNE_ORIG_WORKING_DIR"])
    train.report(
        {
            "variable": os.environ.get("OF_RUNTIME_ENV"),
            "modules": [in_working_dir.NAME, in_py_modules.NAME],
            "file": (directory / "data.txt").read_text(),
            "cwd": os.path.basename(os.getcwd()),
        }
    )


def with_runtime_env(address: str, working_dir: str, module_dir: str) -> None:
    runtime_env = {"env_vars": {"OF_RUNTIME_ENV": "yes"}, "working_dir": working_dir, "py_modules": [module_dir]}
    paceline.init(address=address, runtime_env=runtime_env)
    result = fit(show_surroundings)
    say(
        ranks={
            rank: {name: metrics[name] for name in ("variable", "modules", "file", "cwd")}
            for rank, metrics in result.rank_metrics.items()
        }
    )


def fit(function: Any, workers: int = 2, **settings: Any) -> Any:
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1})
    return DataParallelTrainer(function, scaling_config=scaling, run_config=RunConfig(**settings)).fit()


def report_pid() -> None:
    train.report({"pid": os.getpid(), "world_size": train.get_context().get_world_size()})


def by_variable() -> None:
    """RAY_ADDRESS, or another variable, names the cluster."""
    result = fit(report_pid)
    say(world_size=result.metrics["world_size"])


def own_ray() -> None:
    result = fit(report_pid, engine="ray")
    say(world_size=result.metrics["world_size"])


def on_encrypted_cluster() -> None:
    """A cluster of its own, since Ray reads its variables once in each process."""
    from ray.cluster_utils import Cluster

    from paceline.engine.choose import choose_engine

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        paceline.init(address=cluster.address)
        scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
        result = DataParallelTrainer(report_pid, scaling_config=scaling).fit()
        engine: Any = choose_engine()
        address = engine._listener.address
        own = (os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
        members, strangers = met_by(address, own), met_by(address, None)
        say(world_size=result.metrics["world_size"], members=members, strangers=strangers)
    finally:
        paceline.shutdown()
        cluster.shutdown()


def met_by(address: tuple[str, int], certificate: tuple[str, str] | None) -> str:
    """What becomes of somebody with this certificate who calls there, and says nothing for a moment."""
    context = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(*certificate)
    with socket.create_connection(address, timeout=30) as sock, context.wrap_socket(sock) as encrypted:
        encrypted.settimeout(3)
        try:
            return "answered" if encrypted.recv(1) else "hung up on"
        except TimeoutError:
            return "listened to"
        except ssl.SSLError as error:
            return str(error.reason)


def inside_task_and_actor(address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False)

    @ray.remote(num_cpus=1)
    def in_task() -> dict[str, Any]:
        return dict(fit(report_pid).metrics)

    @ray.remote(num_cpus=1)
    class Driver:
        def train(self) -> dict[str, Any]:
            return dict(fit(report_pid).metrics)

    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    held = placement_group([{"CPU": 1}])
    captured = PlacementGroupSchedulingStrategy(held, placement_group_capture_child_tasks=True)
    actor = Driver.options(scheduling_strategy=captured).remote()  # type: ignore[attr-defined]  # Ray adds it
    found = ray.get([in_task.remote(), actor.train.remote()], timeout=100)
    say(world_sizes=[metrics["world_size"] for metrics in found])


def stay() -> None:
    train.report({"pid": os.getpid()})
    time.sleep(1000)


def hold(address: str) -> None:
    """Runs until it is killed."""

    class SayStarted(Callback):
        def on_trial_result(self, **info: Any) -> None:
            say(pid=info["result"]["pid"])

    paceline.init(address=address)
    fit(stay, callbacks=[SayStarted()])


def wait_for_room(address: str) -> None:
    """What the run needs is taken, so it waits until it is interrupted."""
    import ray
    from ray.util.placement_group import placement_group

    from paceline.engine.ray import reservation

    reservation.ANNOUNCE_S = 1.0  # type: ignore[misc]  # to wait less
    ray.init(address=address, log_to_driver=False)
    taken = placement_group([{"CPU": ray.cluster_resources()["CPU"] / 2}] * 2)
    ray.get(taken.ready())
    fit(report_pid)


def with_own_ray_init(address: str) -> None:
    """ray.init() takes SIGTERM for itself."""
    import ray

    ray.init(address=address, log_to_driver=False)

    class SayStarted(Callback):
        def on_trial_result(self, **info: Any) -> None:
            if info["result"]["training_iteration"] == 1:
                say(started=True)

    fit(step_slowly, callbacks=[SayStarted()])


def step_slowly() -> None:
    start = (train.load_checkpoint() or {"step": -1})["step"] + 1
    for step in range(start, 1000):
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        time.sleep(0.5)


def lose_cluster(address: str) -> None:
    """The head goes away meanwhile."""

    class SayStarted(Callback):
        def on_trial_result(self, **info: Any) -> None:
            if info["result"]["training_iteration"] == 1:
                say(started=True)

    paceline.init(address=address)
    try:
        fit(step_slowly, callbacks=[SayStarted()], failure_config=FailureConfig(max_failures=2))
    except TrainingFailedError as error:
        say(cause=type(error.__cause__).__name__, text=str(error), iteration=error.result.metrics["training_iteration"])  # type: ignore[union-attr]
    paceline.shutdown()
    say(ended=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
