"""From one interpreter to a new one, warden or worker: how it is started, and its first lines.

It runs this file as a script, before any path is right, so nothing of the package is imported at the top. The one
argument is a descriptor of a file: a line of JSON for this script, then bytes for the role's own `main`.
"""

from __future__ import annotations

import os
import sys


def write_boot_config(module: str, sys_path: list[str], payload: bytes) -> int:
    """The file that the new interpreter reads, as a descriptor: nothing of it shows in a list of processes."""
    import json

    from paceline.air.attachment import anonymous_file
    from paceline.engine.local import linux

    head = {"module": module, "sys_path": sys_path, "stacks_signal": linux.STACKS_SIGNAL}
    fd = anonymous_file("paceline-boot")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(json.dumps(head).encode() + b"\n" + payload)
    except BaseException:
        os.close(fd)
        raise
    return fd


def boot_command(config_fd: int) -> list[str]:
    """The command line; options such as -O, -W and -X are those of this interpreter."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    return [sys.executable, *flags, __file__, str(config_fd)]


def boot(config_fd: int) -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    import faulthandler
    import importlib
    import json

    with open(config_fd, "rb") as file:
        file.seek(0)
        head, _, payload = file.read().partition(b"\n")
    settings = json.loads(head)
    sys.path[:] = settings["sys_path"]
    faulthandler.register(settings["stacks_signal"])
    importlib.import_module(settings["module"]).main(payload)


if __name__ == "__main__":
    boot(int(sys.argv[1]))
