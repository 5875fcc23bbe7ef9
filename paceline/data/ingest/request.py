"""Ingest: what a trainer asks for, before anything has been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.air.data_config import DatasetConfig

if TYPE_CHECKING:
    from paceline.data.ingest.prepare import Prepared


@dataclass(frozen=True)
class Ingest:
    """Datasets, a complete config for each, and the preprocessor."""

    datasets: Mapping[str, Any]
    configs: Mapping[str, DatasetConfig]
    preprocessor: Any = None
    notes: tuple[str, ...] = ()
    """What the user should know about it."""
    read_once: bool = False
    """The workers read everything at their start: where they are in the data is no part of a checkpoint, and nobody
    waits for a batch that another rank does not have."""

    def configs_as_json(self) -> dict[str, dict[str, Any]]:
        """The configs as plain values; a preprocessor of each epoch is code and stays out."""
        return {name: asdict(replace(config, per_epoch_preprocessor=None)) for name, config in self.configs.items()}

    def identity(self) -> tuple[Any, ...]:
        """Equal for requests that ask for the same of the very same objects."""
        return (
            tuple((name, id(dataset)) for name, dataset in self.datasets.items()),
            repr(self.configs_as_json()),
            tuple(id(config.per_epoch_preprocessor) for config in self.configs.values()),
            id(self.preprocessor),
            self.read_once,
        )

    def prepare(self, workers: int) -> Prepared:
        """Fit, count and store what is needed; raises for data that cannot be used with so many workers."""
        from paceline.data.ingest.prepare import prepare

        return prepare(self.datasets, self.configs, self.preprocessor, workers, in_step=not self.read_once)
