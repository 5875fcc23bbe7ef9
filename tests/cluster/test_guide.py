"""The steps of the guide for clusters, docs/cluster.md, on three hosts: from nothing to runs and jobs, with a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.testing.processes import wait_for
from tests.hosts.conftest import make_hosts
from tools.hosts import Hosts

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
]
PROJECT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TOKEN = ".ray/auth_token"
HAS_JOB_SERVER = find_spec("aiohttp_cors") is not None and find_spec("opencensus") is not None
needs_job_server = pytest.mark.skipif(not HAS_JOB_SERVER, reason="needs the extra ray-default")
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
WITH_MODULES = """
import os, socket
import paceline
from paceline import train
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def train_loop():
    import of_library, of_working_dir

    train.report({"found": [socket.gethostname(), of_library.NAME, of_working_dir.NAME, os.environ["GREETING"]]})


environment = {"working_dir": ".", "py_modules": ["../library/of_library"], "env_vars": {"GREETING": "hello"}}
paceline.init(engine="ray", address="auto", runtime_env=environment)
scaling = ScalingConfig(num_workers=3, placement_strategy="STRICT_SPREAD")
patient = RunConfig(failure_config=FailureConfig(start_timeout_s=200))
result = DataParallelTrainer(train_loop, scaling_config=scaling, run_config=patient).fit()
for metrics in result.rank_metrics.values():
    print("found", *metrics["found"])
"""
STEPS = """
def last_step():
    return 3
"""
JOB = """
import os, sys, time
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def train_loop():
    from steps import last_step  # A module of the directory that was submitted.

    first = (train.load_checkpoint() or {"step": -1})["step"] + 1
    for step in range(first, last_step() + 1):
        train.report({"step": step, "first": first}, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == 1 and sys.argv[1] == "stop":
            print("reached step 1", flush=True)
            time.sleep(600)


scaling = ScalingConfig(num_workers=3, placement_strategy="STRICT_SPREAD")
patient = RunConfig(name=sys.argv[2], failure_config=FailureConfig(start_timeout_s=200))
resume = "auto" if sys.argv[1] == "resume" else None
result = DataParallelTrainer(train_loop, scaling_config=scaling, run_config=patient).fit(resume=resume)
print("the job ended at step", result.metrics["step"], "and began at", result.metrics["first"])
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
        head = ["--head", "--port=6379", f"--node-ip-address={self.head}"]
        head += ["--dashboard-host=0.0.0.0"] if HAS_JOB_SERVER else ["--include-dashboard=false"]
        self.run("h1", *RAY, "start", *head, *settings, **mode)
        token = self.path("h1", f"tmp/{TOKEN}").read_text()
        for name in ("h2", "h3"):
            copy = self.path(name, f"tmp/{TOKEN}")
            copy.parent.mkdir()
            copy.write_text(token)
            copy.chmod(0o600)
            own = f"--node-ip-address={self.hosts[name].address}"
            self.run(name, *RAY, "start", f"--address={self.head}:6379", own, *settings, **mode)

    def write_program(self, name: str, folder: str, **modules: str) -> str:
        """The path of the directory, on that host."""
        written = self.path(name, f"tmp/{folder}")
        written.mkdir()
        for module, text in modules.items():
            (written / f"{module}.py").write_text(text)
        return f"/tmp/{folder}"

    def job(self, action: str, *arguments: str, cwd: str = "/tmp", check: bool = True) -> str:
        """`ray job ...`, from another host than the head."""
        server = {"RAY_AUTH_MODE": "token", "RAY_API_SERVER_ADDRESS": f"http://{self.head}:8265"}
        return self.run("h2", *RAY, "job", action, *arguments, cwd=cwd, check=check, **server)


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
    folder = guide_hosts.write_program("h2", "program", train=PROGRAM)
    said = guide_hosts.run("h2", sys.executable, "train.py", cwd=folder, RAY_ADDRESS="auto", RAY_AUTH_MODE="token")
    assert f"the Ray cluster at {guide_hosts.head}:6379 (chosen by RAY_ADDRESS)" in said
    assert "trained on h1 h2 h3" in said
    assert "authentication is off" not in said


def test_a_program_brings_its_modules_and_variables(guide_hosts: GuideHosts) -> None:
    """No disk is shared."""
    folder = guide_hosts.write_program("h3", "working", train=WITH_MODULES, of_working_dir="NAME = 'working'")
    library = guide_hosts.path("h3", "tmp/library/of_library")
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("NAME = 'library'")
    said = guide_hosts.run("h3", sys.executable, "train.py", cwd=folder, RAY_AUTH_MODE="token")
    assert f"the Ray cluster at {guide_hosts.head}:6379 (chosen by paceline.init())" in said
    for host in ("h1", "h2", "h3"):
        assert f"found {host} library working hello" in said


def test_without_the_token_nobody_gets_in(guide_hosts: GuideHosts) -> None:
    folder = guide_hosts.path("h3", "tmp/elsewhere")
    folder.mkdir()
    code = "import paceline; from paceline.engine.choose import choose_engine; choose_engine('ray').resources()"
    said = guide_hosts.run(
        "h3", sys.executable, "-c", code, check=False, RAY_ADDRESS=f"{guide_hosts.head}:6379", HOME="/tmp/elsewhere"
    )
    assert "no connection to a Ray cluster" in said


@needs_job_server
def test_a_job_runs_on_all_nodes(guide_hosts: GuideHosts) -> None:
    folder = guide_hosts.write_program("h2", "job", train=JOB, steps=STEPS)
    command = [sys.executable, "train.py", "run", "digits"]
    said = guide_hosts.job("submit", "--working-dir=.", "--submission-id=first", "--", *command, cwd=folder)
    assert "Job 'first' succeeded" in said
    assert "(chosen by RAY_ADDRESS)" in said
    assert "SUCCEEDED" in guide_hosts.job("status", "first").upper()
    assert "the job ended at step 3 and began at 0" in guide_hosts.job("logs", "first")
    code = "from paceline.train import Result; print(Result.from_path('paceline_results/digits').metrics['step'])"
    assert guide_hosts.run("h1", sys.executable, "-c", code).split() == ["3"]


@needs_job_server
def test_a_job_that_was_stopped_is_resumed_by_another(guide_hosts: GuideHosts) -> None:
    folder = guide_hosts.write_program("h2", "stopped", train=JOB, steps=STEPS)
    submit = ["submit", "--working-dir=."]
    command = ["--", sys.executable, "train.py"]
    guide_hosts.job(*submit, "--no-wait", "--submission-id=second", *command, "stop", "later", cwd=folder)
    wait_for(lambda: guide_hosts.job("logs", "second").count("reached step 1") == 3, "all ranks", 200)
    guide_hosts.job("stop", "second")
    assert "STOPPED" in guide_hosts.job("status", "second").upper()
    said = guide_hosts.job(*submit, *command, "resume", "later", cwd=folder)
    assert "the job ended at step 3 and began at 2" in said
