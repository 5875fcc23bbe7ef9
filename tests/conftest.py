"""Rules for every test: results go to a temporary directory, the environment comes back
as it was, and when the session ends none of the processes it started is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.air.words import counted
from paceline.testing import invariants

# Every process that a test starts, at any depth, inherits this variable: a process that
# left the tree by a double fork is found by it. /proc shows the environment a process
# was executed with, and a fork keeps it.
SESSION_VARIABLE = "PACELINE_TEST_SESSION"
OWN_VARIABLES = ("PACELINE_RESULTS_DIR", "PACELINE_ENGINE", "PACELINE_FAULT", "RAY_ADDRESS", "XDG_CACHE_HOME")
SECONDS_TO_GO = 5.0
NO_HOSTS = "no test hosts"
"""How the reason begins for which tests on several hosts are skipped."""
NO_BROWSER = "no Chromium"
"""The same for tests in a browser."""

# Set before a framework is loaded. Threads of OpenMP spin while they wait, which costs the test processes beside this
# one many times what the waiting threads gain.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray sets it when it is imported, whichever test does that first.
os.environ.setdefault("RAY_CLIENT_MODE", "0")
# Comet, which Transformers imports where it is installed, would wrap functions of XGBoost and others.
os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell starts background jobs with Ctrl-C ignored, nohup ignores hangups, and children inherit that."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Test processes run side by side: each has its own home, temporary directory and registry of live drivers.

    Fixtures that outlive a test train too: what the user's environment says about engines must not reach them.
    """
    tmp_path_factory.getbasetemp()  # chosen before TMPDIR changes: pytest keeps the files of its last sessions
    folder = tempfile.mkdtemp(prefix="paceline-tests-")
    os.chmod(folder, 0o755)  # some tests continue as another user
    with pytest.MonkeyPatch.context() as patch:
        for variable in OWN_VARIABLES:
            patch.delenv(variable, raising=False)
        for variable, mode in (("HOME", 0o755), ("TMPDIR", 0o755), ("XDG_RUNTIME_DIR", 0o700)):
            os.mkdir(path := os.path.join(folder, variable.lower()), mode)
            patch.setenv(variable, path)
        patch.setattr(tempfile, "tempdir", None)  # tempfile remembers the directory it found first
        yield
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def no_process_left(own_directories: None) -> Iterator[None]:
    """Fail the session if a process outlives it."""
    token = uuid.uuid4().hex
    os.environ[SESSION_VARIABLE] = token
    yield
    if "paceline.engine.choose" in sys.modules:  # otherwise no test started an engine
        sys.modules["paceline.engine.choose"].shutdown()
    _, alive = psutil.wait_procs(_started_by_this_session(token), timeout=SECONDS_TO_GO)
    if alive:
        listing = "\n".join(_describe(process) for process in alive)
        for process in alive:
            process.kill()
        pytest.fail(f"{len(alive)} process(es) outlived the tests:\n{listing}")


@pytest.fixture(autouse=True)
def unchanged_surroundings() -> Iterator[None]:
    """A test that changes variables or the working directory puts them back."""
    directory, variables = Path.cwd(), _environment()
    yield
    here, now = Path.cwd(), _environment()
    os.chdir(directory)
    changed = sorted(name for name in variables.keys() | now.keys() if variables.get(name) != now.get(name))
    for name in changed:
        if name in variables:
            os.environ[name] = variables[name]
        else:
            del os.environ[name]
    assert here == directory, f"the test left the working directory at {here}"
    assert not changed, f"the test left environment variables changed: {changed}"


@pytest.fixture(autouse=True)
def results_dir(unchanged_surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs of this test put their results, unless they say otherwise."""
    for name in OWN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "paceline_results"
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(path))
    return path


@pytest.fixture(autouse=True)
def servers_of_the_session() -> None:
    """Servers that other tests started in this process are not held against a run."""
    invariants.sockets_before = set(invariants.listening_sockets(os.getpid()))


@pytest.fixture(scope="session")
def ray_cluster(own_directories: None) -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, shared by all tests of this process, which is connected to it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # A busy machine takes longer than the usual 60 s.
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=4)
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="session")
def ray_engine(ray_cluster: Any) -> Iterator[Any]:
    from paceline.engine.ray.engine import RayEngine

    engine = RayEngine()
    yield engine
    engine.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Some tests need root and namespaces, others a browser: a session without them must not look complete."""
    needs = (
        (NO_HOSTS, "on several hosts", "PACELINE_REQUIRE_HOSTS=1"),
        (NO_BROWSER, "in a browser", "CI=true"),
    )
    for mark, where, setting in needs:
        skipped = [report for report in terminalreporter.stats.get("skipped", ()) if mark in str(report.longrepr)]
        if skipped:
            reason = skipped[0].longrepr[2] if isinstance(skipped[0].longrepr, tuple) else str(skipped[0].longrepr)
            terminalreporter.section(f"{counted(len(skipped), 'test')} {where} did NOT run", sep="!", red=True)
            terminalreporter.line(f"{reason}\n{setting} makes this an error.", red=True)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _started_by_this_session(token: str) -> list[psutil.Process]:
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(SESSION_VARIABLE) == token:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or not ours to read
    return list(found.values())


def _describe(process: psutil.Process) -> str:
    try:
        return f"  pid {process.pid} {process.status()}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"  pid {process.pid} (gone meanwhile)"
