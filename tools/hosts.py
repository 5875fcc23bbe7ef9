#!/usr/bin/env python3
"""Hosts for tests, made from namespaces on one machine. Needs Linux, root, iproute2, util-linux 2.36 and a C compiler.

    tools/hosts.py up 2             make the hosts h1 and h2 with the addresses 10.231.0.1 and 10.231.0.2
    tools/hosts.py run h1 COMMAND   run a command on a host
    tools/hosts.py cut h1           take a host off the network; its processes live on
    tools/hosts.py heal h1          put it back
    tools/hosts.py kill h1          end all processes of a host at once, as a power cut does
    tools/hosts.py down             remove all hosts

A host has its own network, process ids, IPC, host name and mounts: /proc is its own, and so are /tmp, /var/tmp and
/dev/shm, which begin empty. Everything else on the disk is shared. Its clocks are wrong: the monotonic clock by a time
namespace, the wall clock by a library that `run` preloads (hosts_clock.c).

The hosts are joined by a switch in a network namespace of its own, so the machine's network does not change, and
several sets of hosts can use the same addresses at once. `--set NAME` tells such sets apart on the command line. No
namespace has a name: each lives as long as the processes in it.

Tests use the class `Hosts`. Its hosts end with `down`, or when the process that made them ends, however it ends. The
machine itself is not on the hosts' network, but `Hosts.listen` gives it a socket that hosts can connect to.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

NETWORK = "10.231.0"
SWITCH_ADDRESS = f"{NETWORK}.254"
SWITCH_HARDWARE = "02:00:00:00:02:54"
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
CLOCK_LIBRARY = "/tmp/hosts_clock.so"
"""Where a host finds it: in a directory of its own."""
CLOCKS = ((100, -100), (-100, 100), (200, 300), (-200, -300))
"""What each host's monotonic and wall clocks add, in seconds; the hosts take turns."""
CLONE_NEWNET = 0x40000000
END_TIMEOUT_S = 30.0
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Value = TypeVar("Value")


class HostsError(RuntimeError):
    """Hosts cannot be made here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One host, as the machine sees it."""

    name: str
    address: str
    port: str
    """The switch's end of its cable."""
    init: int
    """Its first process: with it ends everything on the host."""
    monotonic_shift: int
    wall_shift: int

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs another one on this host."""
        clock = [f"LD_PRELOAD={CLOCK_LIBRARY}", f"HOSTS_WALL_SHIFT_S={self.wall_shift}"]
        return ["nsenter", "--target", str(self.init), "--all", "--", "env", *clock, *arguments]


class Switch:
    """What joins the hosts: a bridge in a network namespace, held by a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def plug(self, host: Host) -> None:
        add = f"link add {host.port} type veth peer name eth0 netns {host.init}"
        self._ip(self.pid, add, f"link set {host.port} master br0", f"link set {host.port} up")
        self._ip(host.init, f"addr add {host.address}/24 dev eth0", "link set eth0 up", "link set lo up")

    def make_bridge(self) -> None:
        """With an address of its own: by default a bridge takes over that of a port, and then a port that has left the
        bridge still accepts what its host sends to the switch."""
        add = f"link add br0 address {SWITCH_HARDWARE} type bridge"
        self._ip(self.pid, add, f"addr add {SWITCH_ADDRESS}/24 dev br0", "link set br0 up")

    def unplug(self, host: Host) -> None:
        """The cable stays as it is: if the link went down and up, the kernel could take a minute to bring it back."""
        self._ip(self.pid, f"link set {host.port} nomaster")

    def plug_back(self, host: Host) -> None:
        self._ip(self.pid, f"link set {host.port} master br0")

    def _ip(self, pid: int, *lines: str) -> None:
        command = ["nsenter", "--target", str(pid), "--net", "--", "ip", "-batch", "-"]
        _check(subprocess.run(command, input="\n".join(lines), text=True, capture_output=True))


