"""SyncConfig: how files travel to remote storage, as older code spells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.air.checks import ShortRepr, check_bool, check_seconds, names_what_was_meant
from paceline.air.errors import ConfigError


@names_what_was_meant()
@dataclass(repr=False)
class SyncConfig(ShortRepr):
    """Settings of older code. Every commit is mirrored at once, so there is no period to tune:
    the timing fields are checked and otherwise have no effect."""

    upload_dir: str | None = None
    """Old name of RunConfig(storage_path=...)."""
    syncer: Any = "auto"
    """"auto" only: custom syncers are replaced by RunConfig(storage_filesystem=...)."""
    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = True
    sync_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        if self.syncer not in ("auto", None):
            raise ConfigError(
                f"syncer is {self.syncer!r}: custom syncers do not exist here. "
                "Pass an fsspec filesystem as RunConfig(storage_filesystem=...) instead."
            )
        check_seconds(self.sync_period, "sync_period", zero_allowed=True)
        check_seconds(self.sync_timeout, "sync_timeout", zero_allowed=True)
        check_bool(self.sync_artifacts, "sync_artifacts")
        check_bool(self.sync_on_checkpoint, "sync_on_checkpoint")
