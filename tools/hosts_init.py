"""The first process of a host of hosts.py, or of the switch between them: `hosts_init.py SETTINGS`, as JSON.

It sets up what can only be set up from inside, says `ready`, and waits until whoever made it is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

NAMES_FILE = "/tmp/hosts_names"
"""What a host sees as /etc/hosts, if hosts know each other by name."""
MS_BIND = 4096


def set_up(name: str, private: list[str], shared: list[str], copied: dict[str, str], addresses: dict[str, str]) -> None:
    """`private` directories begin empty; `shared` ones, and files that are `copied` to new places, may lie in them."""
    socket.sethostname(name)
    contents = {target: Path(source).read_bytes() for source, target in copied.items()}
    opened = {folder: os.open(folder, os.O_RDONLY) for folder in shared}
    for folder in private:
        os.makedirs(folder, exist_ok=True)
        mount("tmpfs", folder, "tmpfs", 0, "mode=1777")
    for folder, descriptor in opened.items():
        os.makedirs(folder, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", folder, "", MS_BIND, "")
        os.close(descriptor)
    for target, content in contents.items():
        Path(target).write_bytes(content)
    if addresses:
        known = {"localhost": "127.0.0.1", **addresses}
        Path(NAMES_FILE).write_text("".join(f"{address} {host}\n" for host, address in known.items()))
        mount(NAMES_FILE, "/etc/hosts", "", MS_BIND, "")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    if ctypes.CDLL(None, use_errno=True).mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number)}", target)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # What loses its parent here is nobody's to wait for.
    if settings:  # The switch has none.
        set_up(**settings)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
