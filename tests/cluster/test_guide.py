"""The steps of the guide for clusters, docs/cluster.md, on three hosts: from nothing to a run, with a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.conftest import make_hosts
from tools.hosts import Hosts

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
]
PROJECT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TOKEN = ".ray/auth_token"
PROGRAM = """
import socket
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def train_loop():
    rank = train.get_context().get_world_rank()
    train.report({"rank": rank, "host": socket.gethostname()}, checkpoint=Checkpoint.from_dict({"rank": rank}))


scaling = ScalingConfig(num_workers=3, placement_strategy="STRICT_SPREAD")
patient = RunConfig(failure_config=FailureConfig(start_timeout_s=200))
result = DataParallelTrainer(train_loop, scaling_config=scaling, run_config=patient).fit()
print("trained on", *sorted(metrics["host"] for metrics in result.rank_metrics.values()))
"""


class GuideHosts:
    """Three hosts, and the user who follows the guide on them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.head = hosts["h1"].address

    def run(self, name: str, *command: str, cwd: str = "/tmp", check: bool = True, **variables: str) -> str:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "PACELINE_TEST_SESSION") if name in os.environ},
            "HOME": "/tmp",
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": str(PROJECT),
            "RAY_grpc_enable_http_proxy": "0",
            "RAY_raylet_start_wait_time_s": "150",
            "no_proxy": "*",
            **variables,
        }
        done = subprocess.run(
            self.hosts[name].command(["env", "-C", cwd, *command]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        return said

    def path(self, name: str, path: str) -> Path:
        """A file of a host, as this process can open it."""
        return Path(f"/proc/{self.hosts[name].init}/root") / path

    def start_ray(self) -> None:
        mode = {"RAY_AUTH_MODE": "token"}
        self.run("h1", *RAY, "get-auth-token", "--generate", **mode)
        settings = ["--disable-usage-stats", "--num-cpus=2", "--object-store-memory=100000000"]
        head = ["--head", "--port=6379", f"--node-ip-address={self.head}", "--include-dashboard=false"]
        self.run("h1", *RAY, "start", *head, *settings, **mode)
        token = self.path("h1", f"tmp/{TOKEN}").read_text()
        for name in ("h2", "h3"):
            copy = self.path(name, f"tmp/{TOKEN}")
            copy.parent.mkdir()
            copy.write_text(token)
            copy.chmod(0o600)
            own = f"--node-ip-address={self.hosts[name].address}"
            self.run(name, *RAY, "start", f"--address={self.head}:6379", own, *settings, **mode)

    def write_program(self, name: str) -> str:
        folder = self.path(name, "tmp/program")
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        return "/tmp/program"


@pytest.fixture(scope="module")
def guide_hosts() -> Iterator[GuideHosts]:
    pytest.importorskip("ray")
    hosts = make_hosts(3)
    try:
        guide_hosts = GuideHosts(hosts)
        guide_hosts.start_ray()
        yield guide_hosts
    finally:
        hosts.down()


def test_a_program_runs_on_all_nodes(guide_hosts: GuideHosts) -> None:
    folder = guide_hosts.write_program("h2")
    said = guide_hosts.run("h2", sys.executable, "train.py", cwd=folder, RAY_ADDRESS="auto", RAY_AUTH_MODE="token")
    assert f"the Ray cluster at {guide_hosts.head}:6379: RAY_ADDRESS says so" in said
    assert "trained on h1 h2 h3" in said
    assert "authentication is off" not in said


def test_without_the_token_nobody_gets_in(guide_hosts: GuideHosts) -> None:
    folder = guide_hosts.path("h3", "tmp/elsewhere")
    folder.mkdir()
    code = "import paceline; from paceline.engine.choose import choose_engine; choose_engine('ray').resources()"
    said = guide_hosts.run(
        "h3", sys.executable, "-c", code, check=False, RAY_ADDRESS=f"{guide_hosts.head}:6379", HOME="/tmp/elsewhere"
    )
    assert "no connection to a Ray cluster" in said
