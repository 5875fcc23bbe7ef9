"""Programs for which the mode bits of files hold, also if the tests run as root."""

from __future__ import annotations

import os
import subprocess
import sys

PREFIX = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Root gives up the capabilities to which mode bits mean nothing."""


def output_of(code: str, *arguments: str) -> str:
    """What a Python program prints that has no more rights than the mode bits say."""
    command = [*PREFIX, sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
