"""Found as `ray` on sys.path where the alias is in force: installs it, and gives its place to paceline.ray.

The folder may reach an interpreter without paceline, by PYTHONPATH. That one gets its own Ray.
"""

import importlib
import sys
from pathlib import Path

try:
    import paceline.ray
except ModuleNotFoundError as error:
    if error.name not in ("paceline", "paceline.ray"):
        raise
    here = str(Path(__file__).parents[1])
    sys.path[:] = [entry for entry in sys.path if entry != here]
    del sys.modules["ray"]
    importlib.import_module("ray")
else:
    paceline.ray.install()
    sys.modules["ray"] = paceline.ray
