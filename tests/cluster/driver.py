"""A driver on a host: calls one function of the tests there, and tells the test what happens, line by line.

`RayHosts.start_driver` starts it. The function may use `tell` and `wait_for_word` to talk with the test.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

RESULT, ERROR = "result", "error"
"""Events that this module itself tells of."""
_said_to: int | None = None


def tell(event: str, **facts: Any) -> None:
    """Let the test know; `DriverProcess.wait_for` gives it the facts."""
    assert _said_to is not None, "only the function that a test has started on a host can tell it something"
    os.write(_said_to, json.dumps({"event": event, **facts}).encode() + b"\n")


def wait_for_word() -> str:
    """What the test says by `DriverProcess.say`."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the test is gone")
    return line.rstrip("\n")


def main(said_to: int, name: str, arguments: str) -> None:
    global _said_to
    os.set_inheritable(said_to, False)
    _said_to = said_to
    os.makedirs(os.environ["PACELINE_RESULTS_DIR"], exist_ok=True)
    os.chdir(os.environ["PACELINE_RESULTS_DIR"])
    module, _, function = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    except BaseException as error:
        tell(ERROR, type=type(error).__name__, text=traceback.format_exc())
        raise
    tell(RESULT, value=value)


if __name__ == "__main__":
    # The functions find the same module, not a second one named __main__.
    from tests.cluster import driver

    driver.main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
