"""One fit of a framework's trainer on 2 workers. Arguments: framework, windows of steps.

With BENCH_FAILING, rank 1 raises in the middle of it; how long it took until that was known here is written instead.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks import framework_workload as work
from benchmarks.workload import place, write_out
from paceline import train
from paceline.train import ScalingConfig, TrainingFailedError

WORKERS = ScalingConfig(num_workers=2)


def report_rate(config: dict[str, Any]) -> None:
    measure = getattr(work, config["framework"])
    train.report({"rate": measure(config["windows"])})


def language_model(train_dataset: Any, eval_dataset: Any = None, *, windows: int) -> Any:
    return work.language_trainer(train_dataset, windows, work.Windows())


def torch(config: dict[str, Any]) -> Any:
    from paceline.train.torch import TorchTrainer

    return TorchTrainer(report_rate, train_loop_config=config, scaling_config=WORKERS)


def tensorflow(config: dict[str, Any]) -> Any:
    from paceline.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(report_rate, train_loop_config=config, scaling_config=WORKERS)


def jax(config: dict[str, Any]) -> Any:
    from paceline.train.jax import JaxTrainer

    return JaxTrainer(report_rate, train_loop_config=config, scaling_config=WORKERS)


def horovod(config: dict[str, Any]) -> Any:
    from paceline.train.horovod import HorovodTrainer

    return HorovodTrainer(report_rate, train_loop_config=config, scaling_config=WORKERS)


def accelerate(config: dict[str, Any]) -> Any:
    from paceline.train.huggingface import AccelerateTrainer

    return AccelerateTrainer(report_rate, train_loop_config=config, scaling_config=WORKERS)


def transformers(config: dict[str, Any]) -> Any:
    import pyarrow as pa

    from paceline import data
    from paceline.train.huggingface import TransformersTrainer

    words = work.sentences(work.language_rows(config["windows"]))
    column = pa.FixedSizeListArray.from_arrays(words.ravel(), words.shape[1])
    return TransformersTrainer(
        language_model,
        trainer_init_config={"windows": config["windows"]},
        datasets={"train": data.from_arrow(pa.table({"input_ids": column, "labels": column}))},
        scaling_config=WORKERS,
    )


def lightning(config: dict[str, Any]) -> Any:
    from paceline.train.lightning import LightningConfigBuilder, LightningTrainer

    settings = {name: value for name, value in work.LIGHTNING_SETTINGS.items() if name != "enable_checkpointing"}
    builder = LightningConfigBuilder().module(work.lightning_module()).trainer(**settings)
    builder.fit_params(train_dataloaders=work.lightning_batches(config["windows"]))
    return LightningTrainer(builder.build(), scaling_config=WORKERS)


def seconds_to_the_cause(trainer: Any) -> float:
    """From the moment rank 1 raised until fit() did."""
    try:
        trainer.fit()
    except TrainingFailedError as error:
        known = time.monotonic()
        if not isinstance(error.__cause__, ArithmeticError):
            raise
        return known - float((place() / work.RAISED_AT).read_text())
    raise RuntimeError("the fit was to fail")


def main(framework: str, windows: int) -> None:
    trainer = globals()[framework]({"framework": framework, "windows": windows})
    if work.FAILING in os.environ:
        write_out({"seconds": seconds_to_the_cause(trainer)})
    else:
        write_out({"rate": trainer.fit().metrics["rate"]})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
