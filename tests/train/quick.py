"""A small trainer for tests: quiet, two workers or none but this process, results where the test's own results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.air import Checkpoint, RunConfig, ScalingConfig
from paceline.train import BackendConfig, DataParallelTrainer


def quick_trainer(
    loop: Callable[..., Any],
    *,
    workers: int = 2,
    inline: bool = False,
    config: Mapping[str, Any] | None = None,
    resume: Checkpoint | str | None = None,
    backend: BackendConfig | None = None,
    metadata: Mapping[str, Any] | None = None,
    **run_config: Any,
) -> DataParallelTrainer:
    """A trainer for `loop`, in this process with `inline`; everything that is not named here belongs to RunConfig."""
    if inline:
        workers, run_config = 1, {"engine": "inline", **run_config}
    return DataParallelTrainer(
        loop,
        train_loop_config=config,
        backend_config=backend,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(**{"verbose": 0, **run_config}),
        resume_from_checkpoint=resume,
        metadata=metadata,
    )
