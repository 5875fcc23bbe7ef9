"""What Ray runs on each machine for a driver: an actor that does nothing but hold our agent there.

The agent is a process of its own: when an actor ends, Ray kills its children with a signal that none of them can
answer, and an agent has workers to end first. It notices the actor's end by its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys

from paceline.engine.remote.agent import LENGTH

_DETACH = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class AgentHolder:
    """Its methods run in a process of Ray's."""

    def __init__(self) -> None:
        self._lifeline: int | None = None

    def start(self, settings: bytes, sys_path: list[str]) -> None:
        """Start the agent; it dials the driver."""
        environment = environment_of_machine()
        environment["PYTHONPATH"] = os.pathsep.join([*sys_path, *filter(None, [environment.get("PYTHONPATH")])])
        command = [sys.executable, "-c", _DETACH, "-m", "paceline.engine.remote.agent"]
        read_end, self._lifeline = os.pipe()
        try:
            subprocess.run(command, env=environment, stdin=read_end, cwd="/", check=True)
        finally:
            os.close(read_end)
        os.write(self._lifeline, LENGTH.pack(len(settings)) + settings)


def environment_of_machine() -> dict[str, str]:
    """The variables that this process was started with: those of the machine and of the job's runtime_env.

    Ray has set others since, such as one thread for an actor without CPUs, and no GPUs for one without GPUs.
    """
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
