"""Puts our half of each class, which knows the session, before the half that is Lightning's."""

from __future__ import annotations

from paceline.train.lightning.callback import EpochEndReporter, EpochReporter, SaveReporter
from paceline.train.lightning.packages import lightning
from paceline.train.lightning.strategies import ShardedStrategy, WorkerEnvironment, WorkerStrategy


def derive(package: str, module: str) -> dict[str, type]:
    """The classes for one of Lightning's packages; `module` is where they will be found by name."""
    library = lightning(package)
    strategies, callbacks = library.strategies, library.callbacks
    environments = lightning(f"{package}.plugins.environments")
    return {
        name: type(name, (ours, theirs), {"__module__": module, "__doc__": ours.__doc__})
        for name, ours, theirs in (
            ("DDPStrategy", WorkerStrategy, strategies.DDPStrategy),
            ("FSDPStrategy", ShardedStrategy, strategies.FSDPStrategy),
            ("DeepSpeedStrategy", WorkerStrategy, strategies.DeepSpeedStrategy),
            ("LightningEnvironment", WorkerEnvironment, environments.ClusterEnvironment),
            ("ReportCallback", EpochReporter, callbacks.Callback),
            ("ReportAtEpochEnd", EpochEndReporter, callbacks.Checkpoint),
            ("ReportingModelCheckpoint", SaveReporter, callbacks.ModelCheckpoint),
        )
    }
