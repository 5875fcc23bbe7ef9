"""global_batch_size: a batch that all workers read together, each its part."""

from __future__ import annotations

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, WorkerCountError
from paceline.data.epochs import DEFAULT_BATCH_ROWS

_MOST_NAMED = 8


def rows_per_worker(batch_size: int | None, global_batch_size: int | None, workers: int) -> int | None:
    """The size of one worker's batches."""
    if global_batch_size is None:
        return batch_size
    size = whole_number(global_batch_size, "global_batch_size", least=1)
    if batch_size != DEFAULT_BATCH_ROWS:
        raise ConfigError(
            f"batch_size={batch_size} is that of one worker, and global_batch_size={size} that of all together. Give "
            "one of them."
        )
    if size % workers:
        divisors = [count for count in range(1, min(size, 10 * workers) + 1) if size % count == 0]
        near = sorted(divisors, key=lambda count: abs(count - workers))[:_MOST_NAMED]
        fitting = [each for each in (size - size % workers, size - size % workers + workers) if each]
        raise WorkerCountError(
            f"global_batch_size={size} is not divisible by the {workers} workers there are now. With {workers} workers "
            f"it can be {' or '.join(map(str, fitting))}; {size} rows can be shared by "
            f"{', '.join(map(str, sorted(near)))} workers. In an elastic run, ScalingConfig(policy=...) can choose "
            "such a number."
        )
    return size // workers
