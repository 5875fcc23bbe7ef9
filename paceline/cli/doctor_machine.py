"""What ``paceline doctor`` says about the machine: resources, limits, clock, network, files, and what runs on it."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.air.resources import usable_cores
from paceline.air.words import counted, size_text
from paceline.cli.findings import Finding, Level
from paceline.cli.output import span_text
from paceline.engine.local import drivers, linux
from paceline.engine.local.processes import marked_by
from paceline.engine.places import usable_memory, visible_gpus
from paceline.storage.run_dir import default_storage_root

MACHINE, RUNS = "Machine", "Runs"
SMALL_SHM = 512 << 20
"""Below it a PyTorch DataLoader with workers is likely to fail with a bus error."""
SMALL_MEMORY = 2 << 30
SMALL_DISK = 1 << 30
FEW_FILES = 4096
FEW_PROCESSES = 1024
MOST_SKEW_S = 2.0
ANSWER_S = 2.0
_TIME_ERROR = 5
"""What adjtimex returns if nothing keeps the clock in step."""


def machine_findings() -> Iterator[Finding]:
    yield _cores()
    yield _memory()
    yield from _shared_memory()
    yield from _limits()
    yield _clock()
    yield _loopback()
    yield _gpus()
    yield _results_directory()
    yield from _drivers()


def sweep() -> list[Finding]:
    """End what killed drivers left running, and remove the temporary files of killed processes."""
    from paceline.air import temporary

    ended = drivers.sweep()
    temporary.sweep()
    what = f"ended {counted(ended, 'process', 'processes')} that killed drivers had left behind"
    return [Finding(RUNS, "swept", what if ended else "no processes of killed drivers were left")]


def _cores() -> Finding:
    usable, all_cores = usable_cores(), os.cpu_count() or 1
    text = f"{usable} of {all_cores} usable" if usable < all_cores else f"{usable}"
    quota = _cpu_quota()
    if quota is not None and quota < usable:
        return Finding(
            MACHINE,
            "cores",
            f"{text}, but a control group allows the time of {quota:g}",
            "warning",
            "Declare it with paceline.init(num_cpus=...), or threads get in each other's way.",
        )
    return Finding(MACHINE, "cores", text)


def _cpu_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Finding:
    limit = usable_memory()
    text = f"{size_text(limit)} usable" if limit else "unknown"
    available = _available_memory()
    if available is not None:
        text += f", {size_text(min(available, limit or available))} free"
        if available < SMALL_MEMORY:
            return Finding(MACHINE, "memory", text, "warning", "Workers may be killed for lack of it.")
    return Finding(MACHINE, "memory", text)


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError):
        return None


def _shared_memory() -> Iterator[Finding]:
    if not linux.IS_LINUX:
        return
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        yield Finding(
            MACHINE, "/dev/shm", f"cannot be used: {error.strerror}", "warning", "PyTorch's DataLoader needs it."
        )
        return
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    text = f"{size_text(size)}, {size_text(free)} free"
    if free < SMALL_SHM:
        advice = "A DataLoader with workers needs more; for a container, docker run --shm-size=8g."
        yield Finding(MACHINE, "/dev/shm", text, "warning", advice)
    else:
        yield Finding(MACHINE, "/dev/shm", text)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few_files = hard != resource.RLIM_INFINITY and hard < FEW_FILES
    yield _limit(
        "open files", soft, hard, few_files, "Runs raise the soft limit, but need a higher hard one: ulimit -Hn."
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    few = soft != resource.RLIM_INFINITY and soft < FEW_PROCESSES
    yield _limit("processes", soft, hard, few, "Every worker and every thread of it counts: ulimit -u.")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield _limit("address space", soft, hard, True, "Frameworks reserve more than they use: ulimit -v unlimited.")


def _limit(name: str, soft: int, hard: int, is_low: bool, advice: str) -> Finding:
    said = [("unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}") for limit in (soft, hard)]
    text = said[0] if said[0] == said[1] else f"{said[0]}, at most {said[1]}"
    return Finding(MACHINE, f"limit of {name}", text, "warning" if is_low else "ok", advice if is_low else "")


def _clock() -> Finding:
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    skew = _skew_of_files()
    if skew is not None and abs(skew) > MOST_SKEW_S:
        return Finding(
            MACHINE,
            "clock",
            f"{text}; files in the results directory get a time that is {span_text(abs(skew))} "
            f"{'ahead' if skew > 0 else 'behind'}",
            "warning",
            "Ages of runs are wrong; let NTP keep the clocks of this machine and the file server in step.",
        )
    if linux.IS_LINUX and _is_unsynchronized():
        return Finding(MACHINE, "clock", f"{text}; not synchronised with other machines", "note")
    return Finding(MACHINE, "clock", text)


def _is_unsynchronized() -> bool:
    """What the kernel says; many containers cannot ask."""
    request = ctypes.create_string_buffer(1024)  # struct timex, all zero: only asks
    try:
        return int(ctypes.CDLL(None).adjtimex(request)) == _TIME_ERROR
    except AttributeError:
        return False


def _skew_of_files() -> float | None:
    """How far the clock of the file system is ahead; None if that cannot be seen."""
    root = default_storage_root()
    try:
        with tempfile.NamedTemporaryFile(dir=root if root.is_dir() else None, prefix=".write-check-") as probe:
            before = time.time()
            probe.write(b"x")
            probe.flush()
            return os.fstat(probe.fileno()).st_mtime - before
    except OSError:
        return None


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(ANSWER_S)
            with socket.create_connection(server.getsockname(), timeout=ANSWER_S) as client:
                server.accept()[0].close()
                port = client.getpeername()[1]
    except OSError as error:
        return Finding(
            MACHINE,
            "loopback",
            f"a connection to 127.0.0.1 fails: {error}",
            "problem",
            "Workers of one run find each other there; look at the firewall and at the interface lo.",
        )
    low, high = _port_range()
    text = (
        f"works (port {port}); {high - low + 1:,} ports are available for outgoing connections ({low} to {high})"
        if high
        else "works"
    )
    busy = [f"{number}" for number in (8000,) if _is_taken(number)]
    if busy:
        return Finding(MACHINE, "loopback", f"{text}; port {busy[0]} is taken, so paceline serve needs --port", "note")
    return Finding(MACHINE, "loopback", text)


def _port_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 0, 0


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _gpus() -> Finding:
    gpus = visible_gpus()
    if not gpus:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None and Path("/proc/driver/nvidia/gpus").is_dir()
        return Finding(MACHINE, "GPUs", "none" + (": CUDA_VISIBLE_DEVICES hides them" if hidden else ""))
    return Finding(MACHINE, "GPUs", f"{len(gpus)}: {', '.join(gpus)}")


def _results_directory() -> Finding:
    root = default_storage_root()
    nearest = next(parent for parent in (root, *root.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        advice = "Set PACELINE_RESULTS_DIR or RunConfig(storage_path=...) to a directory of your own."
        return Finding(RUNS, "results directory", f"{nearest} cannot be written", "problem", advice)
    try:
        found = os.statvfs(nearest)
    except OSError as error:
        return Finding(RUNS, "results directory", f"{root}: {error.strerror}", "warning")
    free = found.f_frsize * found.f_bavail
    text = f"{root}{'' if root.exists() else ' (made by the first run)'}, {size_text(free)} free"
    level: Level = "warning" if free < SMALL_DISK else "ok"
    return Finding(RUNS, "results directory", text, level, "The disk is almost full." if free < SMALL_DISK else "")


def _drivers() -> Iterator[Finding]:
    try:
        drivers.runtime_dir()
    except OSError as error:
        yield Finding(RUNS, "live drivers", f"cannot be found: {error}", "warning")
        return
    live = drivers.live_drivers()
    said = [f"process {driver.pid} with {counted(len(driver.runs), 'run')}" for driver in live]
    yield Finding(RUNS, "live drivers", ", ".join(said) or "none")
    left = drivers.left_behind()
    if not left:
        yield Finding(RUNS, "killed drivers", "left nothing behind")
        return
    count = sum(len(marked_by(driver.identity)) for driver in left)
    text = f"{len(left)} left {counted(count, 'process', 'processes')} and their own files behind"
    yield Finding(RUNS, "killed drivers", text, "warning", "paceline doctor --fix ends and removes them.")
