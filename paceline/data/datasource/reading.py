"""read_datasource: rows from an object of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.data.block import Source

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_TASKS = 16
"""Asked for where the user leaves it open. Not by cores: a run restored on another machine needs the same blocks."""


def read_datasource(
    datasource: Any,
    *,
    parallelism: int = -1,
    ray_remote_args: Mapping[str, Any] | None = None,
    **read_args: Any,
) -> Dataset:
    """Rows of a `Datasource`: each of its read tasks is a block. Also takes a `paceline.data.block.Source`."""
    from paceline.data.dataset import Dataset
    from paceline.data.from_objects import refuse_ray_dataset

    refuse_ray_dataset(datasource, "read_datasource")
    for name in ("concurrency", "num_cpus", "num_gpus", "memory"):
        ray_remote_args = read_args.pop(name, None) or ray_remote_args
    if ray_remote_args:
        warn_at_users_line("ray_remote_args and other resources have no effect: each worker reads its own share.")
    parallelism = read_args.pop("override_num_blocks", None) or parallelism
    if isinstance(datasource, Source):
        return Dataset(datasource)
    if hasattr(datasource, "source"):  # of files: a block is a file
        return Dataset(datasource.source(parallelism, **read_args))
    return Dataset(_of_tasks(datasource, _TASKS if parallelism == -1 else parallelism, read_args))


def _of_tasks(datasource: Any, parallelism: int, read_args: dict[str, Any]) -> Source:
    from paceline.data.sources.read_tasks import ReadTaskSource

    if hasattr(datasource, "create_reader"):
        tasks = datasource.create_reader(**read_args).get_read_tasks(parallelism)
    elif hasattr(datasource, "get_read_tasks"):
        tasks = datasource.get_read_tasks(parallelism)
    else:
        raise ConfigError(
            f"read_datasource: {type(datasource).__name__} has no method get_read_tasks(parallelism): derive it from "
            "paceline.data.datasource.Datasource."
        )
    if not tasks:
        raise ConfigError(f"read_datasource: {type(datasource).__name__} gave no read tasks; give at least one.")
    return ReadTaskSource(tasks, type(datasource).__name__)