class Hosts:
    """A set of hosts that ends with this object's `down`, or with this process."""

    def __init__(self, count: int, *, shared: Sequence[str] = (), names: bool = False) -> None:
        """`shared` are directories that hosts see although they lie in one that is private. With `names` the hosts know
        each other's addresses by name."""
        self._count = count
        self._names = {f"h{number}": f"{NETWORK}.{number}" for number in range(1, count + 1)} if names else {}
        self._shared = list(shared)
        self._holders: list[subprocess.Popen[str]] = []
        self._ports = itertools.count(1)
        self._by_name: dict[str, Host] = {}
        self._switch: Switch | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *raised: object) -> None:
        self.down()

    def __getitem__(self, name: str) -> Host:
        return self._by_name[name]

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    @property
    def switch(self) -> Switch:
        assert self._switch is not None, "call up() first"
        return self._switch

    def up(self) -> None:
        _check_requirements()
        try:
            self._make_all()
        except BaseException:
            self.down()
            raise

    def _make_all(self) -> None:
        self._switch = Switch(self._hold(["--net"], {}))
        self._switch.make_bridge()
        self._make_hosts(range(1, self._count + 1))

    def _make_hosts(self, numbers: Iterable[int]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "clock.so")
            source = str(Path(__file__).with_name("hosts_clock.c"))
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"]
            _check(subprocess.run(command, text=True, capture_output=True))
            for number in numbers:
                self._make(number, library)

    def _make(self, number: int, library: str) -> None:
        name = f"h{number}"
        monotonic, wall = CLOCKS[(number - 1) % len(CLOCKS)]
        if monotonic < 0 and _uptime() < 2 - monotonic:
            monotonic = 100 - monotonic  # No clock may show a time before the machine's start.
        flags = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--time"]
        flags += ["--monotonic", str(monotonic), "--boottime", str(monotonic)]
        settings = {
            "name": name,
            "private": PRIVATE,
            "shared": self._shared,
            "copied": {library: CLOCK_LIBRARY},
            "addresses": self._names,
        }
        init = self._hold(flags, settings)
        host = Host(name, f"{NETWORK}.{number}", f"port{next(self._ports)}", init, monotonic, wall)
        self.switch.plug(host)
        self._by_name[name] = host

    def _hold(self, flags: list[str], settings: dict[str, Any]) -> int:
        """Start the first process of new namespaces; it ends when this process does. Returns its pid."""
        init = [sys.executable, "-I", "-S", str(Path(__file__).with_name("hosts_init.py")), json.dumps(settings)]
        command = ["unshare", *flags, "--fork", "--kill-child", "--", *init]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        holder = subprocess.Popen(command, text=True, env=_plain_environment(), **pipes)  # type: ignore[call-overload]
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            holder.kill()
            raise HostsError(holder.communicate()[1].strip() or f"{' '.join(command)} failed")
        return _only_child_of(holder.pid)

    def popen(self, name: str, arguments: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
        """Start a command on a host, in a plain environment unless `env` says otherwise."""
        settings.setdefault("env", _plain_environment())
        return subprocess.Popen(self._by_name[name].command(arguments), **settings)

    def run(self, name: str, arguments: Sequence[str], **settings: Any) -> str:
        """What a command prints on a host; raises HostsError if it fails."""
        settings.setdefault("env", _plain_environment())
        command = self._by_name[name].command(arguments)
        return _check(subprocess.run(command, text=True, capture_output=True, **settings))

    def cut(self, name: str) -> None:
        """Take a host off the network; its processes live on."""
        self.switch.unplug(self._by_name[name])

    def heal(self, name: str) -> None:
        """Undo `cut`."""
        self.switch.plug_back(self._by_name[name])

    def kill(self, name: str) -> None:
        """End all processes of a host at once. Nobody says goodbye: the host is off the network before."""
        self.cut(name)
        os.kill(self._by_name[name].init, signal.SIGKILL)

    def revive(self, name: str) -> None:
        """Start a host again after `kill`, with its old name and address; its own directories are empty."""
        self._make_hosts([int(name.removeprefix("h"))])

    def listen(self) -> socket.socket:
        """A socket of this process on which hosts can reach it, at SWITCH_ADDRESS."""
        return _in_network_of(self.switch.pid, lambda: socket.create_server((SWITCH_ADDRESS, 0), backlog=128))

    def down(self) -> None:
        """Remove all hosts and everything that runs there."""
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.communicate()
        self._holders.clear()
        self._by_name.clear()
        self._switch = None


def _check_requirements() -> None:
    if sys.platform != "linux":
        raise HostsError("hosts are made from namespaces, which only Linux has")
    if os.geteuid() != 0:
        raise HostsError("hosts need root")
    packages = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "cc": "gcc"}
    absent = {program: package for program, package in packages.items() if shutil.which(program) is None}
    if absent:
        names = " ".join(dict.fromkeys(absent.values()))
        raise HostsError(f"hosts need {', '.join(absent)}: apt-get install {names}")


