"""One worker of a framework's own launcher. Arguments: framework, windows of steps."""

from __future__ import annotations

import json
import os
import sys

from benchmarks import framework_workload as work
from benchmarks.workload import write_out


def transformers(windows: int) -> float:
    import torch

    rows = torch.from_numpy(work.sentences(work.language_rows(windows)))
    clock = work.Windows()
    work.language_trainer([{"input_ids": row, "labels": row} for row in rows], windows, clock).train()
    return clock.rate()


def lightning(windows: int) -> float:
    from lightning.pytorch import Trainer

    trainer = Trainer(strategy="ddp", devices=2, **work.LIGHTNING_SETTINGS)
    trainer.fit(work.lightning_module()(), work.lightning_batches(windows))
    return float(trainer.callback_metrics["rate"])


def jax(windows: int) -> float:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], 2, int(os.environ["RANK"]))
    return work.jax(windows)


SIDES = {
    "jax": jax,
    "tensorflow": work.tensorflow,
    "horovod": work.horovod,
    "accelerate": work.accelerate,
    "transformers": transformers,
    "lightning": lightning,
}


def rank() -> int:
    """As each launcher says it."""
    if "TF_CONFIG" in os.environ:
        return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    return int(os.environ.get("HOROVOD_RANK") or os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def main(framework: str, windows: int) -> None:
    rate = SIDES[framework](windows)
    if rank() == 0:
        write_out({"rate": rate})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
