"""StorageContext: where a run's results are, for ``train.get_context().get_storage()``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


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
