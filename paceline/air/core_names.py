"""What to write instead of the functions by which Ray distributes tasks, actors and objects.

Paceline starts the workers of a run and of a search; it does not distribute anything else.
"""

from __future__ import annotations

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
    "nodes": f"workers run on this machine; {_MACHINE}",
    "put": _OBJECTS,
    "remote": _PROCESSES,
    "rllib": "paceline.train.rl.RLTrainer trains RLlib's algorithms; import RLlib itself from ray.rllib",
    "timeline": "torch.profiler and train.torch.TorchWorkerProfiler record what a worker does",
    "util": _PLACES,
    "wait": f"{_PROCESSES} and concurrent.futures.wait()",
    "workflow": _PROCESSES,
}
