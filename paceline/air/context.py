"""TrainContext: the facts about this worker as one object, for ``train.get_context()``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air import session

if TYPE_CHECKING:
    from paceline.air.resources import PlacementGroupFactory


@dataclass(frozen=True)
class StorageContext:
    """The places of one trial on the worker's machine. A run with a URI as storage path is mirrored from there."""

    trial_fs_path: str
    """The trial's directory."""
    experiment_dir_name: str

    @property
    def trial_dir_name(self) -> str:
        return os.path.basename(self.trial_fs_path)

    @property
    def experiment_fs_path(self) -> str:
        return os.path.dirname(self.trial_fs_path)

    @property
    def storage_fs_path(self) -> str:
        """The directory that holds all experiments."""
        return os.path.dirname(self.experiment_fs_path)

    @property
    def storage_filesystem(self) -> Any:
        """The file system of these paths, as pyarrow has it: that of this machine."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()


class TrainContext:
    """What this worker is and which run it belongs to; outside a run, the defaults."""

    def get_world_size(self) -> int:
        return session.rank_asked(_name("get_world_size()"), 1).world_size

    def get_previous_world_size(self) -> int | None:
        """How many workers had written the checkpoint that this worker started from; None if it started without one."""
        return _asked("get_previous_world_size()", None).previous_world_size

    def get_world_rank(self) -> int:
        return session.rank_asked(_name("get_world_rank()"), 0).world_rank

    def get_local_rank(self) -> int:
        return _asked("get_local_rank()", 0).local_rank

    def get_local_world_size(self) -> int:
        return _asked("get_local_world_size()", 0).local_world_size

    def get_node_rank(self) -> int:
        return _asked("get_node_rank()", 0).node_rank

    def get_trial_name(self) -> str | None:
        return _asked("get_trial_name()", None).trial_name or None

    def get_trial_id(self) -> str | None:
        return _asked("get_trial_id()", None).trial_id or None

    def get_trial_dir(self) -> str | None:
        return _asked("get_trial_dir()", None).trial_dir or None

    def get_trial_resources(self) -> PlacementGroupFactory | None:
        return session.resources_of(_asked("get_trial_resources()", None))

    def get_experiment_name(self) -> str | None:
        return _asked("get_experiment_name()", None).experiment_name or None

    def get_metadata(self) -> dict[str, Any] | None:
        metadata = _asked("get_metadata()", None).metadata
        return metadata if session.current() is not None else None

    def get_storage(self) -> StorageContext | None:
        """Where the results of this run are; None outside a run."""
        run = _asked("get_storage()", None)
        return StorageContext(run.trial_dir, run.experiment_name) if run.trial_dir else None


def _asked(method: str, default: object) -> session.SessionProtocol:
    return session.asked(_name(method), default)


def _name(method: str) -> str:
    return f"train.get_context().{method}"


_context = TrainContext()


def get_context() -> TrainContext:
    """The context of this worker; may be called anywhere and kept."""
    return _context
