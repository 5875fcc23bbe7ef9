"""UserCallback: what newer programs write to look on at a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.run.callbacks import Callback

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.run.spec import Trial

__all__ = ["TrainRunContext", "UserCallback"]


@dataclass(frozen=True)
class TrainRunContext:
    """Which run a UserCallback is called for."""

    run_id: str
    name: str
    """That of the RunConfig."""
    path: str
    """The directory of the run's results."""
    train_loop_config: dict[str, Any] = field(default_factory=dict, repr=False)


class UserCallback(Callback):
    """Override `after_report` or `after_exception`, and list an object of your class in RunConfig(callbacks=[...]).

    Called in the driver, as every callback. The metrics of ranks other than 0 are in `result.rank_metrics`.
    """

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Called for each report, with a list that holds the metrics of rank 0.

        For a report without a checkpoint it is called when the next one arrives, or at the end. With `async_save`,
        `checkpoint` is None.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Called when the run has failed for good, with the exception of each rank that failed."""

    @property
    def _rows(self) -> dict[str, dict[str, Any]]:
        """By trial, the row whose checkpoint, if it has one, is still to be announced. Subclasses may have a
        constructor that does not call this one's."""
        rows: dict[str, dict[str, Any]] = vars(self).setdefault("_undelivered", {})
        return rows

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._deliver(trial)
        self._rows[trial.trial_id] = result

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: Any
    ) -> None:
        self._deliver(trial, checkpoint)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._deliver(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._deliver(trial)
        failures = getattr(trial.error, "failures", ())
        last = [failures[-1].root_cause, *failures[-1].collateral] if failures else []
        exceptions: dict[int, Exception] = {failure.rank: RuntimeError(failure.message) for failure in last}
        cause = getattr(trial.error, "__cause__", None) or trial.error
        if isinstance(cause, Exception):
            exceptions[last[0].rank if last else 0] = cause
        self.after_exception(_context(trial), exceptions)

    def _deliver(self, trial: Trial, checkpoint: Checkpoint | None = None) -> None:
        row = self._rows.pop(trial.trial_id, None)
        if row is not None:
            self.after_report(_context(trial), [row], checkpoint)


def _context(trial: Trial) -> TrainRunContext:
    return TrainRunContext(
        trial.trial_id, trial.experiment_name, trial.path, dict(trial.config.get("train_loop_config") or {})
    )
