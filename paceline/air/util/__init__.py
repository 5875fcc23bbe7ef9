"""Old path of a few tools."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name

_TENSORS = "columns of a Dataset may hold numpy arrays of any shape; no extension type is needed"
_PROCESS_GROUP = (
    "paceline.train.torch.TorchTrainer sets up the process group of its workers; in its train_loop_per_worker, "
    "torch.distributed is ready to use"
)
_ADVICE = {"tensor_extensions": _TENSORS, "torch_dist": _PROCESS_GROUP}


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, _ADVICE)
