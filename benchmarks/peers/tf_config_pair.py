"""Starts a script twice with TF_CONFIG set, as TensorFlow's own guide does. Arguments: the script and its arguments."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_twice(command: list[str], variables: list[dict[str, str]]) -> int:
    """Start the script once with each of these variables; 0 if both succeed."""
    workers = [subprocess.Popen([sys.executable, *command], env={**os.environ, **own}) for own in variables]
    code = workers[0].wait()
    if code != 0:
        workers[1].kill()
    return max(abs(code), abs(workers[1].wait()))


def main(command: list[str]) -> int:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)]
    return run_twice(command, [{"TF_CONFIG": config, "TF_USE_LEGACY_KERAS": "1"} for config in configs])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
