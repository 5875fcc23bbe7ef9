"""The alias: `import ray` gives paceline.ray, and `ray.x` is the module `paceline.x` itself.

Most names are paceline's. Some are Ray's own and harmless, and `paceline.ray` has them; some are modules of others.
The rest do not exist, and say what to write instead. Three parts make the alias hold everywhere:

- a finder in this process, so that an installed Ray does not win;
- a folder on sys.path with a package called `ray` (ray_shim). Workers, process pools and multiprocessing take over
  this process's sys.path, and their first `import ray` installs the finder;
- the same folder in PYTHONPATH, for other Python programs that this one starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.air.absent import no_such_name
from paceline.air.errors import ConfigError
from paceline.air.ray_alias import ADVICE as CORE
from paceline.air.ray_alias import alias_in_force

SHIM = str(Path(__file__).with_name("ray_shim"))
PATH_VARIABLE = "PYTHONPATH"
OWN = ("util",)
"""Modules that only Ray has, and so only paceline.ray."""
ELSEWHERE = {"cloudpickle": "cloudpickle"}
"""Modules that Ray has from somebody else."""

INSIDE = "it is not part of Ray's API; look for a public name, or copy the few lines that you need"
_CLUSTER = "leave it out: workers are processes on this machine, unless the program is ported and uses the engine 'ray'"
_SERVE = "`paceline serve <run or checkpoint>`, or paceline.serve.run(PredictorClass, checkpoint), serves a model"
_RLLIB = (
    "RLlib needs the real Ray, so the alias cannot run it; change the script with `paceline port`, which keeps imports "
    "of ray.rllib, and train with paceline.train.rl.RLTrainer"
)

ADVICE: Mapping[str, str] = {
    **{name: advice for name, advice in CORE.items() if name not in OWN},
    **dict.fromkeys(("_private", "_raylet", "core", "internal", "types", "widgets", "worker"), INSIDE),
    **dict.fromkeys(("autoscaler", "cluster_utils", "dashboard", "job_config", "job_submission", "node"), _CLUSTER),
    **dict.fromkeys(("client", "client_builder", "runtime_context", "runtime_env", "state", "tests"), _CLUSTER),
    **dict.fromkeys(("dag", "experimental"), CORE["workflow"]),
    "llm": "Dataset.map_batches(YourModel, concurrency=n) of paceline.data runs a model over rows",
    "ml": "its parts are in ray.air, ray.train, ray.data.preprocessors and ray.tune",
    "rllib": _RLLIB,
    "serve": _SERVE,
}


def home_of(name: str) -> str:
    """The module that `ray.<name>` is, if it exists."""
    first, _, rest = name.partition(".")
    if first in ELSEWHERE:
        return f"{ELSEWHERE[first]}.{rest}" if rest else ELSEWHERE[first]
    return f"paceline.ray.{name}" if first in OWN else f"paceline.{name}"


def member(name: str) -> Any:
    """The attribute `ray.<name>`."""
    if name in ADVICE:
        raise no_such_name("ray", name, ADVICE)
    if name in OWN or name in ELSEWHERE:
        return importlib.import_module(home_of(name))
    return getattr(importlib.import_module("paceline"), name)


class _Alias(Loader):
    """Puts a module of paceline's in the place of the new one, as a module may do for itself while it is executed."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _Finder(MetaPathFinder):
    """Answers for `ray` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "ray":
            return None
        if not name:
            return importlib.util.spec_from_file_location("ray", os.path.join(SHIM, "ray", "__init__.py"))
        if name in ADVICE:
            raise ModuleNotFoundError(str(no_such_name("ray", name, ADVICE)), name="ray")
        home = home_of(name)
        found = importlib.util.find_spec(home)  # or an error that says what to write instead
        if found is None and home.rpartition(".")[2].startswith("_"):
            raise ModuleNotFoundError(f"{fullname} does not exist here: {INSIDE}.", name=fullname)
        return None if found is None else ModuleSpec(fullname, _Alias(home), origin=found.origin)


def install() -> None:
    """From now on `import ray` gives paceline, here and in processes that this one starts."""
    if "ray" in sys.modules and not alias_in_force():
        raise ConfigError(
            "Ray itself is already imported; install the alias before the first `import ray`, or run the script with "
            "python -m paceline.ray."
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if SHIM not in sys.path:
        sys.path.insert(1, SHIM)  # after the script's own folder, as with PYTHONPATH
    os.environ[PATH_VARIABLE] = os.pathsep.join([SHIM, *other_paths()])


def uninstall() -> None:
    """Take the alias back; what was imported through it stays usable. The next `import ray` gives Ray itself."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if "ray" in sys.modules and alias_in_force():
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != SHIM]
    others = other_paths()
    if others:
        os.environ[PATH_VARIABLE] = os.pathsep.join(others)
    else:
        os.environ.pop(PATH_VARIABLE, None)


def other_paths() -> list[str]:
    """What PYTHONPATH holds besides the alias. An empty entry means the current directory."""
    value = os.environ.get(PATH_VARIABLE)
    return [entry for entry in value.split(os.pathsep) if entry != SHIM] if value else []
