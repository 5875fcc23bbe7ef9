"""Outcomes of trials for tests: rows in memory, and a count of how often a trial's files would have been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.result import Result, Status
from paceline.run.spec import Trial
from paceline.tune.result_grid import Mode, ResultGrid, TrialOutcome


@dataclass
class RowsInMemory:
    kept: list[dict[str, Any]]

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.kept]

    def rank_rows(self) -> list[dict[str, Any]]:
        return []


@dataclass
class Outcomes:
    """Makes the outcomes of one experiment, in order."""

    root: Path = Path("/experiment")
    made: list[TrialOutcome] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    """Trial ids, one per time that a Result was loaded."""

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        config: dict[str, Any] | None = None,
        searched: dict[str, Any] | None = None,
        error: BaseException | None = None,
        checkpoints: Sequence[tuple[Checkpoint, dict[str, Any]]] = (),
    ) -> TrialOutcome:
        trial_id = f"abcde_{len(self.made):05d}"
        status: Status = "finished" if error is None else "failed"
        full = [
            {"training_iteration": number, **row, "trial_id": trial_id, "config": config or {}}
            for number, row in enumerate(rows, start=1)
        ]
        trial = Trial(
            trial_id,
            "train",
            str(self.root / trial_id),
            "abcde",
            config=config or {},
            evaluated_params=searched or {},
            status="TERMINATED" if error is None else "ERROR",
            last_result=full[-1] if full else {},
            checkpoint=checkpoints[-1][0] if checkpoints else None,
        )

        def load() -> Result:
            self.loads.append(trial_id)
            return Result(
                metrics=full[-1] if full else {},
                checkpoint=trial.checkpoint,
                error=error,
                log_dir=Path(trial.local_path),
                best_checkpoints=list(checkpoints),
                status=status,
                _history=RowsInMemory(full),
            )

        outcome = TrialOutcome(trial, trial.last_result, status, error, load)
        self.made.append(outcome)
        return outcome

    def grid(self, metric: str | None = None, mode: Mode | None = None) -> ResultGrid:
        return ResultGrid(self.made, experiment_path=self.root, metric=metric, mode=mode)


def losses(*values: Any) -> list[dict[str, Any]]:
    return [{"loss": value} for value in values]
