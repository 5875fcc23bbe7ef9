"""From a fork of the warden to a worker that serves its driver.

The order matters: first what keeps this process from being lost or from holding what is
not its own, then what user code finds around itself, then the loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn

from paceline.air import faults
from paceline.engine import protocol
from paceline.engine.failures import describe_exception
from paceline.engine.frames import FrameSocket, close_all
from paceline.engine.local import drivers, linux, messages, processes
from paceline.engine.local.boot import boot_command, write_boot_config
from paceline.engine.places import THREADS_VARIABLES
from paceline.engine.serialization import new_main_module
from paceline.engine.worker_loop import DRIVER_LOST_EXIT, Channel, WorkerLoop, flush_output, start_pulse

_ending = threading.Lock()


def become_worker(
    request: messages.Spawn,
    channel_fd: int,
    crash_fd: int,
    output_fds: Sequence[int],
    warden_pid: int,
    warden_fds: list[int],
) -> NoReturn:
    """The whole life of a forked worker. `output_fds` is where its output goes if it has no log; before them comes the
    socket for attachments."""
    handed_fds = list(output_fds[: int(request.is_handed_attachments)])
    output_fds = output_fds[len(handed_fds) :]
    try:
        signal.set_wakeup_fd(-1)
        for fd in warden_fds:
            os.close(fd)
        os.setsid()
        processes.join_group(request.group)
        linux.show_variable(protocol.RUN_ID_VARIABLE, request.run_id)
        linux.die_with_parent(warden_pid)
        channel = _open_channel(request, channel_fd, handed_fds)
        try:
            _restore_signals()
            _enter_surroundings(request, output_fds)
            if request.fresh:
                _replace_interpreter(request, [channel_fd, crash_fd, *handed_fds])
            _prepare_interpreter(request, crash_fd)
        except BaseException as error:
            _report_failed_start(channel, error)
        serve(request, channel)
    finally:
        os._exit(1)


def main(payload: bytes) -> NoReturn:
    """Where a fresh interpreter goes on; the fork before it did everything that exec keeps."""
    descriptors, _, encoded = payload.partition(b"\n")
    channel_fd, crash_fd, *handed_fds = map(int, descriptors.split())
    request = messages.decode_spawn(encoded)
    channel = _open_channel(request, channel_fd, handed_fds)
    for fd in (channel_fd, crash_fd, *handed_fds):
        os.set_inheritable(fd, False)
    try:
        _prepare_interpreter(request, crash_fd)
    except BaseException as error:
        _report_failed_start(channel, error)
    serve(request, channel)


def serve(request: messages.Spawn, channel: Channel) -> NoReturn:
    """Say READY, serve until the driver has had enough, and end without the interpreter's own teardown."""
    driver = os.environ[processes.DRIVER_VARIABLE]
    driver_fd = drivers.open_driver(driver)
    faults.fault_point("worker_start")
    try:
        start_pulse(channel.frames, request.pulse_s, lambda: _end_without_driver(driver), driver_fd)
        channel.frames.send(protocol.READY, protocol.clocks())
        WorkerLoop(channel).run()
    except ConnectionError:
        _end_without_driver(driver)
    _say_goodbye()
    os._exit(0)


def _end_without_driver(driver: str) -> NoReturn:
    """The driver hung up, or is gone: then the warden ends this process, unless it is stopped.

    Two threads may notice: the second one waits until the first has ended the process.
    """
    _ending.acquire()
    try:
        drivers.end_in_place_of_warden(driver)
    finally:
        os._exit(DRIVER_LOST_EXIT)


def _say_goodbye() -> None:
    """What the interpreter does for user code at its end: wait for threads, call exit functions."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        flush_output()


def _report_failed_start(channel: Channel, error: BaseException) -> NoReturn:
    failure = describe_exception(error, channel.rank, time.monotonic_ns(), kind="startup")
    channel.frames.send(protocol.FAILED, protocol.encode(failure))
    os._exit(1)


def _open_channel(request: messages.Spawn, fd: int, handed_fds: Sequence[int]) -> Channel:
    frames = FrameSocket(socket.socket(fileno=fd), send_limit=protocol.WORKER_FRAME_LIMIT)
    handed = [FrameSocket(socket.socket(fileno=handed_fd)) for handed_fd in handed_fds]
    return Channel(frames, request.rank, request.world_size, *handed)


def _restore_signals() -> None:
    """What Python sets up for a program of its own; the warden had other plans.

    By the module that `signal` is made of: turning numbers into enums would copy dozens of pages of memory.
    """
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    for number in (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGCHLD, _signal.SIGIO):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])


def _enter_surroundings(request: messages.Spawn, output_fds: Sequence[int]) -> None:
    """Log, environment, directory, umask: everything that an exec keeps."""
    around = request.surroundings
    os.umask(around.umask)
    opened = output_fds or [_open_log(around.log_path)]
    os.dup2(opened[0], 1)
    os.dup2(opened[-1], 2)
    close_all(opened)
    marks = processes.own_marks()
    messages.change_environment(around.changed_variables, around.removed_variables)
    os.environ.update(marks)  # The driver's own environment does not have them, or has those of a driver above it.
    if request.threads is not None:
        for name in THREADS_VARIABLES:
            os.environ.setdefault(name, str(request.threads))
    try:
        os.chdir(around.cwd)
    except FileNotFoundError:
        os.makedirs(around.cwd, exist_ok=True)
        os.chdir(around.cwd)


def _open_log(path: bytes) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o600)


def _replace_interpreter(request: messages.Spawn, kept_fds: Sequence[int]) -> NoReturn:
    """Start over in a new interpreter, keeping process, session, log and channel."""
    # Until the new interpreter handles it, the signal for stacks must not kill.
    signal.signal(linux.STACKS_SIGNAL, signal.SIG_IGN)
    payload = " ".join(map(str, kept_fds)).encode() + b"\n" + messages.encode(request)
    sys_path = [os.fsdecode(entry) for entry in request.surroundings.sys_path]
    config_fd = write_boot_config(__name__, sys_path, payload)
    for fd in (*kept_fds, config_fd):
        os.set_inheritable(fd, True)
    os.execve(sys.executable, boot_command(config_fd), os.environ)


def _prepare_interpreter(request: messages.Spawn, crash_fd: int) -> None:
    """What lives inside the interpreter."""
    faults.role["rank"] = str(request.rank)
    around = request.surroundings
    sys.path[:] = [os.fsdecode(entry) for entry in around.sys_path]
    sys.argv[:] = [os.fsdecode(argument) for argument in around.argv]
    sys.modules["__main__"] = new_main_module(None if around.main_file is None else os.fsdecode(around.main_file))
    if not around.log_path:  # The warden's streams take a pipe or a terminal for a file.
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    _call_setters(request.thread_setters, request.pool_threads)
    _reseed()
    faulthandler.enable(file=crash_fd, all_threads=True)
    faulthandler.register(linux.STACKS_SIGNAL, file=crash_fd, all_threads=True, chain=False)


def _reseed() -> None:
    """Forked copies of one generator would all give the same numbers; Python's own sees to itself."""
    if "numpy.random" in sys.modules:  # If a worker imports it itself, it is seeded then.
        sys.modules["numpy.random"].seed()


def _call_setters(setters: Iterable[str], threads: int | None) -> None:
    """For libraries that count for themselves: the functions that take the number, where they are loaded already."""
    for setter in setters if threads is not None else ():
        module, _, function = setter.partition(":")
        if module in sys.modules:
            getattr(sys.modules[module], function)(threads)
