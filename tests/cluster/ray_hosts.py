"""A Ray cluster on hosts of tools/hosts.py, drivers on them, and what a test can do to both."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.testing.processes import children, wait_for
from tests.cluster.driver import ERROR, RESULT
from tools.hosts import PRIVATE, Hosts, HostsError

PROJECT = Path(__file__).parents[2]
HEAD = "h1"
PORT = 6379
RAY_START_S = 90.0
"""A busy machine takes longer than Ray's usual 60 s."""
DRIVER_S = 120.0
"""How long to wait for a driver, unless the test says otherwise: it connects to Ray and starts agents first."""
CLEAN_S = 20.0
RESULTS = "/var/tmp/results"
"""Where a driver has its results: on its own host."""
CACHES = [f"/tmp/{name}" for name in ("torchinductor_root", "__pycache__", ".cache", ".config", ".keras", ".triton")]
"""What frameworks keep for their next start, in the temporary directory and at home; TensorFlow compiles there."""


class RayHosts:
    """Nodes of one Ray cluster, one on each host. The head is h1."""

    def __init__(self, hosts: Hosts, cpus: Mapping[str, int], more: Mapping[str, Sequence[str]] | None = None) -> None:
        """`cpus` by the names of the hosts; a host that only drivers shall use has 0. `more` are further arguments for
        the start of Ray on some of them."""
        self.hosts = hosts
        self.address = f"{hosts[HEAD].address}:{PORT}"
        self._cpus = dict(cpus)
        self._more = dict(more or {})
        self._drivers: list[DriverProcess] = []
        self._usual: dict[str, set[str]] = {}
        self._outputs = tempfile.TemporaryDirectory(prefix="drivers-")

    # Ray

    def start(self) -> None:
        self.join(HEAD)
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.join, [name for name in self.hosts.names if name != HEAD]))

    def join(self, name: str) -> None:
        """Start Ray on a host."""
        address = self.hosts[name].address
        role = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"] if name == HEAD else ["--address", self.address]
        )
        settings = [f"--node-ip-address={address}", f"--num-cpus={self._cpus[name]}", "--object-store-memory=100000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *role, *settings]
        command += self._more.get(name, ())
        for tries_left in (2, 1, 0):
            try:
                self.hosts.run(name, command, env=self._environment(), timeout=RAY_START_S + 30)
                break
            except HostsError:  # On a busy machine, Ray's own processes may not wait long enough for each other.
                self._end_all(name)
                if not tries_left:
                    raise
        self._usual[name] = self._files(name)

    def _end_all(self, name: str) -> None:
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PACELINE_TEST_SESSION") if name in os.environ}
        own = {"HOME": "/tmp", "PYTHONPATH": str(PROJECT), "OMP_WAIT_POLICY": "PASSIVE"}
        patience = {"RAY_raylet_start_wait_time_s": f"{RAY_START_S:g}"}
        return {**kept, **own, **patience, "RAY_grpc_enable_http_proxy": "0"}

    # Faults

    def cut(self, name: str) -> None:
        """Take a host off the network; its processes live on."""
        self.hosts.cut(name)

    def heal(self, name: str) -> None:
        self.hosts.heal(name)

    def kill(self, name: str) -> None:
        """As a power cut does: nobody says goodbye."""
        self.hosts.kill(name)
        self._usual.pop(name, None)

    def revive(self, name: str) -> None:
        """Switch a killed host on again, and let it join the cluster."""
        self.hosts.revive(name)
        self.join(name)

    def restart(self) -> None:
        """A new cluster on the same hosts. Those that are up keep their files."""
        for name in self.hosts.names:
            if name in self._usual:
                self._end_all(name)
            else:
                self.hosts.revive(name)
        self.start()

    def kill_raylet(self, name: str) -> None:
        """SIGKILL the process of Ray that makes a host a node of the cluster."""
        (pid,) = [pid for pid, command in self.processes(name).items() if command.split(" ")[0].endswith("/raylet")]
        os.kill(pid, signal.SIGKILL)

    # Drivers

    def start_driver(
        self, name: str, function: Callable[..., Any], *, variables: Mapping[str, str] | None = None, **arguments: Any
    ) -> DriverProcess:
        """Call a function of a module, with arguments that JSON can hold, in a process of its own on a host."""
        engine = {"PACELINE_ENGINE": "ray", "RAY_ADDRESS": self.address, "PACELINE_RESULTS_DIR": RESULTS}
        env = {**self._environment(), **engine, **(variables or {})}
        read_end, write_end = os.pipe()
        target = f"{function.__module__}:{function.__qualname__}"
        command = [sys.executable, "-m", "tests.cluster.driver", str(write_end), target, json.dumps(arguments)]
        output = Path(self._outputs.name) / f"{len(self._drivers)}.txt"
        with output.open("wb") as stream:
            streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": stream, "stderr": stream}
            popen = self.hosts.popen(name, command, env=env, pass_fds=[write_end], **streams)
        os.close(write_end)
        driver = DriverProcess(popen, read_end, output)
        self._drivers.append(driver)
        return driver

    def run_driver(
        self, name: str, function: Callable[..., Any], *, timeout: float = DRIVER_S, **arguments: Any
    ) -> Any:
        """What such a function returns."""
        return self.start_driver(name, function, **arguments).result(timeout)

    # Looking at hosts

    def path(self, name: str, path: str) -> Path:
        """A file of a host, as this process can open it while the host is up."""
        return Path(f"/proc/{self.hosts[name].init}/root") / path.lstrip("/")

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of all processes of a host, by their ids on this machine."""
        init = self.hosts[name].init
        namespace = os.readlink(f"/proc/{init}/ns/pid")
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and int(entry) != init and os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                    command = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ").strip()
                    found.update({int(entry): command} if command else {})  # Those that have ended have none.
        return found

    def left(self, name: str) -> list[str]:
        """What is on a host besides Ray: processes, and files that were not there when Ray had started."""
        commands = [command for command in self.processes(name).values() if not _is_rays(command)]
        return [*commands, *sorted(self._files(name) - self._usual[name])]

    def _files(self, name: str) -> set[str]:
        """Without the results of drivers, the directory in which the drivers of a user are listed, and caches."""
        found = {f"{folder}/{entry.name}" for folder in PRIVATE for entry in self.path(name, folder).iterdir()}
        return found - {RESULTS, f"/tmp/paceline-{os.geteuid()}", *CACHES}

    def wait_until_clean(self, *names: str, timeout: float = CLEAN_S, actors_may_stay: bool = False) -> float:
        """Until nothing is left on these hosts, or on all that are up; returns how long that took.

        On a host that is cut off, Ray keeps the actor of an agent that has ended.
        """
        begun = time.monotonic()
        found: dict[str, list[str]] = {}

        def is_clean() -> bool:
            nonlocal found
            found = {name: self.left(name) for name in names or self._usual}
            return not any(
                actors_may_stay is False or "AgentHolder" not in it for left in found.values() for it in left
            )

        try:
            wait_for(is_clean, "clean hosts", timeout)
        except AssertionError:
            raise AssertionError(f"after {timeout:g} s, there is still on the hosts: {found}") from None
        return time.monotonic() - begun

    # End

    def end_drivers(self) -> None:
        for driver in self._drivers:
            driver.close()
        self._drivers.clear()

    def down(self) -> None:
        self.end_drivers()
        self.hosts.down()
        self._outputs.cleanup()


def _is_rays(command: str) -> bool:
    if command.startswith("ray::"):
        return "AgentHolder" not in command
    return "/site-packages/ray/" in command or " -m ray." in command


class DriverProcess:
    """A driver on a host."""

    def __init__(self, popen: subprocess.Popen[Any], read_end: int, output: Path) -> None:
        self.output = output
        """A file with what it prints."""
        self._popen = popen
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=[read_end], daemon=True)
        self._reader.start()

    def _read(self, read_end: int) -> None:
        with open(read_end) as lines:
            for line in lines:
                if line.endswith("\n"):
                    self._events.put(json.loads(line))
        self._events.put(None)

    def wait_for(self, event: str, timeout: float = DRIVER_S) -> dict[str, Any]:
        """The facts of the next event of this name; fails if the driver ends before."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                told = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event!r} within {timeout:g} s. {self._what_it_printed()}") from None
            if told is None:
                self._events.put(None)
                raise AssertionError(f"the driver ended before it told of {event!r}. {self._what_it_printed()}")
            if told["event"] == event:
                return told
            if told["event"] == ERROR:
                raise AssertionError(f"the driver failed: {told['text']}\n{self._what_it_printed()}")

    def result(self, timeout: float = DRIVER_S) -> Any:
        """What its function returned; the process has ended."""
        value = self.wait_for(RESULT, timeout)["value"]
        self.wait()
        return value

    def wait(self, timeout: float = DRIVER_S) -> None:
        """Until the process has ended, without an error."""
        status = self._popen.wait(timeout)
        assert status == 0, f"the driver ended with status {status}. {self._what_it_printed()}"

    def say(self, word: str) -> None:
        """To the driver's `wait_for_word`."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(word.encode() + b"\n")
        self._popen.stdin.flush()

    def send(self, number: int) -> None:
        """A signal to the driver itself, not to what has put it on the host."""
        for process in children(self._popen.pid):
            os.kill(process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._popen.wait(DRIVER_S)

    def _what_it_printed(self) -> str:
        return f"It printed:\n{self.output.read_text(errors='replace')[-6000:]}"

    def close(self) -> None:
        """Whatever the test did, the driver does not outlive it."""
        if self._popen.poll() is None:
            self.send(signal.SIGKILL)
            self._popen.kill()
        self._popen.wait()
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        self._reader.join(DRIVER_S)
