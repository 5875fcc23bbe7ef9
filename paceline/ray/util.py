"""What programs use of `ray.util` and of its modules, as far as it means something without a cluster."""

from __future__ import annotations

import os
from typing import Any, TextIO

from paceline.air.absent import no_such_name

__all__ = ["get_node_ip_address", "inspect_serializability", "log_once"]

# Names of accelerators, for ScalingConfig(accelerator_type=...)
NVIDIA_TESLA_V100 = "V100"
NVIDIA_TESLA_P100 = "P100"
NVIDIA_TESLA_T4 = "T4"
NVIDIA_TESLA_P4 = "P4"
NVIDIA_TESLA_K80 = "K80"
NVIDIA_TESLA_A10G = "A10G"
NVIDIA_L4 = "L4"
NVIDIA_L40S = "L40S"
NVIDIA_A100 = "A100"
NVIDIA_H100 = "H100"

_logged: set[str] = set()


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[str]]:
    """Whether an object can be sent to workers; if not, what is in the way, which is printed as well.

    `depth` is accepted and has no effect: the search ends at the part that cannot be sent.
    """
    from paceline.air.errors import SerializationError
    from paceline.engine.serialization import dumps

    try:
        dumps(base_obj, name or getattr(base_obj, "__name__", None) or type(base_obj).__name__)
    except SerializationError as error:
        print(error, file=print_file)
        return False, {str(error)}
    return True, set()


def get_node_ip_address() -> str:
    """Where the workers of a run reach this one."""
    from paceline.engine.places import ADDRESS_VARIABLE, LOOPBACK

    return os.environ.get(ADDRESS_VARIABLE, LOOPBACK)


def log_once(key: str) -> bool:
    """True the first time that this process asks with this key."""
    first = key not in _logged
    _logged.add(key)
    return first


def _mark(*args: Any, **details: Any) -> Any:
    """Works as ``@mark`` and as ``@mark(stability="beta")``."""
    if len(args) == 1 and not details and callable(args[0]):
        return args[0]
    return lambda marked: marked


DeveloperAPI = PublicAPI = Deprecated = _mark
"""Marks for classes and functions. They say something to readers and change nothing."""


_GROUPS = "ScalingConfig(...) and tune.PlacementGroupFactory([...]) say what workers and trials need"
_PROCESSES = "use multiprocessing.Pool, or concurrent.futures.ProcessPoolExecutor"
_TASKS = "it places tasks and actors; workers of trainers and trials are placed by paceline"
_CLUSTER = "there is no cluster here: leave it out"
_ADVICE = {
    **dict.fromkeys(("get_current_placement_group", "get_placement_group", "placement_group"), _GROUPS),
    **dict.fromkeys(("placement_group_table", "remove_placement_group", "PlacementGroup"), _GROUPS),
    **dict.fromkeys(("ActorPool", "actor_pool", "multiprocessing", "iter"), _PROCESSES),
    **dict.fromkeys(("scheduling_strategies", "rpdb", "state", "list_named_actors"), _TASKS),
    **dict.fromkeys(("client", "connect", "disconnect", "ray_debugpy", "spark", "tracing"), _CLUSTER),
    "collective": "use torch.distributed inside a TorchTrainer; a trainer sets it up",
    "dask": "read the files with paceline.data",
    "joblib": "joblib runs on this machine's cores by itself: leave register_ray() out",
    "metrics": "report numbers with train.report()",
    "queue": "use multiprocessing.Manager().Queue(); workers can hold it",
    "sgd": "TorchTrainer and TensorflowTrainer of paceline.train are its successors",
    "xgboost": "XGBoostTrainer of paceline.train.xgboost",
    "lightgbm": "LightGBMTrainer of paceline.train.lightgbm",
}
__path__: list[str] = []  # so that import statements repeat the advice, see air/absent.py


def __getattr__(name: str) -> Any:
    raise no_such_name("ray.util" if name in _ADVICE else __name__, name, _ADVICE)
