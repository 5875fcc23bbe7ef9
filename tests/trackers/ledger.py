"""A tracker as somebody else would write it: the service is a directory with a file of lines for each run.

Two files in that directory make trouble: with `down` every call fails, with `hang` calls do not return.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline.trackers import Outcome, TrackedCheckpoint, TrackedRow, TrackedRun, Tracker


class LedgerTracker(Tracker):
    name: ClassVar[str] = "ledger"
    wants_checkpoints = True

    def __init__(self, directory: Path, *, counts: bool = True) -> None:
        self.directory = directory
        self.counts = counts

    @property
    def label(self) -> str:
        return f"the ledger {self.directory.name}"

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        run_id = resume_id or f"ledger-{run.key}"
        self._post(run_id, event="open", name=run.name, config=run.config, group=run.experiment_name, **run.facts)
        return run_id

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        for row in rows:
            facts = {"attempt": row.attempt, "index": row.index, "ordinal": row.ordinal, "time": row.time}
            self._post(run_id, event="row", step=row.step, values=row.numbers(), **facts)

    def close(self, run_id: str, outcome: Outcome) -> None:
        self._post(run_id, event="close", outcome=outcome)

    def received(self, run_id: str) -> int | None:
        rows = [each["ordinal"] for each in lines(self.directory, run_id) if each["event"] == "row"]
        return max(rows, default=-1) + 1 if self.counts else None

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:
        self._post(run_id, event="config", config=config, attempt=attempt)

    def add_checkpoint(self, run_id: str, checkpoint: TrackedCheckpoint) -> None:
        files = sorted(path.name for path in checkpoint.path.iterdir())
        self._post(run_id, event="checkpoint", number=checkpoint.number, files=files)

    def _post(self, run_id: str, **content: Any) -> None:
        while (self.directory / "hang").exists():
            time.sleep(0.01)
        if (self.directory / "down").exists():
            raise ConnectionError(f"nobody answers at http://me:secret@{self.directory.name}")
        self.directory.mkdir(exist_ok=True)
        with open(self.directory / f"{run_id}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def lines(directory: Path, run_id: str) -> list[dict[str, Any]]:
    """What the service has been told about a run, in order."""
    path = directory / f"{run_id}.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def runs(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """By run, what the service has been told."""
    told = {path.stem: lines(directory, path.stem) for path in sorted(directory.glob("*.jsonl"))}
    return {run_id: each for run_id, each in told.items() if each}
