"""RunSpec: the complete description of a run, compiled from a trainer's arguments. Trial: what observers see of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from paceline.air.config import RunConfig, ScalingConfig
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.result import Status
    from paceline.air.validation import ValidationConfig
    from paceline.data.ingest.request import Ingest
    from paceline.engine.base import Reservation


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
class ValidationSpec:
    """How checkpoints are validated, and on which data."""

    config: ValidationConfig
    ingest: Ingest | None = None


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
    validation: ValidationSpec | None = None
    """How checkpoints are validated while training continues."""
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
    devices: Callable[[], tuple[str, ...] | None] | None = None
    """Gives the GPUs that the next attempt may use: others may have had them meanwhile. None: all that there are."""
    room: tuple[Mapping[str, float], ...] = ()
    """What it needs on a cluster, if one worker starts other processes there: its own, then theirs."""
    reservation: Callable[[], Reservation | None] | None = None
    """Gives the room that is reserved for the next attempt; None: the engine finds some."""
    working_dir: str | None = None
    """Where workers start; None: each in a directory of its own below the trial's."""

    @property
    def max_workers(self) -> int:
        """How many workers an attempt can have at most. How many it has, the attempt knows."""
        return self.scaling.max_workers or 1


TrialStatus = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


@dataclass(eq=False)
class Trial:
    """One run as callbacks, loggers and stoppers see it. The run updates it; observers read it."""

    PENDING: ClassVar[TrialStatus] = "PENDING"
    RUNNING: ClassVar[TrialStatus] = "RUNNING"
    PAUSED: ClassVar[TrialStatus] = "PAUSED"
    TERMINATED: ClassVar[TrialStatus] = "TERMINATED"
    ERROR: ClassVar[TrialStatus] = "ERROR"

    trial_id: str
    """For example ``4913f_00000``: five hex digits of the experiment and a counter."""
    trainable_name: str
    """The trainer's class name."""
    local_path: str
    """The trial's directory on this machine."""
    experiment_id: str
    experiment_name: str = ""
    experiment_tag: str = "0"
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    """The part of the configuration that a search chose; empty outside a search."""
    resources: dict[str, float] = field(default_factory=dict)
    """What the trial is given while it runs."""
    path: str = ""
    """The trial's directory on its storage; the same as `local_path` unless that is remote."""
    custom_name: str = ""
    """Given by the user in the place of the usual name."""
    status: TrialStatus = "PENDING"
    outcome: Status | None = None
    """How it ended: "finished", "failed", or "interrupted" by Ctrl-C or another signal, so that a restore can continue
    it. It is set before `on_trial_complete` and `on_trial_error` are called, and None until then."""
    checkpoint: Checkpoint | None = None
    error: BaseException | None = field(default=None, repr=False)
    """Why it failed for good."""
    last_result: dict[str, Any] = field(default_factory=dict, repr=False)
    """The newest row; before the first one, what is known of the trial. During a callback's call it is
    still the row before the one handed over."""

    def __post_init__(self) -> None:
        self.path = self.path or self.local_path

    @property
    def logdir(self) -> str:
        return self.local_path

    @property
    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def __str__(self) -> str:
        return self.custom_name or f"{self.trainable_name}_{self.trial_id}"