def _check(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        raise HostsError(f"{' '.join(done.args)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _plain_environment() -> dict[str, str]:
    """What a login on another machine would find: nothing of this process's settings."""
    kept = ("PATH", "LANG", "LC_ALL", "PACELINE_TEST_SESSION")  # The last lets the tests find what they left behind.
    return {**{name: os.environ[name] for name in kept if name in os.environ}, "HOME": "/tmp"}


def _only_child_of(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read())


def _uptime() -> float:
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])


def _in_network_of(pid: int, function: Callable[[], Value]) -> Value:
    """Call a function in a thread that is in another process's network; sockets that it makes stay there."""

    def enter_and_call() -> Value:
        with open(f"/proc/{pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise HostsError(f"the network of the hosts cannot be entered: {os.strerror(ctypes.get_errno())}")
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_call).result()


# The command line: a process in the background holds the hosts from `up` to `down`


def _state_file(set_name: str) -> Path:
    return Path(os.environ.get("HOSTS_DIR", "/run/paceline-hosts")) / f"{set_name}.json"


def _up(set_name: str, count: int) -> None:
    file = _state_file(set_name)
    if file.exists():
        raise HostsError(f"the hosts of the set {set_name!r} are up already: {file}")
    reader, writer = os.pipe()
    if os.fork() == 0:
        _keep(file, count, writer)
    os.close(writer)
    with open(reader) as pipe:
        problem = pipe.read()
    if problem:
        raise HostsError(problem)
    for host in _load(set_name)[1].values():
        print(f"{host.name} {host.address} clocks {host.monotonic_shift:+d} s, {host.wall_shift:+d} s")


def _keep(file: Path, count: int, writer: int) -> None:
    """The life of the process in the background."""
    os.setsid()
    hosts = Hosts(count)
    try:
        hosts.up()
        state = {
            "keeper": os.getpid(),
            "switch": hosts.switch.pid,
            "hosts": [dataclasses.asdict(hosts[name]) for name in hosts.names],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(state))
        silence = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(silence, standard)
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        os.close(writer)
        signal.sigwait(END_SIGNALS)
        hosts.down()
    except BaseException as error:
        os.write(writer, str(error).encode())
    finally:
        os._exit(0)


def _load(set_name: str) -> tuple[dict[str, Any], dict[str, Host]]:
    file = _state_file(set_name)
    if not file.exists():
        raise HostsError(f"there are no hosts of the set {set_name!r}; make them with: up N")
    state = json.loads(file.read_text())
    return state, {host["name"]: Host(**host) for host in state["hosts"]}


def _down(set_name: str) -> None:
    keeper = _load(set_name)[0]["keeper"]
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(keeper)
        os.kill(keeper, signal.SIGTERM)
        if not select.select([descriptor], [], [], END_TIMEOUT_S)[0]:
            raise HostsError("the process that holds the hosts does not end")
    _state_file(set_name).unlink()


def _act_on(set_name: str, action: str, name: str, command: list[str]) -> None:
    state, hosts = _load(set_name)
    if name not in hosts:
        raise HostsError(f"there is no host {name!r}; there are {', '.join(hosts)}")
    host, switch = hosts[name], Switch(state["switch"])
    if action == "run":
        os.execvp("nsenter", host.command(command))
    if action == "heal":
        switch.plug_back(host)
    else:
        switch.unplug(host)
    if action == "kill":
        os.kill(host.init, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="default", dest="set_name")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("up").add_argument("count", type=int)
    actions.add_parser("down")
    for action in ("run", "cut", "heal", "kill"):
        acting = actions.add_parser(action)
        acting.add_argument("host")
        if action == "run":
            acting.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        if given.action == "up":
            _up(given.set_name, given.count)
        elif given.action == "down":
            _down(given.set_name)
        else:
            _act_on(given.set_name, given.action, given.host, getattr(given, "command", []))
    except HostsError as error:
        sys.exit(f"hosts: {error}")


if __name__ == "__main__":
    main()
