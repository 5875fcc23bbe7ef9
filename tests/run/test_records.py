"""The records of a run's journal: what is written, what is read back, and what another version may have written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import RestoreError, StorageError
from paceline.run.records import (
    FORMAT,
    VERSION,
    AttemptFailed,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointRetired,
    Ended,
    Header,
    RanksUsed,
    RankUse,
    Reached,
    Record,
    Row,
    RunRecords,
    last_ending,
)
from paceline.run.timing import StepTimes
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal, read
from paceline.storage.journal_parts import PART_BYTES, JournalParts, RemoteJournal
from paceline.storage.run_dir import RunDir

HEADER = Header(
    trainer="Trainer",
    experiment_name="experiment",
    trial_id="4913f_00000",
    experiment_id="4913f",
    experiment_tag="0",
    settings={"config": {"lr": 1}, "code": None},
)
ATTEMPT = AttemptStarted(attempt=0)
END = Ended(status="finished")


def row(index: int, rank: int = 0, **metrics: Any) -> Row:
    return Row(attempt=0, index=index, rank=rank, stamp=1.5, elapsed=0.5, metrics=metrics)


def journal_of(directory: Path, *records: Any, finite: bool = True) -> Path:
    journal = Journal(RunDir(directory).journal)
    for record in records:
        journal.append(record, finite=finite)
    journal.close()
    return journal.path


EVERY_KIND: list[Record] = [
    HEADER,
    AttemptStarted(attempt=1, start_index=4, checkpoint=2, hostname="host", pid=7, config=None, version=VERSION),
    row(5, loss=0.25, text="\u00e9", nested={"a": [1, None]}),
    Row(attempt=0, index=6, rank=0, stamp=1.0, elapsed=2.0, metrics={"a": 1}, reduced={"a": 1.5}),
    Row(attempt=0, index=7, rank=1, stamp=1.0, elapsed=2.0, metrics={}, times=StepTimes(2, 2500, 400, collective_us=7)),
    RanksUsed(attempt=0, time=2.5, ranks=[RankUse(0, 0.5, 10_000), RankUse(1, 1.25, 20_000, 3)]),
    CheckpointCommitted(number=3, iteration=5, attempt=1, score=0.5, size=10, row={"loss": 0.25}),
    CheckpointRetired(number=2),
    CheckpointRetired(number=1, reason="damaged"),
    AttemptFailed(attempt=1, rank=3, cause="exception", message="ValueError: x", traceback="Traceback"),
    Ended(status="failed", message="x", time=3.5),
    Ended(status="finished", reached=Reached(iteration=3, metrics={"a": 1}, checkpoints=[1])),
]


@pytest.mark.parametrize("finite", [True, False])
def test_records_come_back_as_they_were(tmp_path: Path, finite: bool) -> None:
    assert list(FORMAT.read(journal_of(tmp_path, *EVERY_KIND, finite=finite))) == EVERY_KIND


def test_both_ways_of_writing_are_the_same_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    fast = journal_of(tmp_path, *EVERY_KIND)
    slow = journal_of(tmp_path / "other", *EVERY_KIND, finite=False)
    assert list(read(fast)) == list(read(slow))
    assert [list(record) for record in read(fast)] == [list(record) for record in read(slow)]


def test_what_is_in_the_file(tmp_path: Path) -> None:
    assert list(read(journal_of(tmp_path, ATTEMPT, row(1, loss=1), CheckpointRetired(number=4)))) == [
        {
            "kind": "attempt", "attempt": 0, "start_index": 0, "start_time_s": 0.0, "checkpoint": None, "world_size": 1,
            "time": 0.0, "warmup_time": 0.0, "hostname": "", "node_ip": "", "pid": 0,
        },
        {"kind": "row", "attempt": 0, "index": 1, "rank": 0, "stamp": 1.5, "elapsed": 0.5, "metrics": {"loss": 1}},
        {"kind": "delete", "number": 4},
    ]  # fmt: skip


def test_values_that_json_does_not_have(tmp_path: Path) -> None:
    odd = {"nan": math.nan, "inf": -math.inf, "large": 2**70, "name": "\udcff"}
    (found,) = FORMAT.read(journal_of(tmp_path, row(1, **odd), finite=False))
    assert isinstance(found, Row)
    assert math.isnan(found.metrics.pop("nan"))
    del odd["nan"]
    assert found.metrics == odd


# -- other versions ---------------------------------------------------------------------------


@pytest.mark.parametrize("sky", ["blue", math.inf])
def test_unknown_kinds_and_fields_are_passed_over_and_stay(tmp_path: Path, sky: Any) -> None:
    later = {"kind": "weather", "sky": sky}
    more = {"kind": "row", "attempt": 0, "index": 1, "rank": 0, "stamp": 1.5, "elapsed": 0.5, "metrics": {}, "mood": 1}
    path = journal_of(tmp_path, HEADER, later, more, finite=False)
    before = path.read_bytes()
    assert list(FORMAT.read(path)) == [HEADER, row(1)]
    journal_of(tmp_path, END)  # continued
    assert path.read_bytes().startswith(before)
    assert list(read(path))[1:3] == [later, more]


@pytest.mark.parametrize("kind", ["run", "attempt", "weather"])
def test_a_newer_version_is_rejected(tmp_path: Path, kind: str) -> None:
    """Even if its records look otherwise."""
    path = journal_of(tmp_path, {"kind": kind, "version": VERSION + 1, "attempt": 0})
    with pytest.raises(RestoreError, match=r"newer version of paceline.*upgrade"):
        list(FORMAT.read(path))


@pytest.mark.parametrize("number", ["../../x", "1", -1, 1.5, None, True])
def test_a_checkpoints_number_that_cannot_be_one_is_rejected(tmp_path: Path, number: Any) -> None:
    """The files may come from anywhere."""
    journal_of(tmp_path, HEADER, {"kind": "delete", "number": number})
    with pytest.raises(RestoreError, match=r"journal\.jsonl has an invalid 'delete' record: .*number"):
        RunRecords.read(RunDir(tmp_path))


@pytest.mark.parametrize("body", [b"[NaN]", b'{"kind":["run"],"x":NaN}', b'{"kind":', b"\xff"])
def test_a_record_that_does_not_say_its_kind_is_rejected(tmp_path: Path, body: bytes) -> None:
    journal = Journal(RunDir(tmp_path).journal)
    journal.append_raw(body)
    journal.close()
    with pytest.raises(RestoreError, match=r"journal\.jsonl has an invalid record: "):
        list(FORMAT.read(journal.path))


# -- the state of a run -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "ended"),
    [
        ([], None),
        ([ATTEMPT], None),
        ([ATTEMPT, row(1), END], "finished"),
        ([ATTEMPT, END, ATTEMPT, row(1)], None),
        ([ATTEMPT, Ended(status="failed", reached=Reached(checkpoints=list(range(60_000))))], "failed"),
        ([ATTEMPT, AttemptFailed(attempt=0), ATTEMPT, END, CheckpointRetired(number=0)], "finished"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, records: list[Record], ended: str | None) -> None:
    run_dir = RunDir(tmp_path)
    journal_of(tmp_path, HEADER, *records)
    assert RunRecords.read(run_dir).ended_as == ended
    assert last_ending(run_dir) == ended


def test_a_journal_that_does_not_begin_with_a_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with pytest.raises(RestoreError, match=r"no journal\.jsonl"):
        RunRecords.read(run_dir)
    journal_of(tmp_path, ATTEMPT)
    with pytest.raises(RestoreError, match=r"journal\.jsonl.*begin"):
        RunRecords.read(run_dir)


def test_what_the_last_attempt_said_counts(tmp_path: Path) -> None:
    journal_of(tmp_path, HEADER, ATTEMPT)
    records = RunRecords.read(RunDir(tmp_path))
    assert (records.config, records.code, records.attempts) == ({"lr": 1}, None, 1)
    journal_of(tmp_path, AttemptStarted(attempt=1, config={"lr": 2}, code={"f": "1"}), AttemptStarted(attempt=2))
    records = RunRecords.read(RunDir(tmp_path))
    assert (records.config, records.code, records.attempts) == ({"lr": 2}, {"f": "1"}, 3)


# -- following --------------------------------------------------------------------------------


def test_following_a_journal_that_grows(tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path).journal)
    assert FORMAT.follow(journal.path) == ([], 0)
    journal.append(HEADER)
    journal.append(row(1))
    journal.flush()
    records, offset = FORMAT.follow(journal.path)
    assert records == [HEADER, row(1)]
    assert FORMAT.follow(journal.path, offset) == ([], offset)
    journal.append(row(2))
    journal.flush()
    records, end = FORMAT.follow(journal.path, offset)
    assert records == [row(2)]
    assert end == journal.path.stat().st_size
    journal.close()


def test_a_torn_tail_is_left_to_the_next_call(tmp_path: Path) -> None:
    path = journal_of(tmp_path, HEADER, row(1))
    whole = path.read_bytes()
    first = len(whole.splitlines(keepends=True)[0])
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert FORMAT.follow(path) == ([HEADER], first)
    path.write_bytes(whole)
    assert FORMAT.follow(path, first) == ([row(1)], len(whole))


def test_a_journal_that_was_shortened_is_noticed(tmp_path: Path) -> None:
    path = journal_of(tmp_path, HEADER)
    with pytest.raises(StorageError, match="shortened"):
        FORMAT.follow(path, path.stat().st_size + 1)


def test_following_a_run_on_remote_storage(tmp_path: Path) -> None:
    store = FsspecFilesystem((tmp_path / "store").as_uri())
    journal = Journal(tmp_path / "journal.jsonl")
    parts, remote = JournalParts(store, journal.path), RemoteJournal(store, "journal.jsonl")
    offset, seen = 0, list[Record]()
    written: list[Record] = [HEADER, *(row(index, text="\u00e9" * 20_000) for index in range(1, 30))]
    for record in written:
        journal.append(record)
        journal.flush()
        parts.push()
        new, offset = FORMAT.follow(remote, offset)
        assert new == [record]
        seen += new
    journal.close()
    assert seen == written
    assert offset == journal.path.stat().st_size > 4 * PART_BYTES
    assert FORMAT.follow(remote) == (written, offset)
    assert FORMAT.follow(remote, offset) == ([], offset)


def test_following_what_an_earlier_version_uploaded_whole(tmp_path: Path) -> None:
    store = FsspecFilesystem((tmp_path / "store").as_uri())
    written: list[Record] = [HEADER, *(row(index, text="x" * 20_000) for index in range(1, 30))]
    path = journal_of(tmp_path, *written)
    store.upload(path, "journal.jsonl")
    records, offset = FORMAT.follow(RemoteJournal(store, "journal.jsonl"))
    assert (records, offset) == (written, path.stat().st_size)
    journal_of(tmp_path, END)
    store.upload(path, "journal.jsonl")
    assert FORMAT.follow(RemoteJournal(store, "journal.jsonl"), offset)[0] == [END]
