"""Starts a script twice, as two processes of one JAX program. Arguments: the script and its arguments."""

from __future__ import annotations

import sys

from benchmarks.peers.tf_config_pair import free_ports, run_twice


def main(command: list[str]) -> int:
    coordinator = f"127.0.0.1:{free_ports(1)[0]}"
    return run_twice(command, [{"JAX_COORDINATOR_ADDRESS": coordinator, "RANK": str(rank)} for rank in range(2)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
