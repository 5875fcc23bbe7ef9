"""What tests of runs on remote storage check."""

from __future__ import annotations

from pathlib import Path

from paceline.air import Result
from paceline.testing.invariants import check_checkpoints, check_clean, check_rows


def check(result: Result, iterations: int) -> None:
    """The invariants of a run, but for those of the process: the S3 server of these tests lives in it."""
    assert result.log_dir is not None
    check_checkpoints(result.log_dir, result)
    check_rows(result.log_dir, result, iterations)
    check_clean(result.log_dir, result)


def local_twin(results_dir: Path) -> Path:
    (journal,) = results_dir.glob("*/*/journal.jsonl")
    return journal.parent
