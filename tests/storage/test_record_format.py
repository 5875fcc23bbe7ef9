"""Reading the records of a journal except those of one kind, which may be most of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.storage import record_format
from paceline.storage.journal import Journal
from paceline.storage.record_format import RecordFormat


class Row(msgspec.Struct, tag_field="kind", tag="row"):
    value: Any = None


class Note(msgspec.Struct, tag_field="kind", tag="note"):
    value: Any = None


FORMAT: RecordFormat[Row | Note] = RecordFormat(Row | Note, 1)
ODD: list[Any] = ['{"kind":"row"', ' {"kind":"row"', {"kind": "row"}, [{"kind": "row", "a": 1}], "\n", "x" * 300]


def records(dice: random.Random) -> list[Row | Note]:
    """Mostly rows, and values that look like other records."""
    share = dice.choice([0.0, 0.02, 0.5])
    values = [dice.choice([1, 2.5, None, *ODD]) for _ in range(dice.choice([0, 5, 300]))]
    return [Note(value) if dice.random() < share else Row(value) for value in values]


@pytest.mark.parametrize("seed", range(30))
def test_scanning_finds_what_reading_finds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(record_format, "_PIECE_BYTES", dice.choice([16, 100, 1000, 1 << 18]))
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for record in records(dice):
        journal.append(record)
    journal.close()
    whole = list(FORMAT.read(path, without="row"))
    assert list(FORMAT.scan(path, without="row")) == whole
    content = path.read_bytes()
    growing, found, offset = tmp_path / "growing.jsonl", list[Row | Note](), 0
    for end in [*sorted(dice.randint(0, len(content)) for _ in range(4)), len(content)]:
        growing.write_bytes(content[:end])  # cut anywhere: whoever comes back gets the rest
        more, offset = FORMAT.scan_on(growing, offset, without="row")
        found += more
        assert content[:offset].endswith(b"\n") or offset == 0
    assert found == whole
    assert offset == len(content)


def test_damaged_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(10):
        journal.append(Note(number) if number % 3 == 0 else Row(number))
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"3}", b"4}")
    lines[4] = b"nothing of the kind\n"
    path.write_bytes(b"".join(lines)[:-5])
    assert list(FORMAT.scan(path, without="row")) == [Note(0), Note(6)]
    assert FORMAT.scan_on(path, 0, without="row") == ([Note(0), Note(6)], sum(map(len, lines[:9])))
