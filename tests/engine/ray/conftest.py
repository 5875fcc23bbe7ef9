"""A Ray cluster of two nodes on this machine, shared by the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.engine.base import Engine


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray writes a token there.
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session")
def ray_engine(ray_cluster: Any) -> Iterator[Engine]:
    from paceline.engine.ray.engine import RayEngine

    engine = RayEngine()
    yield engine
    engine.close()
