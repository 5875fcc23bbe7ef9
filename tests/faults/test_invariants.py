"""The checker that every fault test ends with finds what it is there for."""

from __future__ import annotations

import dataclasses
import json

import pytest

from paceline.air.errors import TrainingFailedError
from paceline.testing.invariants import CANARY, check_run
from tests.faults.laboratory import Laboratory


@pytest.mark.parametrize("lost", [1, 2, 3], ids=["first", "middle", "last"])
def test_a_row_that_the_journal_lost_is_found(lab: Laboratory, lost: int) -> None:
    """I3: the journal is looked at row by row, whatever the result says."""
    result = lab.succeed(lab.plan(iterations=3))
    assert result.metrics_dataframe is not None  # which is read from the journal, once
    journal = lab.trial_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    records = [json.loads(line.split(b" ", 2)[2]) for line in lines]
    is_lost = [record["kind"] == "row" and (record["rank"], record["index"]) == (0, lost) for record in records]
    journal.write_bytes(b"".join(line for line, left_out in zip(lines, is_lost, strict=True) if not left_out))
    with pytest.raises(AssertionError, match=rf"the journal has 2 surviving rows.* differ in \[{lost}\]"):
        check_run(lab.trial_dir, result=result)


def test_a_second_cause_is_found(lab: Laboratory) -> None:
    """I4: what failed besides the cause is listed as its consequence, and no rank is listed twice."""

    def loop() -> None:
        raise ValueError("no")

    error = lab.failure_of(loop, workers=1)
    cause = {"rank": 0, "kind": "exception"}
    check_run(lab.trial_dir, error=error, cause=cause)
    (failure,) = error.failures
    root = failure.root_cause
    for other, problem in [
        (dataclasses.replace(root, collateral=True), "rank 0 failed, and as a consequence"),
        (dataclasses.replace(root, rank=1), "not marked as a consequence"),
    ]:
        wrong = TrainingFailedError(
            str(error), failures=(dataclasses.replace(failure, collateral=(other,)),), result=error.result
        )
        assert error.result is not None
        error.result.error = wrong
        with pytest.raises(AssertionError, match=problem):
            check_run(lab.trial_dir, error=wrong, cause=cause)


def test_bytes_that_belong_to_nothing_are_found(lab: Laboratory) -> None:
    """I7: a file that no run has may weigh a megabyte, not two."""
    result = lab.succeed(lab.plan(iterations=2))
    stranger = lab.trial_dir / "spill" / "chunk.bin"
    stranger.parent.mkdir()
    stranger.write_bytes(bytes(1 << 19))
    check_run(lab.trial_dir, result=result)
    stranger.write_bytes(bytes(1 << 21))
    with pytest.raises(AssertionError, match=r"belong to nothing: spill/chunk\.bin \(2,097,152 bytes\)"):
        check_run(lab.trial_dir, result=result)


@pytest.mark.parametrize("place", ["journal.jsonl", "logs/rank_0.log", "checkpoint_000001/state.json"])
def test_a_secret_in_any_file_is_found(lab: Laboratory, place: str) -> None:
    """I8: wherever it is, and also across the pieces in which a file is read."""
    lab.succeed(lab.plan(iterations=2))
    path = lab.trial_dir / place
    content = path.read_bytes()
    path.write_bytes(content + bytes((1 << 20) - len(content) - 5) + CANARY.encode())
    with pytest.raises(AssertionError, match=r"has the secret|has another size"):
        check_run(lab.trial_dir)


def test_a_secret_in_the_error_is_found(lab: Laboratory) -> None:
    """I8: in what the error says, too."""

    def loop() -> None:
        raise ValueError("cannot log in with pass" + "word-1")

    error = lab.failure_of(loop)
    with pytest.raises(AssertionError, match=r"has the secret|tells the secret"):
        check_run(lab.trial_dir, error=error, secrets=["password-1"])
