"""RunSpec: the complete description of a run, compiled from a trainer's arguments."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.config import RunConfig, ScalingConfig
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.data.ingest.request import Ingest


@dataclass(frozen=True)
class TrialIdentity:
    """The names a run goes by."""

    trial_id: str
    experiment_id: str
    experiment_tag: str = "0"

    @classmethod
    def new(cls) -> TrialIdentity:
        experiment_id = uuid.uuid4().hex
        return cls(trial_id=f"{experiment_id[:5]}_00000", experiment_id=experiment_id)

    def with_another_trial_id(self) -> TrialIdentity:
        """For when the trial's directory exists already."""
        return replace(self, trial_id=f"{uuid.uuid4().hex[:5]}_00000")


@dataclass(frozen=True)
class TrialPlace:
    """Where a trial of a search lives. The search has made sure of the storage and chosen a name that is free."""

    directory: Path
    experiment_name: str
    uri: str | None = None
    """Where the directory is mirrored to."""


@dataclass(frozen=True)
class TrainFunction:
    """The user's function and its argument; called without arguments in every worker."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"function": "train_loop_per_worker", "config": "train_loop_config"}

    function: Callable[..., Any]
    config: Mapping[str, Any] | None = None
    takes_config: bool = False

    def __call__(self) -> None:
        # What the function returns is dropped here: it must not need to be picklable.
        if self.takes_config:
            self.function(dict(self.config or {}))
        else:
            self.function()


@dataclass(frozen=True)
class RunSpec:
    """What shall run, where, and under which rules."""

    trainer_name: str
    train: Callable[[], None]
    """Runs in every worker."""
    config: Mapping[str, Any]
    """What the result shows as `config`."""
    scaling: ScalingConfig
    run_config: RunConfig
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    backend_described: Mapping[str, Any] = field(default_factory=dict)
    """How restore() recognises the backend: its class, the argument it was given as, its registered name, its settings.
    """
    ingest: Ingest | None = None
    """The datasets, and what is to be done with them before workers start."""
    resume_from: Checkpoint | None = None
    restore_path: str | None = None
    """The trial directory to continue; None for a new one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    numbers_by_iteration: bool = False
    """checkpoint_00000n belongs to iteration n; otherwise checkpoints are counted."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """More of the trainer's arguments; plain ones are stored, so that restore() need not be given them again."""
    dataset_names: tuple[str, ...] = ()
    """All datasets of the trainer, also those that the workers do not get as shards."""
    again: tuple[str, ...] = ()
    """What restore() must be given again, as it is written in a call: ``datasets=...``."""
    code: Any = None
    """The user's function or class, whose changes a restore notices; None: nobody knows."""
    identity: TrialIdentity = field(default_factory=TrialIdentity.new)
    evaluated: Mapping[str, Any] = field(default_factory=dict)
    """The part of the configuration that a search chose."""
    place: TrialPlace | None = None
    """Of a trial of a search; None: the run makes a directory of its own."""
    threads: int | None = None
    """Threads per worker for numeric libraries; None: a fair share of the machine."""
    devices: tuple[str, ...] | None = None
    """The GPUs that the run may use; None: all that there are."""
    working_dir: str | None = None
    """Where workers start; None: each in a directory of its own below the trial's."""

    @property
    def world_size(self) -> int:
        return self.scaling.num_workers or 1
