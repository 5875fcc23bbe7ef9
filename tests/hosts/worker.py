"""A worker process on a host: a new interpreter that dials the driver and serves it."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import NoReturn

from paceline.air import faults
from paceline.engine import protocol
from paceline.engine.frames import FrameSocket
from paceline.engine.local import linux
from paceline.engine.places import THREADS_VARIABLES
from paceline.engine.serialization import new_main_module
from paceline.engine.worker_loop import Channel, WorkerLoop, flush_output, start_pulse
from tests.hosts.agent import Errand, decode_errand, dial

DRIVER_LOST_EXIT = 113


def main(errand: Errand) -> NoReturn:
    spawn = errand.spawn
    assert spawn is not None
    faults.role["rank"] = str(spawn.rank)
    if spawn.threads is not None:
        for name in THREADS_VARIABLES:
            os.environ.setdefault(name, str(spawn.threads))
    sys.path[:] = spawn.sys_path
    sys.argv[:] = spawn.argv
    sys.modules["__main__"] = new_main_module(None)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=errand.crash_fd)
    faulthandler.register(linux.STACKS_SIGNAL, file=errand.crash_fd, chain=False)
    frames = FrameSocket(dial(errand, spawn.group, spawn.rank), send_limit=protocol.WORKER_FRAME_LIMIT)
    try:
        start_pulse(frames, spawn.pulse_s, lambda: os._exit(DRIVER_LOST_EXIT))
        frames.send(protocol.READY, protocol.clocks())
        WorkerLoop(Channel(frames, spawn.rank, spawn.world_size)).run()
    except ConnectionError:
        os._exit(DRIVER_LOST_EXIT)
    flush_output()
    os._exit(0)


if __name__ == "__main__":
    main(decode_errand(sys.stdin.buffer.read()))
