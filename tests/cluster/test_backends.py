"""Every framework connects workers on three hosts of a Ray cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.choose import choose_engine
from paceline.testing.backend_lesson import Lesson
from paceline.tune import Callback
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RayHosts
from tests.hosts import test_cuts as cuts
from tests.train.trees.libraries import LIGHTGBM, XGBOOST

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FRAMEWORKS = [
    "TestTorch",
    "TestAccelerate",
    "TestTransformers",
    "TestLightning",
    "TestHorovodTorch",
    "TestHorovodTensorflowInFull",
    "TestTensorflow",
]
"""By the name of the class that has its contract."""
WORKERS = 3
FIT_S = 400.0
"""Several frameworks are imported on all hosts at once."""
KNOWN = "known in the end: "


class PrintingLesson(Lesson):
    """Hosts share no directory for marks: what a rank knows in the end it prints. Some frameworks report the last row
    themselves."""

    def begin(self, done: int) -> None:
        total = self.sum_over_ranks(session.get_world_rank() + 1.0)
        assert total == WORKERS * (WORKERS + 1) / 2

    def before_epoch(self, epoch: int) -> None:
        pass

    def end(self, weights: Iterable[float]) -> None:
        known = {
            "weights": [float(weight) for weight in weights],
            "host": socket.gethostname(),
            "node_rank": session.get_node_rank(),
            "local_rank": session.get_local_rank(),
        }
        print(f"{KNOWN}{json.dumps(known)}", flush=True)


def settings() -> dict[str, Any]:
    """A worker takes all of a host's CPUs."""
    return {
        "scaling_config": ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 2}),
        "run_config": RunConfig(verbose=0, failure_config=FailureConfig(start_timeout_s=FIT_S)),
    }


def train(framework: str) -> list[dict[str, Any]]:
    """What each rank knows in the end."""
    from tests.contracts import test_backends as contracts

    case = getattr(contracts, framework)()
    result = case.make_trainer(PrintingLesson("", 3, case.sum_over_ranks), **settings()).fit()
    logs = [(Path(result.path) / "logs" / f"rank_{rank}.log").read_text() for rank in range(WORKERS)]
    return [json.loads(log.rpartition(KNOWN)[2].splitlines()[0]) for log in logs]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_workers_on_three_hosts_train_one_model(framework: str, ray_hosts: RayHosts) -> None:
    ranks = ray_hosts.run_driver("h1", train, framework=framework, timeout=FIT_S)
    assert {rank["host"] for rank in ranks} == {"h1", "h2", "h3"}
    assert [(rank["node_rank"], rank["local_rank"]) for rank in ranks] == [(0, 0), (1, 0), (2, 0)]
    assert ranks[0]["weights"]
    assert ranks[0]["weights"] == ranks[1]["weights"] == ranks[2]["weights"]


def boost(library_name: str) -> list[str]:
    """The model of workers on three hosts, and that of as many workers on one."""
    from tests.train.trees import libraries

    library: libraries.Library = getattr(libraries, library_name)
    task = libraries.binary()
    on_hosts = library.trainer(task, **settings()).fit()
    on_one = library.trainer(task, workers=WORKERS, engine="local").fit()
    return [library.model_text(result.checkpoint) for result in (on_hosts, on_one)]


@pytest.mark.parametrize("library", ["XGBOOST", "LIGHTGBM"])
def test_boosted_trees_on_three_hosts_are_those_of_one_machine(library: str, ray_hosts: RayHosts) -> None:
    on_hosts, on_one = ray_hosts.run_driver("h1", boost, library_name=library, timeout=FIT_S)
    assert on_hosts == on_one


class TellRow(Callback):
    """Lets the test know that all workers are connected."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        tell("row")


def train_for_ever(trainer: str) -> str:
    """The error that ends it. The test learns where the ranks are."""
    engine = choose_engine()
    start_group = engine.start_group

    def told_of(placement: Placement) -> WorkerGroup:
        group = start_group(placement)
        tell("places", hosts=[place.node.hostname for place in group.places])
        return group

    vars(engine)["start_group"] = told_of
    failures = FailureConfig(heartbeat_timeout_s=cuts.HEARTBEAT_S, start_timeout_s=FIT_S)
    run_config = RunConfig(verbose=0, callbacks=[TellRow()], failure_config=failures)
    return str(CUT_TRAINERS[trainer](run_config).fit(raise_on_error=False).error)


CUT_TRAINERS = {
    "torch": cuts.torch_trainer,
    "xgboost": cuts.tree_trainer(XGBOOST),
    "lightgbm": cuts.tree_trainer(LIGHTGBM),
}


@pytest.mark.parametrize(("trainer", "rank"), [("torch", 0), ("torch", 1), ("xgboost", 1), ("lightgbm", 0)])
def test_the_host_that_was_cut_off_is_the_cause(
    trainer: str, rank: int, own_ray_hosts: Callable[..., RayHosts]
) -> None:
    """Whatever the framework of the other rank says of it, and if it hosts the rank where the others meet."""
    ray_hosts = own_ray_hosts(3, cpus=1, driver_at_head=True)
    driver = ray_hosts.start_driver("h1", train_for_ever, trainer=trainer)
    victim = driver.wait_for("places", FIT_S)["hosts"][rank]
    driver.wait_for("row", FIT_S)
    ray_hosts.cut(victim)
    first_line = driver.result(cuts.ENOUGH_S).splitlines()[0]
    assert f"rank {rank}: " in first_line
    assert victim in first_line
    assert "no sign of life" in first_line
