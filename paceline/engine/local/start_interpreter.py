"""Handing over to a new interpreter that runs boot.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from paceline.air.attachment import anonymous_file
from paceline.engine.local import boot, linux


def write_boot_config(module: str, sys_path: list[str], payload: bytes) -> int:
    """The file that boot.py reads, as a descriptor: nothing of it shows in a list of processes."""
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
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, boot.__file__, str(config_fd)]
