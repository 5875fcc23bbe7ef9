"""The hosts that tools/hosts.py makes: separate where machines are, and gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.hosts import SWITCH_ADDRESS, Hosts, HostsError

TOOL = str(Path(__file__).parents[2] / "tools" / "hosts.py")
LOOK_AROUND = """
import json, os, socket, time
print(json.dumps({
    "name": socket.gethostname(),
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "tmp": os.listdir("/tmp"),
    "shm": os.listdir("/dev/shm"),
    "monotonic": time.monotonic(),
    "wall": time.time(),
}))
"""
ANSWER = """
import socket
with socket.create_connection(("{address}", {port}), timeout=1) as line:
    line.sendall(line.getsockname()[0].encode())
"""
HOLD = """
import signal, socket
with socket.create_connection(("{address}", {port})):
    signal.pause()
"""


def look_around(hosts: Hosts, name: str) -> dict:
    return json.loads(hosts.run(name, [sys.executable, "-c", LOOK_AROUND]))


def test_a_host_has_names_processes_and_directories_of_its_own(hosts: Hosts, tmp_path: Path) -> None:
    for name in hosts.names:
        around = look_around(hosts, name)
        assert around["name"] == name
        assert around["pids"][0] == 1
        assert os.getpid() not in around["pids"]
        assert "hosts_clock.so" in around["tmp"]
        assert tmp_path.parts[2] not in around["tmp"]
        assert around["shm"] == []


def test_the_clocks_of_the_hosts_are_wrong(hosts: Hosts) -> None:
    for name in hosts.names:
        around = look_around(hosts, name)
        assert around["monotonic"] - time.monotonic() == pytest.approx(hosts[name].monotonic_shift, abs=20)
        assert around["wall"] - time.time() == pytest.approx(hosts[name].wall_shift, abs=20)
        assert abs(hosts[name].monotonic_shift) >= 100
        assert abs(hosts[name].wall_shift) >= 100
    assert len({hosts[name].wall_shift for name in hosts.names}) == len(hosts.names)


WAIT = """
import ctypes, errno, time
libc = ctypes.CDLL(None, use_errno=True)
condition, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)  # zeros: their initial values
libc.pthread_mutex_lock(mutex)
deadline, started = time.time() + 0.5, time.monotonic()
until = (ctypes.c_long * 2)(int(deadline), int(deadline % 1 * 1e9))
assert libc.pthread_cond_timedwait(condition, mutex, until) == errno.ETIMEDOUT
FUTEX, WAIT_BITSET_BY_WALL_CLOCK = 202, 9 | 128 | 256
until[0] += 1
assert libc.syscall(FUTEX, ctypes.byref(ctypes.c_int(0)), WAIT_BITSET_BY_WALL_CLOCK, 0, until, None, -1) == -1
assert ctypes.get_errno() == errno.ETIMEDOUT
print(time.monotonic() - started)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows the number of a system call there only")
def test_programs_that_wait_by_the_wall_clock_do_not_notice_that_it_is_wrong(hosts: Hosts) -> None:
    for name in hosts.names:
        assert 1.3 < float(hosts.run(name, [sys.executable, "-c", WAIT])) < 20


def test_hosts_reach_this_process_and_come_back_after_a_cut(own_hosts: Callable[[int], Hosts]) -> None:
    hosts = own_hosts(2)
    with hosts.listen() as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-c", ANSWER.format(address=SWITCH_ADDRESS, port=port)]
        listener.settimeout(30)
        for name in hosts.names:
            assert _said(listener, hosts.popen(name, command)) == hosts[name].address
        hosts.cut("h2")
        with pytest.raises(HostsError, match=r"No route|timed out"):
            hosts.run("h2", command)
        hosts.heal("h2")
        assert _said(listener, hosts.popen("h2", command)) == hosts["h2"].address


def test_a_killed_host_says_nothing_more(own_hosts: Callable[[int], Hosts]) -> None:
    hosts = own_hosts(2)
    lines = []
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(hosts.listen())
        listener.settimeout(30)
        command = [sys.executable, "-c", HOLD.format(address=SWITCH_ADDRESS, port=listener.getsockname()[1])]
        for name in hosts.names:
            stack.enter_context(hosts.popen(name, command))
            lines.append(stack.enter_context(listener.accept()[0]))
        for name in hosts.names:
            hosts.kill(name)
        assert select.select(lines, [], [], 0.5)[0] == []


def _said(listener, process: subprocess.Popen) -> str:
    line, _ = listener.accept()
    with line:
        text = line.recv(100).decode()
    assert process.wait(30) == 0
    return text


def test_sets_of_hosts_can_exist_side_by_side(hosts: Hosts, own_hosts: Callable[[int], Hosts]) -> None:
    others = own_hosts(1)
    assert others["h1"].address == hosts["h1"].address
    assert others["h1"].init != hosts["h1"].init
    assert look_around(others, "h1")["name"] == "h1"


def test_kill_ends_every_process_of_a_host_and_down_those_of_all(own_hosts: Callable[[int], Hosts]) -> None:
    hosts = own_hosts(2)
    sleepers = {name: hosts.popen(name, ["sleep", "1000"]) for name in hosts.names}
    hosts.kill("h1")
    sleepers["h1"].wait(30)
    assert sleepers["h2"].poll() is None
    hosts.down()
    sleepers["h2"].wait(30)


def test_a_killed_host_comes_back_empty_and_reaches_the_others(own_hosts: Callable[[int], Hosts]) -> None:
    hosts = own_hosts(2)
    hosts.run("h2", ["touch", "/tmp/mine"])
    hosts.kill("h2")
    hosts.revive("h2")
    around = look_around(hosts, "h2")
    assert around["name"] == "h2"
    assert "mine" not in around["tmp"]
    with hosts.listen() as listener:
        listener.settimeout(30)
        command = [sys.executable, "-c", ANSWER.format(address=SWITCH_ADDRESS, port=listener.getsockname()[1])]
        assert _said(listener, hosts.popen("h2", command)) == hosts["h2"].address


def test_hosts_end_with_the_process_that_made_them(hosts: Hosts) -> None:
    """Even if it is killed: the test run of a developer who has had enough leaves nothing behind."""
    program = "from tools.hosts import Hosts; h = Hosts(1); h.up(); print(h['h1'].init, flush=True); input()"
    maker = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(TOOL).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    init = int(maker.stdout.readline())
    pidfd = os.pidfd_open(init)
    maker.kill()
    maker.communicate()
    assert _ends(pidfd)


def _ends(pidfd: int) -> bool:
    try:
        return bool(select.select([pidfd], [], [], 30)[0])
    finally:
        os.close(pidfd)


def test_the_command_line_from_up_to_down(hosts: Hosts, tmp_path: Path) -> None:
    def tool(*arguments: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "HOSTS_DIR": str(tmp_path)}
        return subprocess.run([TOOL, *arguments], env=env, text=True, capture_output=True, timeout=60)

    try:
        assert re.match(r"h1 10\.231\.0\.1 clocks", tool("up", "1").stdout)
        assert "up already" in tool("up", "1").stderr
        assert tool("run", "h1", "hostname").stdout == "h1\n"
        assert "there is no host 'h7'" in tool("cut", "h7").stderr
        assert tool("cut", "h1").returncode == tool("heal", "h1").returncode == tool("kill", "h1").returncode == 0
        assert tool("run", "h1", "hostname").returncode != 0
    finally:
        assert tool("down").returncode == 0
    assert "there are no hosts" in tool("down").stderr
