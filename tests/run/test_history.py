"""Which rows of a journal survive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Result
from paceline.air.errors import RestoreError
from paceline.run.history import JournalHistory, load_result
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir

RUN = {
    "kind": "run",
    "trainer": "Trainer",
    "experiment_name": "experiment",
    "trial_id": "4913f_00000",
    "experiment_id": "4913f",
    "experiment_tag": "0",
    "settings": {
        "config": {"train_loop_config": {"lr": 1}},
        "num_to_keep": None,
        "checkpoint_score_attribute": None,
        "checkpoint_score_order": "max",
    },
}


def attempt(number: int, start: int = 0, size: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "kind": "attempt", "attempt": number, "start_index": start, "start_time_s": 10.0 * start, "world_size": size,
        "hostname": "host", "node_ip": "10.0.0.1", "pid": 100 + number, "warmup_time": 0.1, "time": 0.0, **facts,
    }  # fmt: skip


def row(index: int, rank: int = 0, attempt: int = 0, **facts: Any) -> dict[str, Any]:
    return {
        "kind": "row", "attempt": attempt, "index": index, "rank": rank, "stamp": 1000.0 + index, "elapsed": 1.0,
        "metrics": {"n": index, "of": f"attempt {attempt} rank {rank}"}, **facts,
    }  # fmt: skip


def write(directory: Path, *records: dict[str, Any]) -> RunDir:
    directory.mkdir(exist_ok=True)
    run_dir = RunDir(directory)
    journal = Journal(run_dir.journal)
    for record in (RUN, *records):
        journal.append(record, finite=False)
    journal.close()
    return run_dir


RETRIED = [
    attempt(0),
    *(row(index, rank) for index in (1, 2, 3, 4) for rank in (0, 1)),
    row(5, 1),  # rank 1 was ahead
    attempt(1, start=2),
    *(row(index, rank, attempt=1) for index in (3, 4) for rank in (0, 1)),
]


def test_rows_after_the_checkpoint_that_a_retry_began_from_are_superseded(tmp_path: Path) -> None:
    history = JournalHistory(write(tmp_path, *RETRIED).journal)
    rows = list(history.rows())
    assert [each["training_iteration"] for each in rows] == [1, 2, 3, 4]
    assert [each["of"] for each in rows] == ["attempt 0 rank 0"] * 2 + ["attempt 1 rank 0"] * 2
    assert [each["iterations_since_restore"] for each in rows] == [1, 2, 1, 2]
    assert [each["pid"] for each in rows] == [100, 100, 101, 101]
    assert [each["n"] for each in history.rows_from(3)] == [4]


def test_ranks_have_rows_of_their_own(tmp_path: Path) -> None:
    history = JournalHistory(write(tmp_path, *RETRIED).journal)
    assert history.last_rank_metrics() == {
        0: {"n": 4, "of": "attempt 1 rank 0"},
        1: {"n": 4, "of": "attempt 1 rank 1"},
    }
    assert [(each["training_iteration"], each["rank"]) for each in history.rank_rows()] == [
        (index, rank) for index in (1, 2, 3, 4) for rank in (0, 1)
    ]


def test_a_retry_from_nothing_begins_anew(tmp_path: Path) -> None:
    history = JournalHistory(write(tmp_path, attempt(0), row(1), row(2), attempt(1), row(1, attempt=1)).journal)
    assert [each["of"] for each in history.rows()] == ["attempt 1 rank 0"]


def test_ranks_that_the_last_attempt_did_not_have_are_not_among_the_last(tmp_path: Path) -> None:
    records = [attempt(0, size=3), *(row(1, rank) for rank in range(3)), attempt(1, start=1, size=1), row(2, attempt=1)]
    history = JournalHistory(write(tmp_path, *records).journal)
    assert list(history.last_rank_metrics()) == [0]
    assert len(history.rank_rows()) == 4


def test_reduced_values_are_the_row_and_each_rank_keeps_its_own(tmp_path: Path) -> None:
    record = row(1)
    record["reduced"] = {"n": 0.5}
    history = JournalHistory(write(tmp_path, attempt(0), record, row(1, 1)).journal)
    assert next(history.rows())["n"] == 0.5
    assert history.rank_rows()[0]["n"] == 1


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    record = row(1, metrics={"loss": float("nan"), "best": float("-inf")})
    (found,) = JournalHistory(write(tmp_path, attempt(0), record).journal).rows()
    assert found["loss"] != found["loss"]
    assert found["best"] == float("-inf")


def test_an_attempt_may_have_had_another_config(tmp_path: Path) -> None:
    other = attempt(1, start=1, config={"train_loop_config": {"lr": 2}})
    rows = JournalHistory(write(tmp_path, attempt(0), row(1), other, row(2, attempt=1)).journal).rows()
    assert [each["config"]["train_loop_config"]["lr"] for each in rows] == [1, 2]


@pytest.mark.parametrize(
    ("ends", "status", "done"),
    [
        ([], "unfinished", False),
        ([{"kind": "end", "status": "finished", "message": ""}], "finished", True),
        ([{"kind": "end", "status": "interrupted", "message": ""}], "interrupted", True),
        ([{"kind": "end", "status": "failed", "message": "Training failed: why"}], "failed", True),
    ],
)
def test_the_result_of_a_directory(tmp_path: Path, ends: list[dict[str, Any]], status: str, done: bool) -> None:
    write(tmp_path / "trial", attempt(0), row(1), *ends)
    for path in (tmp_path / "trial", tmp_path):
        result = load_result(path)
        assert (result.status, result.metrics["done"], result.attempts) == (status, done, 1)
        assert result.path == str(tmp_path / "trial")
        assert (str(result.error) if result.error else None) == ("Training failed: why" if status == "failed" else None)
        assert result.checkpoint is None


def test_a_run_that_was_taken_up_again_after_its_end_is_unfinished(tmp_path: Path) -> None:
    end = {"kind": "end", "status": "failed", "message": "why"}
    write(tmp_path, attempt(0), row(1), end, attempt(1, start=1))
    result = Result.from_path(tmp_path)
    assert (result.status, result.error, result.attempts) == ("unfinished", None, 2)
    assert result.metrics["done"] is False


def test_the_newest_trial_of_an_experiment(tmp_path: Path) -> None:
    for name, age in (("old", 100), ("new", 0), ("older", 200)):
        run_dir = write(tmp_path / name, attempt(0), row(1))
        os.utime(run_dir.journal, (1_000_000 - age, 1_000_000 - age))
    assert load_result(tmp_path).path == str(tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"something else\n"])
def test_what_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises((RestoreError, OSError)):
        load_result(tmp_path)
