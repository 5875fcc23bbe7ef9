"""What the journal of a run says beside its rows, as a tracker is told it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import UnsetType

from paceline.air.constants import TRAINING_ITERATION, VALIDATION
from paceline.run.found_runs import is_run
from paceline.run.records import FORMAT, ROW, AttemptStarted, Header, Row, Validated
from paceline.storage.run_dir import RunDir
from paceline.trackers.cursor import Cursor
from paceline.trackers.tracker import TrackedRow, TrackedRun
from paceline.trackers.values import shown_config


class Story:
    """What the journal said about the run before the rows that are at hand."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.attempts: dict[int, AttemptStarted] = {}

    @classmethod
    def until(cls, journal: Path, cursor: Cursor) -> Story:
        """As far as a cursor has come."""
        story = cls()
        for record in FORMAT.scan(journal, without=ROW) if cursor.offset else ():
            if isinstance(record, Header):
                story.header = record
            elif isinstance(record, AttemptStarted) and record.attempt <= cursor.attempt:
                story.attempts[record.attempt] = record
        return story

    def row(self, record: Row, before: Cursor) -> TrackedRow:
        """A row as it was shown to other observers, without what is the same in all rows."""
        attempt = self.attempts.get(record.attempt)
        metrics = {
            "training_iteration": record.index,
            "time_total_s": record.elapsed + (attempt.start_time_s if attempt is not None else 0.0),
            "time_this_iter_s": record.elapsed - before.elapsed,
            **(record.reduced or record.metrics),
        }
        return TrackedRow(
            attempt=record.attempt, index=record.index, ordinal=before.rows, time=record.stamp, metrics=metrics
        )

    def validation(self, record: Validated, before: Cursor) -> TrackedRow:
        """The metrics of a validation, at the step of the row that they belong to."""
        return TrackedRow(
            attempt=record.attempt,
            index=record.index,
            ordinal=before.rows,
            time=record.time,
            metrics={TRAINING_ITERATION: record.index, **record.counters, VALIDATION: record.metrics},
        )

    def config_of(self, attempt: int) -> Any:
        """The configuration of an attempt as the journal has it; None if it is not plain data."""
        said = [self.attempts[number].config for number in sorted(self.attempts) if number <= attempt]
        known = [config for config in said if not isinstance(config, UnsetType)]
        return known[-1] if known else self.header.settings["config"] if self.header is not None else None

    def run(self, cursor: Cursor, run_dir: RunDir, config: Mapping[str, Any] | None, *, may_exist: bool) -> TrackedRun:
        header = self.header
        assert header is not None  # the first record of every journal
        last = self.attempts[max(self.attempts)] if self.attempts else AttemptStarted(attempt=0)
        # What the tracker knows already, or hears first: changes after that are told one by one.
        known = self.config_of(max(cursor.attempt, min(self.attempts, default=0)))
        return TrackedRun(
            key=f"{header.trial_id}-{header.experiment_id}",
            name=cursor.name or f"{header.trainer}_{header.trial_id}",
            experiment_name=header.experiment_name,
            is_trial=not is_run(header),
            trial_id=header.trial_id,
            experiment_id=header.experiment_id,
            experiment_tag=header.experiment_tag,
            trainer=header.trainer,
            path=str(run_dir.root),
            config=shown_config(known if known is not None else config or {}),
            started=header.time or last.time,
            may_exist=may_exist,
            attempt=last.attempt,
            hostname=last.hostname,
            node_ip=last.node_ip,
            pid=last.pid,
            world_size=last.world_size,
        )
