"""The quick way to read rows gives the same columns as the other, or leaves the rows to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import StorageError
from paceline.run.records import CheckpointCommitted, RanksUsed, RankUse, Record
from paceline.run.timing import StepTimes
from paceline.view import plain_rows
from paceline.view.column_table import ColumnTable
from paceline.view.plain_rows import PlainRows
from paceline.view.row_reader import RowReader
from tests.view.journals import attempt, header, row, write

COUNT = 1_000
"""Rows; enough for the quick way to be tried."""


class Counted(PlainRows):
    """Counts how often the quick way was taken."""

    quick = 0

    def read(self, content: bytes) -> Any:
        found = super().read(content)
        Counted.quick += found is not None
        return found


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.view.row_reader.PlainRows", Counted)
    Counted.quick = 0


def columns(journal: Path, content: bytes) -> dict[str, list[float]]:
    """Read as a header with some rows and then the rest, as a long journal is."""
    reader = RowReader(journal, ColumnTable(1 << 60), ColumnTable(1 << 60))
    lines = content.splitlines(keepends=True)
    offset = 0
    for part in (b"".join(lines[:20]), b"".join(lines[20:])):
        assert reader.read(part, offset) == len(part)
        offset += len(part)
    return {name: values.tolist() for name, values in {**reader.axes.columns(), **reader.metrics.columns()}.items()}


def check(tmp_path: Path, records: Iterable[Record], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways say the same; whether the quick one was taken."""
    journal = write(tmp_path / "run", [header(), attempt(), *records]) / "journal.jsonl"
    content = journal.read_bytes()
    quick = columns(journal, content)
    taken = Counted.quick > 0
    monkeypatch.setattr(plain_rows, "LEAST_BYTES", 1 << 60)
    slow = columns(journal, content)
    assert quick.keys() == slow.keys()
    for name in quick:
        np.testing.assert_array_equal(quick[name], slow[name], name)
    return taken


def usual(index: int) -> dict[str, Any]:
    return {"loss": 1 / index, "step/s": index * 1.5, "count": index, "tiny": 1e-300, "negative": -index}


def test_the_usual_rows_are_read_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(tmp_path, (row(n, usual(n)) for n in range(1, COUNT)), monkeypatch)


def test_metrics_that_some_rows_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(index: int) -> dict[str, Any]:
        return {**usual(index), **({"val_loss": 0.5} if index % 10 == 0 else {})}

    assert check(tmp_path, (row(n, metrics(n)) for n in range(1, COUNT)), monkeypatch)


def test_rows_of_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, {**usual(n), "loss": rank}, rank=rank) for n in range(1, COUNT) for rank in (0, 1))
    assert check(tmp_path, rows, monkeypatch)


def test_rows_of_which_some_have_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, usual(n), times=StepTimes(n, 5 * n, n) if n % 3 else None) for n in range(1, COUNT))
    assert check(tmp_path, rows, monkeypatch)


def used(number: int) -> RanksUsed:
    return RanksUsed(attempt=0, time=number + 0.5, ranks=[RankUse(0, 0.5, 10_000), RankUse(1, 1.0, 20_000, 3)])


def test_what_ranks_use_does_not_interrupt_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (record for n in range(1, COUNT) for record in [*([used(n)] if n % 50 == 1 else []), row(n, usual(n))])
    assert check(tmp_path, rows, monkeypatch)


def test_many_ranks_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, usual(n), rank=rank) for n in range(1, COUNT // 4) for rank in range(8))
    assert not check(tmp_path, rows, monkeypatch)


@pytest.mark.parametrize(
    "odd",
    [
        {"loss": math.nan},
        {"loss": math.inf},
        {"loss": None},
        {"loss": True},
        {"loss": "0.5"},
        {"loss": {"a": 1}},
        {"loss": [1.0]},
        {"loss": 10**400},
        {"new": 1.0},
        {'"{"kind":"row",': 1.0},
        {"text": ' {"kind":"row",'},
    ],
)
def test_one_odd_row_is_read_right(odd: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, {**usual(n), **(odd if n == COUNT // 2 else {})}) for n in range(1, COUNT))
    assert not check(tmp_path, rows, monkeypatch)


def test_the_largest_number_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, {"loss": 1.7976931348623157e308 if n == 500 else 1.0, "more": 1}) for n in range(1, COUNT))
    assert check(tmp_path, rows, monkeypatch)


def test_values_that_were_put_together_over_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, usual(n), reduced={**usual(n), "loss": 7.0} if n == 500 else None) for n in range(1, COUNT))
    assert not check(tmp_path, rows, monkeypatch)


def test_other_records_between_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def records() -> Iterable[Record]:
        for n in range(1, COUNT):
            yield row(n, usual(n))
            if n == 500:
                yield CheckpointCommitted(number=n, iteration=n)
                yield attempt(1, start_index=400)

    assert not check(tmp_path, records(), monkeypatch)


def test_names_that_must_be_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(n, {**usual(n), 'a"quote\\': 1.0}) for n in range(1, COUNT))
    assert not check(tmp_path, rows, monkeypatch)


def test_after_some_misses_it_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_rows, "_MOST_MISSES", 2)
    plain = PlainRows()
    plain.expect(["loss"])
    lines = write(tmp_path / "run", [row(n, {"loss": 0.5}) for n in range(1, COUNT)]) / "journal.jsonl"
    odd = write(tmp_path / "odd", [row(n, {"loss": "text"}) for n in range(1, COUNT)]) / "journal.jsonl"
    assert plain.read(lines.read_bytes()) is not None
    for _ in range(2):
        assert plain.read(odd.read_bytes()) is None
    assert plain.read(lines.read_bytes()) is None


@pytest.mark.parametrize("where", ["checksum", "length", "body"])
def test_a_damaged_row_is_an_error(where: str, tmp_path: Path) -> None:
    rows = (row(n, usual(n)) for n in range(1, COUNT))
    journal = write(tmp_path / "run", [header(), attempt(), *rows]) / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = {
        "checksum": b"z" + lines[500][1:],
        "length": b"0" * 30 + lines[500],
        "body": lines[500].replace(b"1", b"2"),
    }
    lines[500] = damaged[where]
    with pytest.raises(StorageError, match="damaged at byte"):
        columns(journal, b"".join(lines))
