"""What Ray runs on each node for a driver: an actor that does nothing but hold our agent there.

The agent is a process of its own: when an actor ends, Ray kills its children with a signal that none of them can
answer, and an agent has workers to end first. It notices the actor's end by its standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile

from paceline.air.constants import ORIGINAL_DIRECTORY_VARIABLE
from paceline.engine.remote.agent import LENGTH

_DETACH = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_LOOK_MS = 1000
_LAST_WORDS = 2000


class AgentHolder:
    """Its methods run in a process of Ray's."""

    def hold(self, settings: bytes, sys_path: list[str]) -> str:
        """Start the agent, which dials the driver; the last it wrote when it has ended."""
        environment = environment_of_machine()
        environment["PYTHONPATH"] = os.pathsep.join([*sys_path, *filter(None, [environment.get("PYTHONPATH")])])
        if directory := working_directory():
            environment[ORIGINAL_DIRECTORY_VARIABLE] = directory
        command = [sys.executable, "-c", _DETACH, "-m", "paceline.engine.remote.agent"]
        read_end, lifeline = os.pipe()
        with tempfile.TemporaryFile() as words:
            try:
                subprocess.run(command, env=environment, stdin=read_end, stderr=words, cwd="/", check=True)
            finally:
                os.close(read_end)
            try:
                os.write(lifeline, LENGTH.pack(len(settings)) + settings)
                _wait_until_closed(lifeline)
            except BrokenPipeError:  # It ended at once.
                pass
            finally:
                os.close(lifeline)
            words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_WORDS))
            return words.read().decode("utf-8", "replace").strip()


def _wait_until_closed(lifeline: int) -> None:
    """Until nobody reads from it any more."""
    poll = select.poll()
    poll.register(lifeline, 0)
    while not poll.poll(_LOOK_MS):
        pass


def working_directory() -> str:
    """The working_dir of the job's runtime_env on this node; empty without one."""
    import ray

    return os.getcwd() if ray.get_runtime_context().runtime_env.get("working_dir") else ""


def environment_of_machine() -> dict[str, str]:
    """The variables that this process was started with: those of the machine and of the job's runtime_env.

    Ray has set others since, such as one thread for an actor without CPUs, and no GPUs for one without GPUs.
    """
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
