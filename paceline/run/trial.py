"""What observers see of a training run: its names, its state and its newest row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.result import Status

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
