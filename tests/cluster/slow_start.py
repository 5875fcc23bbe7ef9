"""Backends whose workers come up no further while a file on their host says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.engine.base import WorkerGroup
from paceline.run.backend import Backend, BackendConfig

HOLDS = "/var/tmp/hold_start"
"""The file."""
HELD = "/var/tmp/start_is_held"
"""Where a host says that it is as far as that."""


def wait_here() -> None:
    while os.path.exists(HOLDS):
        Path(HELD).touch()
        time.sleep(0.05)


class SlowImport(Backend):
    preload = ("tests.cluster.slow_import",)


class SlowImportConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return SlowImport


class SlowConnection(Backend):
    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(wait_here)


class SlowConnectionConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return SlowConnection


CONFIGS: dict[str, type[BackendConfig]] = {
    "": BackendConfig,
    "slow import": SlowImportConfig,
    "slow connection": SlowConnectionConfig,
}
