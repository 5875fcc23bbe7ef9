"""How the ranks of a run did lately."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.run.records import RanksUsed, RankUse
from paceline.run.timing import StepTimes
from paceline.view.recent_ranks import recent_ranks
from tests.view.journals import attempt, header, row, write


def test_the_last_rows_of_each_rank(tmp_path: Path) -> None:
    rows = [
        row(index, {"loss": 1.0}, rank=rank, times=StepTimes(2, 1_000 * (rank + 1), 500) if index > 1 else None)
        for index in range(1, 31)
        for rank in (1, 0)
    ]
    used = RanksUsed(attempt=0, time=1.0, ranks=[RankUse(0, 0.5, 1_000), RankUse(1, 1.0, 2_000)])
    path = write(tmp_path / "run", [header(), attempt(), *rows[:40], used, *rows[40:-1]])
    found = recent_ranks(path / "journal.jsonl")
    assert list(found) == [0, 1]
    assert (found[0].last_index, found[1].last_index) == (29, 30)
    assert found[1].times == StepTimes(40, 40_000, 10_000)
    assert found[1].use == RankUse(1, 1.0, 2_000)
    assert found[0].rate is not None
    assert found[0].rate < 0.001  # the run was long ago


def test_only_the_last_attempt_counts(tmp_path: Path) -> None:
    used = RanksUsed(attempt=0, time=1.0, ranks=[RankUse(0, 0.5, 1_000), RankUse(1, 0.5, 1_000)])
    again = [attempt(1), row(1, {}, attempt=1)]
    path = write(tmp_path / "run", [header(), attempt(), row(1, {}, rank=1), row(9, {}), used, *again])
    (rank,) = recent_ranks(path / "journal.jsonl").values()
    assert (rank.last_index, rank.times, rank.use, rank.rate) == (1, None, None, None)


@pytest.mark.parametrize("content", [None, b"", b"nonsense\n"])
def test_a_journal_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "journal.jsonl").write_bytes(content)
    assert recent_ranks(tmp_path / "journal.jsonl") == {}
