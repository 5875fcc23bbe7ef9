"""A Ray cluster of three nodes on one machine, each on a host of its own (tools/hosts.py), and scripts that use it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks import cluster_workload, processes
from benchmarks.harness import ROOT, Bench, MeasureError, Outcome, Script, ended_at_last, environment
from tools.hosts import Hosts, HostsError

PORT = 6379
OBJECT_STORE_BYTES = 200_000_000
PRIVATE_FOLDERS = ("/tmp/", "/var/tmp/")
"""Each host has its own; what both sides need from ours is shared."""
JOIN_S = 180.0


class RayHosts:
    """The nodes of a cluster: the hosts h1, with Ray's head and the drivers, h2 and h3."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        needed = [str(bench.tree), str(ROOT), sys.prefix, str(bench.scratch)]
        shared = dict.fromkeys(folder for folder in needed if folder.startswith(PRIVATE_FOLDERS))
        self.hosts = Hosts(cluster_workload.NODES, shared=list(shared))

    def __enter__(self) -> RayHosts:
        try:
            self.hosts.up()
        except (HostsError, OSError) as error:
            raise MeasureError(f"a cluster of hosts cannot be made here: {error}") from error
        try:
            head, *others = self.hosts.names
            self._start_node(head)
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._start_node, others))
        except BaseException:
            self.hosts.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.hosts.down()

    @property
    def address(self) -> str:
        return f"{self.hosts['h1'].address}:{PORT}"

    def _start_node(self, name: str) -> None:
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", "--disable-usage-stats"]
        role = head if name == "h1" else [f"--address={self.address}"]
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *role,
            f"--node-ip-address={self.hosts[name].address}", f"--num-cpus={cluster_workload.CPUS_PER_NODE}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
        ]  # fmt: skip
        try:
            self.hosts.run(name, command, env=self._environment(), timeout=JOIN_S)
        except (HostsError, subprocess.TimeoutExpired) as error:
            raise MeasureError(f"Ray did not start on {name}: {error}") from error

    def _environment(self) -> dict[str, str]:
        """Of Ray's own processes, and thereby of everybody's workers."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        return {
            **kept,
            "HOME": "/tmp",
            "PYTHONPATH": str(self._bench.tree),
            "GLOO_SOCKET_IFNAME": "eth0",  # Ray's workers would offer each other the loopback address otherwise.
            "RAY_grpc_enable_http_proxy": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @contextmanager
    def start(self, script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Script]:
        """Start a script on h1; on leaving, it is ended and its files are removed."""
        mark, place = self._bench.make_place()
        variables = environment(self._bench.tree, place) | self._environment()
        variables[cluster_workload.ADDRESS_VARIABLE] = self.address
        del variables["RAY_TMPDIR"], variables["TMPDIR"]
        with (place / "log.txt").open("wb") as log:
            started = time.monotonic()
            process: subprocess.Popen[Any] = self.hosts.popen(
                "h1",
                [sys.executable, str(script), *arguments],
                env={**variables, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        with ended_at_last(Script(process, place, mark, started)) as script_on_host:
            yield script_on_host

    def run(self, script: Path, *arguments: str, timeout: float = 600.0) -> Outcome:
        with self.start(script, *arguments) as running:
            return running.finish(timeout)

    def memory_mb(self, name: str) -> float:
        """Of all processes of a host; pages that several share are counted once."""
        return processes.proportional_mb(_processes_with(f"/proc/{self.hosts[name].init}/ns/pid"))


def _processes_with(namespace: str) -> list[int]:
    wanted = os.readlink(namespace)
    found = []
    for pid in processes.parents():
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == wanted:
                found.append(pid)
    return found
