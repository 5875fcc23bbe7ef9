"""What the names of the module `ray` are under the alias, and advice for those that do not exist.

Most are paceline's. Some are Ray's own and harmless, and `paceline.ray` has them; some are other people's modules.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from paceline.air.absent import no_such_name
from paceline.air.core_names import ADVICE as CORE

OWN = ("util",)
"""Modules that only Ray has, and so only paceline.ray."""
ELSEWHERE = {"cloudpickle": "cloudpickle"}
"""Modules that Ray has from somebody else."""

INSIDE = "it is not part of Ray's API; look for a public name, or copy the few lines that you need"
_CLUSTER = "there is no cluster: leave it out, workers are processes on this machine"
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
