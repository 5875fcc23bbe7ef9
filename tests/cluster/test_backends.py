"""Every framework connects workers on three hosts of a Ray cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.testing.backend_lesson import Lesson
from tests.cluster.ray_hosts import RayHosts

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
