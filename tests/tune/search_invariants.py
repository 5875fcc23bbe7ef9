"""What must hold of an experiment's directory and its results, whatever became of its driver.

As for single runs, the files are read here independently of the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.testing.invariants import check_no_processes, check_run, journal_records, whole_records
from paceline.testing.processes import Process
from paceline.tune import ResultGrid


def experiment_journal(experiment: str | Path) -> Path:
    """The one journal in an experiment's directory."""
    (only,) = Path(experiment).glob("experiment-*.jsonl")
    return only


def experiment_records(experiment: str | Path) -> list[dict[str, Any]]:
    return list(whole_records(experiment_journal(experiment).read_bytes()))


def created_trials(experiment: str | Path) -> dict[str, dict[str, Any]]:
    """What is written down of each trial's creation, by its id."""
    return {record["id"]: record for record in experiment_records(experiment) if record["kind"] == "trial"}


def ended_trials(experiment: str | Path) -> set[str]:
    """The ids of the trials of which an end is written down: by the experiment, or by the trial itself."""
    records = experiment_records(experiment)
    ended = {record["n"] for record in records if record["kind"] == "end"}
    return {
        trial_id
        for trial_id, record in created_trials(experiment).items()
        if record["n"] in ended or _has_ended(Path(experiment) / record["dir"])
    }


def _has_ended(trial_dir: Path) -> bool:
    if not (trial_dir / "journal.jsonl").exists():
        return False
    last = [record for record in journal_records(trial_dir) if record["kind"] in ("attempt", "end")]
    return bool(last) and last[-1]["kind"] == "end" and last[-1]["status"] in ("finished", "failed")


def check_finished(grid: ResultGrid, *, trials: int, iterations: int, processes: Iterable[Process] = ()) -> None:
    """Every trial of the experiment ended well after so many iterations, each once, and left nothing behind."""
    experiment = Path(grid.experiment_path)
    assert not grid.errors, f"trials failed: {grid.errors}"
    assert len(grid) == trials, f"{len(grid)} trials instead of {trials}"
    ends = Counter(record["n"] for record in experiment_records(experiment) if record["kind"] == "end")
    assert ends == Counter(range(trials)), f"the ends that are written down: {dict(ends)}"
    check_no_processes(experiment, processes)
    for result in grid:
        check_run(result.path, result=result, iterations=iterations)
