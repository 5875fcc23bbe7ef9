"""A node with another version of paceline: the run is refused, with both versions and the node's name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline import train
from paceline.air.errors import PacelineError
from paceline.train import DataParallelTrainer, ScalingConfig
from tests.cluster.ray_hosts import RayHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PACKAGE = Path(paceline.__file__).parent
COPY = "/var/tmp/other_version"


@pytest.fixture
def another_version(ray_hosts: RayHosts) -> Iterator[str]:
    """On h3, where the others have ours."""
    copy = ray_hosts.path("h3", COPY)
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "__init__.py").read_text()
    (copy / "__init__.py").write_text(text.replace(f'"{paceline.__version__}"', '"99.1"'))
    ray_hosts.hosts.run("h3", ["mount", "--bind", COPY, str(PACKAGE)])
    yield "99.1"
    ray_hosts.hosts.run("h3", ["umount", "--lazy", str(PACKAGE)])
    shutil.rmtree(copy)


def train_on_all_hosts() -> str:
    """How that failed."""
    scaling = ScalingConfig(num_workers=3, placement_strategy="STRICT_SPREAD")
    try:
        DataParallelTrainer(lambda: train.report({"done": 1}), scaling_config=scaling).fit()
    except PacelineError as error:
        return str(error)
    return ""


def test_a_node_with_another_version_is_named(ray_hosts: RayHosts, another_version: str) -> None:
    """J6."""
    error = ray_hosts.run_driver("h1", train_on_all_hosts)
    versions = f"has paceline {another_version}, and this program runs with paceline {paceline.__version__}"
    assert f"h3 (10.231.0.3) {versions}. Install the same version on every node." in error
