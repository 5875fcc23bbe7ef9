"""Tasks that misbehave; in a module of their own, so that workers import little."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time

from paceline.engine.base import WorkerChannel


def say_and_wait(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"running")
    channel.receive()


def speak_when_asked(channel: WorkerChannel, argument: bytes) -> None:
    """The file says that the message is on its way, whether or not the driver has looked."""
    channel.receive()
    channel.send(b"spoke")
    with open("spoke", "w"):
        channel.receive()


def wait_then_signal(channel: WorkerChannel, argument: bytes) -> None:
    """Rank 1 kills itself with the given signal; the others wait."""
    channel.send(b"last words")
    if channel.rank == 1:
        os.kill(os.getpid(), int(argument))
    channel.receive()


def start_a_family(channel: WorkerChannel, argument: bytes) -> None:
    """Start a child, a child in a session of its own, and two daemons that forked twice; say their ids."""
    plain = subprocess.Popen(["sleep", "1000"])
    apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    family = [os.getpid(), plain.pid, apart.pid, daemon(), daemon(["sleep", "1000"])]
    channel.send(json.dumps(family).encode())
    channel.receive()


def start_a_family_and_return(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(json.dumps([daemon(), daemon(["sleep", "1000"])]).encode())


def daemon(command: list[str] | None = None) -> int:
    """The process id of a grandchild that has left parent and session and closed everything."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.closerange(0, 100)
            if command is not None:
                os.execvp(command[0], command)
            time.sleep(1000)
        os._exit(0)
    pid = int(os.read(reader, 20))
    os.close(reader)
    os.close(writer)
    os.wait()
    return pid


def hold_the_interpreter(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"running")
    if channel.rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    channel.receive()


def stop_itself(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"running")
    if channel.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    channel.receive()


def close_the_channel(channel: WorkerChannel, argument: bytes) -> None:
    """What a careless daemonizing library does."""
    os.closerange(3, 100)
    time.sleep(1000)


def send_garbage(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"good")
    os.write(channel.frames.fileno(), b"\xff" * 4096)  # type: ignore[attr-defined]
    channel.receive()
