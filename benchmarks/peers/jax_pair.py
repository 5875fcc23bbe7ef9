"""Starts a script twice, as two processes of one JAX program. Arguments: the script and its arguments."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.peers.tf_config_pair import free_ports


def main(command: list[str]) -> int:
    coordinator = f"127.0.0.1:{free_ports(1)[0]}"
    workers = []
    for rank in range(2):
        variables = {**os.environ, "JAX_COORDINATOR_ADDRESS": coordinator, "RANK": str(rank)}
        workers.append(subprocess.Popen([sys.executable, *command], env=variables))
    code = workers[0].wait()
    if code != 0:
        workers[1].kill()
    return max(abs(code), abs(workers[1].wait()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
