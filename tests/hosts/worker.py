"""A worker process on a host: a new interpreter that dials the driver and serves it."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import NoReturn

from paceline.air import process
from paceline.engine.local import linux
from paceline.engine.places import THREADS_VARIABLES
from paceline.engine.worker_loop import serve_worker
from tests.hosts.agent import Errand, decode_errand, dial


def main(errand: Errand) -> NoReturn:
    spawn = errand.spawn
    assert spawn is not None
    process.role["rank"] = str(spawn.rank)
    if spawn.threads is not None:
        for name in THREADS_VARIABLES:
            os.environ.setdefault(name, str(spawn.threads))
    sys.path[:] = spawn.sys_path
    sys.argv[:] = spawn.argv
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=errand.crash_fd)
    faulthandler.register(linux.STACKS_SIGNAL, file=errand.crash_fd, chain=False)
    serve_worker(dial(errand, spawn.group, spawn.rank), spawn.rank, spawn.world_size, spawn.pulse_s)


if __name__ == "__main__":
    main(decode_errand(sys.stdin.buffer.read()))
