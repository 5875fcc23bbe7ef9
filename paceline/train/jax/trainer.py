"""JaxTrainer: a data-parallel trainer whose workers are the processes of one JAX program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Unpack

from paceline.air.config import ScalingConfig
from paceline.train.arguments import DataParallelArguments, chosen_config
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.jax.backend import JaxConfig


class JaxTrainer(DataParallelTrainer):
    """Runs `train_loop_per_worker` on every worker, with `jax.distributed` initialized.

    `jax.devices()` are the devices of all workers. An array that is sharded over them is one array for all workers,
    and what you jit computes on all of them together.

        def train_func(config):
            for batch in train.get_dataset_shard("train").iter_jax_batches(global_batch_size=64):
                state, loss = train_step(state, batch)
            train.report({"loss": float(loss)}, checkpoint=JaxCheckpoint.from_state(state))

        result = JaxTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        jax_config: JaxConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        chosen = chosen_config("JaxTrainer", JaxConfig, jax_config=jax_config)
        if chosen.platform is None and _asks_for_tpus(common.get("scaling_config")):
            chosen = dataclasses.replace(chosen, platform="tpu")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            **common,
        )


def _asks_for_tpus(scaling: ScalingConfig | None) -> bool:
    resources = scaling.resources_per_worker if scaling is not None else None
    return isinstance(resources, dict) and bool(resources.get("TPU"))
