"""DataContext and its relatives: settings of an execution that does not exist here.

Programs set them at their beginning. They can be set and read, and change nothing; one warning says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from paceline.air.checks import warn_at_users_line

__all__ = ["DataContext", "DatasetContext", "ExecutionOptions", "ExecutionResources", "NodeIdStr", "set_progress_bars"]

NodeIdStr = str

_ALREADY_SO = {
    "enable_progress_bars": False,
    "execution_options.preserve_order": True,
    "execution_options.verbose_progress": False,
    "use_streaming_executor": True,
}
"""Values that say what is the case anyway: no warning is due."""
_told = threading.Event()


class _Settings:
    """Accepts any name. The first one that would have to change something causes a warning, later ones none."""

    _prefix = ""

    def __setattr__(self, name: str, value: Any) -> None:
        before = getattr(self, name, None)
        object.__setattr__(self, name, value)
        if not hasattr(self, "_complete") or name.startswith("_"):
            return
        setting = f"{self._prefix}{name}"
        if value != before and _ALREADY_SO.get(setting, before) != value and not _told.is_set():
            _told.set()
            warn_at_users_line(
                f"DataContext: {setting} has no effect, and neither have other settings. Rows stream and keep their "
                "order; batch sizes, concurrency and reading ahead are arguments of the methods of a dataset."
            )

    def __post_init__(self) -> None:
        self._complete = True


@dataclass(eq=True)
class ExecutionResources(_Settings):
    """Limits that a dataset may not exceed there. Here rows stream through a few batches of memory."""

    _prefix = "execution_options.resource_limits."
    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: int | None = None


@dataclass
class ExecutionOptions(_Settings):
    """How a dataset is executed there."""

    _prefix = "execution_options."
    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    locality_with_output: Any = False
    preserve_order: bool = True
    actor_locality_enabled: bool = True
    verbose_progress: bool = False


@dataclass
class DataContext(_Settings):
    """The settings of this process; ``DataContext.get_current()`` is the only one."""

    target_max_block_size: int = 512 << 20
    target_min_block_size: int = 1 << 20
    enable_progress_bars: bool = False
    use_push_based_shuffle: bool = False
    use_streaming_executor: bool = True
    enable_auto_log_stats: bool = False
    min_parallelism: int = 200
    scheduling_strategy: Any = "SPREAD"
    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)

    @staticmethod
    def get_current() -> DataContext:
        """The settings of this process."""
        return _current


def set_progress_bars(enabled: bool) -> bool:
    """Datasets show no progress bars. Returns whether they were shown before: never."""
    if enabled:
        _current.enable_progress_bars = True  # which says that it has no effect
        _current.enable_progress_bars = False
    return False


DatasetContext = DataContext
_current = DataContext()
