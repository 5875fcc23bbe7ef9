"""For programs written for Ray: whether `import ray` gives paceline here, and what to write instead of Ray's core."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
INSTEAD = "the alias paceline.ray stands in for it here: port the script (paceline port), and run it without the alias."
"""The end of a sentence about something that needs the real Ray."""


def alias_in_force() -> bool:
    """Whether `import ray` gives paceline in this process.

    Nothing is imported to find out: a program may not have come to its first `import ray` yet.
    """
    module = sys.modules.get("ray")
    try:
        spec = find_spec("ray") if module is None else module.__spec__
    except ValueError:  # somebody put a module without a spec there
        return False
    return spec is not None and spec.origin is not None and spec.origin.startswith(_PACKAGE)


# -- tasks, actors and objects: paceline starts the workers of runs and searches, and distributes nothing else

_PROCESSES = (
    "trainers and the Tuner start their own workers; for other functions use concurrent.futures.ProcessPoolExecutor"
)
_OBJECTS = "pass the object itself, or tune.with_parameters(train_fn, name=object) for large ones"
_MACHINE = "os.cpu_count() and torch.cuda.device_count() count what this machine has"
_GPUS = "train.torch.get_device() is the worker's GPU, and CUDA_VISIBLE_DEVICES lists those of a trial"
_PLACES = "ScalingConfig(resources_per_worker=...) and tune.with_resources() say what workers and trials need"
_WHERE = "paceline.train.get_context() says where a worker runs, and session functions say which trial it belongs to"

ADVICE = {
    "ObjectRef": _OBJECTS,
    "actor": _PROCESSES,
    "available_resources": _MACHINE,
    "cancel": _PROCESSES,
    "cluster_resources": _MACHINE,
    "exceptions": "paceline.air.errors has the errors that fit() raises",
    "get": f"{_OBJECTS}; results of a run come from Result and ResultGrid",
    "get_actor": _PROCESSES,
    "get_gpu_ids": _GPUS,
    "get_runtime_context": _WHERE,
    "kill": _PROCESSES,
    "method": _PROCESSES,
    "nodes": f"workers run on this machine unless the engine is 'ray'; {_MACHINE}",
    "put": _OBJECTS,
    "remote": _PROCESSES,
    "rllib": "paceline.train.rl.RLTrainer trains RLlib's algorithms; import RLlib itself from ray.rllib",
    "timeline": "torch.profiler and train.torch.TorchWorkerProfiler record what a worker does",
    "util": _PLACES,
    "wait": f"{_PROCESSES} and concurrent.futures.wait()",
    "workflow": _PROCESSES,
}
