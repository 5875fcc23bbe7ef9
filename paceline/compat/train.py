"""Names of older generations of `ray.train`, and its DummyTrainer, under their old paths: see `air/old_paths.py`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.air import session
from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.engine.places import ADDRESS_VARIABLE, LOOPBACK
from paceline.train.base_trainer import BaseTrainer, TrainingFailedError
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.trees.trainer import TreeTrainer as GBDTTrainer

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset
    from paceline.data.iterator import DataIterator
    from paceline.data.preprocessor import Preprocessor

__all__ = [
    "BaseTrainer",
    "DummyTrainer",
    "GBDTTrainer",
    "TorchTensorboardProfilerCallback",
    "Trainer",
    "TrainingFailedError",
    "get_address_and_port",
    "make_local_dataset_iterator",
]


class Trainer(BaseTrainer):
    """The `Trainer(backend=...).start().run(...)` of the first generation is not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "Trainer(backend=..., num_workers=...) with start(), run() and shutdown() is not supported. Write: "
            "TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()"
        )


class TorchTensorboardProfilerCallback:
    """Collected profiler traces in the driver; workers write them as files now."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "TorchTensorboardProfilerCallback is not needed: TorchWorkerProfiler writes traces as files below the "
            "trial directory, and report(profiler.get_and_clear_profile_traces()) records their paths. "
            "Open them with: tensorboard --logdir <result.log_dir>"
        )


def get_address_and_port() -> tuple[str, int]:
    """Where the other workers of a run reach this one, and a port that is free there now. Backends call it on a
    worker."""
    address = os.environ.get(ADDRESS_VARIABLE, LOOPBACK)
    with socket.socket() as probe:
        probe.bind((address, 0))
        return address, int(probe.getsockname()[1])


class DummyTrainer(DataParallelTrainer):
    """Reads the dataset "train" `num_epochs` times, and reports after each epoch what was read and what it took.

    A row has epochs_read, batches_read, rows_read and bytes_read so far, and batch_delay, the longest wait for a
    batch in seconds. `prefetch_blocks` changes nothing.
    """

    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        num_epochs: int = 1,
        prefetch_batches: int = 1,
        batch_size: int | None = 4096,
        prefetch_blocks: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__(
            _read,
            train_loop_config={"epochs": num_epochs, "prefetch_batches": prefetch_batches, "batch_size": batch_size},
            scaling_config=scaling_config or ScalingConfig(num_workers=1),
            **arguments,
        )


def _read(config: dict[str, Any]) -> None:
    shard: Any = session.get_dataset_shard("train")
    row = {"batches_read": 0, "rows_read": 0, "bytes_read": 0}
    for epoch in range(config["epochs"]):
        batches = shard.iter_batches(batch_size=config["batch_size"], prefetch_batches=config["prefetch_batches"])
        longest = 0.0
        for batch, waited in _timed(batches):
            longest = max(longest, waited)
            row["batches_read"] += 1
            row["rows_read"] += max((len(column) for column in batch.values()), default=0)
            row["bytes_read"] += sum(column.nbytes for column in batch.values())
        session.report({**row, "epochs_read": epoch + 1, "batch_delay": longest})


def _timed(batches: Any) -> Iterator[tuple[Any, float]]:
    """Each batch with the time that it was waited for."""
    began = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - began
        began = time.perf_counter()


def make_local_dataset_iterator(
    dataset: Dataset, preprocessor: Preprocessor | None = None, dataset_config: Any = None
) -> DataIterator:
    """What a worker would be given of a dataset, in this process; `dataset_config` changes nothing."""
    return (dataset if preprocessor is None else preprocessor.fit_transform(dataset)).iterator()
