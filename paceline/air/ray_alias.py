"""Whether `import ray` gives paceline in this process, because the alias (paceline.ray) is in force."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
INSTEAD = "the alias paceline.ray stands in for it here: port the script (paceline port), and run it without the alias."
"""The end of a sentence about something that needs the real Ray."""


def alias_in_force() -> bool:
    """Nothing is imported to find out: a program may not have come to its first `import ray` yet."""
    module = sys.modules.get("ray")
    try:
        spec = find_spec("ray") if module is None else module.__spec__
    except ValueError:  # somebody put a module without a spec there
        return False
    return spec is not None and spec.origin is not None and spec.origin.startswith(_PACKAGE)
