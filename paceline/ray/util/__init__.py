"""What programs use of `ray.util` and what means something without a cluster."""

from __future__ import annotations

import os
from typing import Any, TextIO

from paceline.air.absent import no_such_name

_GROUPS = "ScalingConfig(...) and tune.PlacementGroupFactory([...]) say what workers and trials need"
_PROCESSES = "use multiprocessing.Pool, or concurrent.futures.ProcessPoolExecutor"
_TASKS = "it places tasks and actors; workers of trainers and trials are placed by paceline"
_CLUSTER = "there is no cluster here: leave it out"

ADVICE = {
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

__all__ = ["get_node_ip_address", "inspect_serializability", "log_once"]

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


def __getattr__(name: str) -> Any:
    raise no_such_name("ray.util" if name in ADVICE else __name__, name, ADVICE)
