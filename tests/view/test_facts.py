"""The facts of a run that is looked at again and again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paceline.air.errors import RestoreError
from paceline.run.records import AttemptFailed, CheckpointCommitted, Ended, RanksUsed, RankUse
from paceline.storage.record_format import RecordFormat
from paceline.view.facts import RankMemory, run_facts
from paceline.view.last_report import LastReport
from tests.view.journals import STARTED, attempt, failed_validation, header, row, validated, wanted, write


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which journals were read."""
    offsets = []
    real = RecordFormat.scan_on

    def scan_on(self: RecordFormat, journal: Path, offset: int, *, without: str) -> object:  # type: ignore[type-arg]
        offsets.append(offset)
        return real(self, journal, offset, without=without)

    monkeypatch.setattr(RecordFormat, "scan_on", scan_on)
    return offsets


def test_only_what_was_added_is_read(tmp_path: Path, scanned: list[int]) -> None:
    run = write(tmp_path / "run", [header(), attempt(), row(1, {"loss": 1.0})])
    assert len(run_facts(run).attempts) == 1
    size = os.path.getsize(run / "journal.jsonl")
    write(run, [AttemptFailed(attempt=0, message="it broke"), attempt(1), row(2, {"loss": 0.5})])
    facts = run_facts(run)
    assert ([each.attempt for each in facts.attempts], [each.message for each in facts.failures]) == (
        [0, 1],
        ["it broke"],
    )
    write(run, [CheckpointCommitted(number=2, iteration=2), Ended(status="finished", time=STARTED)])
    facts = run_facts(run)
    assert ([each.number for each in facts.checkpoints], facts.summary.status) == ([2], "finished")
    assert run_facts(run) == facts
    assert scanned[:2] == [0, size]
    assert 0 not in scanned[1:]


def test_a_run_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [header("first"), attempt(), attempt(1), row(1, {"loss": 1.0})])
    assert len(run_facts(run).attempts) == 2
    other = write(tmp_path / "other", [header("second"), attempt(), *(row(n, {"loss": 1.0}) for n in range(1, 9))])
    os.replace(other / "journal.jsonl", run / "journal.jsonl")
    assert (run_facts(run).summary.name, len(run_facts(run).attempts)) == ("second", 1)
    content = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(content[:1]))  # the same file, shorter
    assert run_facts(run).attempts == []
    os.unlink(run / "journal.jsonl")
    with pytest.raises(RestoreError):
        run_facts(run)


def test_the_last_report_is_that_of_the_rank_that_failed(tmp_path: Path) -> None:
    first = [row(step, {"loss": 1.0}, rank=rank) for step in (1, 2, 3) for rank in (0, 1)]
    second = [
        row(4, {"loss": 0.4}, attempt=1),
        row(4, {"loss": 0.5}, attempt=1, rank=1),
        row(5, {"loss": 0.3}, attempt=1),
    ]
    failures = [AttemptFailed(attempt=0, rank=0, message="it broke"), AttemptFailed(attempt=1, rank=1, message="again")]
    run = write(tmp_path / "run", [header(), attempt(), *first, failures[0], attempt(1, 3), *second, failures[1]])
    assert run_facts(run).last_report == LastReport(rank=1, iteration=4, metrics={"loss": 0.5})


def test_a_rank_that_failed_before_it_reported_has_no_last_report(tmp_path: Path) -> None:
    failure = AttemptFailed(attempt=0, rank=1, message="it broke")
    run = write(tmp_path / "run", [header(), attempt(), row(1, {"loss": 1.0}), failure])
    assert run_facts(run).last_report is None
    assert run_facts(write(tmp_path / "other", [header(), attempt(), row(1, {"loss": 1.0})])).last_report is None


def test_the_memory_of_ranks_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    """A rank may be gone before the others; earlier versions wrote neither start nor peak."""
    run = write(
        tmp_path / "run",
        [
            header(),
            attempt(),
            RanksUsed(attempt=0, time=1.0, ranks=[RankUse(0, 1.0, 900), RankUse(2, 1.0, 900)]),
            attempt(1),
            RanksUsed(attempt=1, time=2.0, ranks=[RankUse(0, 1.0, 100, 1, 90, 300), RankUse(1, 1.0, 50, 1, 40, 60)]),
            RanksUsed(attempt=1, time=3.0, ranks=[RankUse(0, 1.0, 200, 1, 90, 400)]),
        ],
    )
    assert run_facts(run).memory == [
        RankMemory(rank=0, start=90, peak=400, last=200),
        RankMemory(rank=1, start=40, peak=60, last=50),
    ]
    old = write(tmp_path / "old", [header(), attempt(), RanksUsed(attempt=0, time=1.0, ranks=[RankUse(0, 1.0, 900)])])
    assert run_facts(old).memory == [RankMemory(rank=0, start=0, peak=900, last=900)]


def committed(index: int, **row: float) -> CheckpointCommitted:
    return CheckpointCommitted(number=index, iteration=index, row=row)


def test_validations(tmp_path: Path) -> None:
    records = [header(), attempt()]
    for index in (1, 2, 3, 4):
        records += [row(index, {"loss": 1.0}), wanted(0, index), committed(index, loss=1.0)]
        (tmp_path / f"checkpoint_{index:06d}").mkdir()
        (tmp_path / f"checkpoint_{index:06d}" / "MANIFEST.json").touch()
    records += [validated(0, 1, {"error": 0.5}), failed_validation(0, 2, "ValueError: no")]
    shutil.rmtree(tmp_path / "checkpoint_000004")
    facts = run_facts(write(tmp_path, records))
    assert [(each.number, each.state) for each in facts.validations] == [(1, "done"), (2, "failed"), (3, "pending")]
    assert facts.validations[0].metrics == {"error": 0.5}
    assert facts.validations[1].error == "rank 0: ValueError: no"
    assert facts.checkpoints[0].metrics == {"loss": 1.0, "validation": {"error": 0.5}}
