"""The columns of a run, compared with its history row by row."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from paceline.air.errors import RestoreError, StorageError
from paceline.run.history import surviving_rows
from paceline.run.records import CheckpointCommitted, Ended, Header, Record
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import JournalParts
from paceline.view import column_cache, plain_rows, series
from paceline.view.decimate import ema
from paceline.view.row_reader import RowReader
from paceline.view.series import RunSeries
from tests.view.journals import STARTED, attempt, header, row, validated, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value) if abs(value) < 1e308 else math.inf


def check(curves: RunSeries, path: Path, names: list[str]) -> None:
    """The columns say what the surviving rows say."""
    rows = list(surviving_rows(path / "journal.jsonl"))
    assert curves.rows == len(rows)
    assert curves.steps().tolist() == [index for index, _ in rows]
    np.testing.assert_allclose(curves.elapsed(), [each["time_total_s"] for _, each in rows])
    assert [int(each) for each in curves.times()] == [each["timestamp"] for _, each in rows]
    found = [dict(numbers({name: each[name] for name in names if name in each})) for _, each in rows]
    expected = {name for each in found for name in each}
    assert expected <= set(curves.metrics())
    for name in expected:
        np.testing.assert_array_equal(curves.column(name), [each.get(name, math.nan) for each in found], name)


NAMES = ["loss", "accuracy", "text", "flag", "nested", "often", 'odd"key\\', "x:NaN,y", "nothing", "validation"]


def random_metrics(dice: random.Random) -> dict[str, Any]:
    every = {
        "loss": dice.choice([dice.random(), math.nan, math.inf, -math.inf, 1e307, 3, 10**400]),
        "accuracy": dice.choice([dice.random(), None]),
        "text": "2.5",
        "flag": dice.choice([True, False]),
        "nested": dice.choice([{"a": dice.random(), "b": {"c": 1, "d": "no"}}, {"a": 2**63, "e": math.nan}, 5, {}]),
        "often": dice.choice([1, 2.5, True, "text", None, [1.0], math.nan]),
        'odd"key\\': dice.random(),
        "x:NaN,y": dice.choice([1.0, math.inf]),
        "nothing": None,
    }
    return {name: value for name, value in every.items() if dice.random() < 0.8}


def random_records(dice: random.Random) -> Iterator[Record]:
    """A run with retries, several ranks, reduced values, checkpoints, and validations that come late."""
    yield header()
    reached = 0
    unvalidated: list[tuple[int, int]] = []
    for number in range(dice.randint(1, 4)):
        start = dice.randint(0, reached)
        yield attempt(number, start, start_time_s=10.0 * start)
        reached = start + dice.randint(0, 40)
        for index in range(start + 1, reached + 1):
            for rank in range(dice.choice([1, 2])):
                metrics = random_metrics(dice)
                reduced = {**metrics, "loss": 0.5} if rank == 0 and dice.random() < 0.1 else None
                yield row(index, metrics, attempt=number, rank=rank, reduced=reduced)
            if dice.random() < 0.1:
                yield CheckpointCommitted(number=index, iteration=index, row={"rank": 0, **random_metrics(dice)})
                unvalidated.append((number, index))
            if unvalidated and dice.random() < 0.1:
                asked, about = unvalidated.pop(dice.randrange(len(unvalidated)))
                yield validated(asked, about, random_metrics(dice))
    yield Ended(status="finished", time=STARTED)


@pytest.mark.parametrize("seed", range(40))
def test_random_runs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at once, and read as they grow: in chunks that cut lines anywhere."""
    dice = random.Random(seed)
    monkeypatch.setattr(series, "CHUNK_BYTES", dice.choice([64, 1000, 4 << 20]))
    monkeypatch.setattr(plain_rows, "LEAST_BYTES", dice.choice([0, 64 << 10]))
    monkeypatch.setattr(plain_rows, "_MOST_MISSES", 1_000_000)
    run = write(tmp_path / "run", random_records(dice))
    at_once = RunSeries(run)
    at_once.refresh()
    check(at_once, run, NAMES)

    content, growing = (run / "journal.jsonl").read_bytes(), tmp_path / "growing"
    growing.mkdir()
    bit_by_bit = RunSeries(growing)
    end = 0
    while end < len(content):
        end = min(end + dice.randint(1, len(content) // 5 + 1), len(content))
        with open(growing / "journal.jsonl", "wb" if end == 0 else "ab") as file:
            file.write(content[file.tell() : end])
        bit_by_bit.refresh()
    check(bit_by_bit, growing, NAMES)
    assert bit_by_bit.generation == at_once.generation


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_are_mostly_alike(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all rows of a real run are; a few are different in one way or another."""
    dice = random.Random(seed)
    monkeypatch.setattr(plain_rows, "LEAST_BYTES", dice.choice([0, 5_000]))
    monkeypatch.setattr(series, "CHUNK_BYTES", dice.choice([1000, 10_000, 4 << 20]))
    names = ["loss", "accuracy", 'odd "key', "a:b", "ümlaut"][: dice.randint(1, 5)]
    odd = [
        {"extra": 1.0}, {"loss": None}, {"loss": True}, {"loss": math.nan}, {"loss": "1.5"}, {"loss": {"a": 1}},
        {"rank": 0}, {"loss": -1e-300}, {"loss": 10**30}, {"loss": [1]}, {"text": 'x":1,"y'},
    ]  # fmt: skip
    records: list[Record] = [header(), attempt()]
    for index in range(1, dice.choice([3, 100, 400])):
        metrics: dict[str, Any] = {name: dice.choice([dice.random(), dice.randint(-5, 5), 1e-7]) for name in names}
        if dice.random() < dice.choice([0.0, 0.02]):
            metrics |= dice.choice(odd)
        records += [row(index, metrics, rank=rank) for rank in range(dice.choice([1, 1, 2]))]
    run = write(tmp_path, records)
    curves = RunSeries(run)
    curves.refresh()
    check(curves, run, [*names, "extra", "loss", "rank", "text"])


def test_text_flags_and_nothing_are_not_metrics(tmp_path: Path) -> None:
    metrics = {"loss": 1.0, "text": "2", "flag": True, "list": [1, 2], "none": None, "deep": {"er": 1, "text": "x"}}
    curves = RunSeries(write(tmp_path, [header(), attempt(), row(1, metrics)]))
    assert curves.refresh() == 1
    assert curves.metrics() == ["loss", "deep/er"]
    with pytest.raises(KeyError):
        curves.column("text")


def test_a_retry_rewinds(tmp_path: Path) -> None:
    write(tmp_path, [header(), attempt(), *(row(index, {"loss": 1.0}) for index in range(1, 11))])
    curves = RunSeries(tmp_path)
    assert curves.refresh() == 10
    before, generation = curves.column("loss"), curves.generation
    smooth_before = curves.smoothed("loss", 0.5)
    write(tmp_path, [attempt(1, start_index=6), *(row(index, {"loss": 2.0}, attempt=1) for index in range(7, 9))])
    assert curves.refresh() == 8
    assert curves.generation == generation + 1
    assert curves.column("loss").tolist() == [1.0] * 6 + [2.0] * 2
    np.testing.assert_allclose(curves.smoothed("loss", 0.5), ema(curves.column("loss"), 0.5))
    assert before.tolist() == [1.0] * 10, "what was handed out does not change"
    assert smooth_before.size == 10
    write(tmp_path, [attempt(2, start_index=8), row(9, {"loss": 3.0}, attempt=2)])
    assert curves.refresh() == 9
    assert curves.generation == generation + 1, "an attempt that repeats nothing is no rewind"


def test_smoothing_follows(tmp_path: Path) -> None:
    write(tmp_path, [header(), attempt()])
    curves = RunSeries(tmp_path)
    for start in range(0, 500, 50):
        write(tmp_path, [row(index, {"loss": math.sin(index)}) for index in range(start + 1, start + 51)])
        curves.refresh()
        np.testing.assert_allclose(curves.smoothed("loss", 0.9), ema(curves.column("loss"), 0.9))


def test_no_run_and_no_rows(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="holds no run"):
        RunSeries(tmp_path).refresh()
    (tmp_path / "journal.jsonl").touch()
    curves = RunSeries(tmp_path)
    assert (curves.refresh(), curves.metrics(), curves.steps().size) == (0, [], 0)


def test_a_torn_end_waits_for_its_rest(tmp_path: Path) -> None:
    journal = write(tmp_path, [header(), attempt(), row(1, {"a": 1}), row(2, {"a": 2})]) / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    curves = RunSeries(tmp_path)
    assert curves.refresh() == 1
    with open(journal, "ab") as file:
        file.write(whole[-5:])
    assert curves.refresh() == 2
    journal.write_bytes(whole[:-5] + b"xxxx\n")  # cut and overwritten, not only unfinished
    torn = RunSeries(tmp_path)
    assert torn.refresh() == torn.refresh() == 1


def test_damage_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [header(), attempt(), *(row(index, {"a": index}) for index in range(1, 101))]
    journal = write(tmp_path, records) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"a":50', b'"a":51', 1))
    for size in (4 << 20, 300):
        monkeypatch.setattr(series, "CHUNK_BYTES", size)
        with pytest.raises(StorageError, match="damaged at byte"):
            RunSeries(tmp_path).refresh()


def test_a_newer_version_is_rejected(tmp_path: Path) -> None:
    new = header()
    new.version = 99
    with pytest.raises(RestoreError, match="newer version"):
        RunSeries(write(tmp_path, [new])).refresh()


def test_records_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "CHUNK_BYTES", 100)
    records = [header(config={"long": "x" * 5000}), attempt(), row(1, {"a": 1, "text": "y" * 3000}), row(2, {"a": 2})]
    curves = RunSeries(write(tmp_path, records))
    assert curves.refresh() == 2


def test_another_file_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, [header(), attempt(), *(row(index, {"a": 1}) for index in range(1, 6))])
    curves = RunSeries(tmp_path)
    assert curves.refresh() == 5
    os.rename(tmp_path / "journal.jsonl", tmp_path / "old")
    write(tmp_path, [header(), attempt(), *(row(index, {"b": 2}) for index in range(1, 20))])
    generation = curves.generation
    assert curves.refresh() == 19
    assert curves.metrics() == ["b"]
    assert curves.generation > generation


def test_metrics_without_room_are_read_when_asked_for(tmp_path: Path) -> None:
    names = [f"metric{number}" for number in range(20)]
    rows = [row(index, {name: index * place for place, name in enumerate(names)}) for index in range(1, 101)]
    write(tmp_path, [header(), attempt(), *rows])
    curves = RunSeries(tmp_path, most_bytes=8 * 100 * 5)
    curves.refresh()
    assert curves.metrics() == names
    assert curves.nbytes < 8 * 100 * 12
    for place, name in enumerate(names):
        assert curves.column(name).tolist() == [index * place for index in range(1, 101)]
    write(tmp_path, [row(101, {names[-1]: -1.0})])
    curves.refresh()
    assert curves.column(names[-1])[-1] == -1.0


def test_a_run_on_remote_storage(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    parts = JournalParts(FsspecFilesystem("memory://bucket/run"), tmp_path / "journal.jsonl")
    curves = RunSeries("memory://bucket/run")
    try:
        with pytest.raises(FileNotFoundError):
            curves.refresh()
        write(tmp_path, [header(), attempt(), *(row(index, {"a": index}) for index in range(1, 5001))])
        parts.push()
        assert curves.refresh() == 5000
        write(tmp_path, [row(5001, {"a": 0.5})])
        parts.push()
        assert curves.refresh() == 5001
        assert curves.column("a")[-1] == 0.5
    finally:
        memory.rm("/bucket", recursive=True)


class TestCache:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(series, "_WORTH_CACHING", 50)

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        records = [header(), attempt(0, 0, 5.0), *(row(i, {"a": i, "b": {"c": math.nan}}) for i in range(1, 101))]
        return write(tmp_path / "run", records)

    @pytest.fixture
    def bytes_read(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        sizes: list[int] = []
        read = RowReader.read

        def counting(reader: RowReader, content: bytes, *rest: Any) -> int:
            sizes.append(len(content))
            return read(reader, content, *rest)

        monkeypatch.setattr(RowReader, "read", counting)
        return sizes

    def test_the_journal_is_read_once(self, run: Path, bytes_read: list[int], own_cache: Path) -> None:
        before = sorted(os.listdir(run))
        assert RunSeries(run).refresh() == 100
        bytes_read.clear()
        again = RunSeries(run)
        assert again.refresh() == 100
        assert bytes_read == []
        check(again, run, ["a", "b"])
        write(run, [row(101, {"a": -1.0, "new": 1})])
        assert again.refresh() == 101
        check(again, run, ["a", "b", "new"])
        assert sorted(os.listdir(run)) == before, "nothing is left in the run's directory"
        (file,) = own_cache.rglob("*.columns")
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.parent.stat().st_mode & 0o777 == 0o700

    def test_a_retry_after_what_is_cached(self, run: Path) -> None:
        RunSeries(run).refresh()
        write(run, [attempt(1, 90, 7.0), row(91, {"a": 0.0}, attempt=1)])
        again = RunSeries(run)
        assert again.refresh() == 91
        check(again, run, ["a", "b"])

    def test_a_journal_that_was_replaced(self, run: Path, bytes_read: list[int]) -> None:
        RunSeries(run).refresh()
        journal = run / "journal.jsonl"
        content = journal.read_bytes()
        journal.unlink()
        write(run, [header(), attempt(), *(row(index, {"z": 1}) for index in range(1, 200))])
        curves = RunSeries(run)
        assert curves.refresh() == 199
        assert curves.metrics() == ["z"]
        journal.write_bytes(content[: len(content) // 2])
        assert RunSeries(run).refresh() < 100

    @pytest.mark.parametrize("damage", ["flip", "cut", "garbage", "version", "longer"])
    def test_a_damaged_cache_is_not_used(self, run: Path, own_cache: Path, damage: str) -> None:
        RunSeries(run).refresh()
        (file,) = own_cache.rglob("*.columns")
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[-100] ^= 1
        elif damage == "cut":
            del content[-8:]
        elif damage == "garbage":
            content[:] = os.urandom(64)
        elif damage == "version":
            content = content.replace(b'"version":1', b'"version":9')
        else:
            content += b"12345678"
        file.write_bytes(content)
        curves = RunSeries(run)
        assert curves.refresh() == 100
        check(curves, run, ["a", "b"])

    def test_nowhere_to_write(self, run: Path, own_cache: Path) -> None:
        own_cache.write_text("a file is in the way")
        assert RunSeries(run).refresh() == 100

    def test_it_is_bounded(self, run: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = [Path(shutil.copytree(run, tmp_path / f"run{number}")) for number in range(4)]
        monkeypatch.setattr(column_cache, "MOST_BYTES", 100 * 5 * 8 * 5 // 2)  # room for two
        seen: list[Path] = []
        for number, each in enumerate(runs):
            RunSeries(each).refresh()
            (new,) = set(own_cache.rglob("*.columns")) - set(seen)
            os.utime(new, (number, number))
            seen.append(new)
        assert [file.exists() for file in seen] == [False, False, True, True], "what was not used for longest goes"


def test_a_journal_that_begins_anew(tmp_path: Path) -> None:
    """A second header supersedes everything, as it does in the history."""
    second: Header = header()
    records = [header(), attempt(), row(1, {"a": 1}), second, attempt(), row(1, {"a": 2})]
    curves = RunSeries(write(tmp_path, records))
    curves.refresh()
    check(curves, tmp_path, ["a"])
    assert curves.column("a").tolist() == [2.0]


OLD_JOURNALS = sorted(Path(__file__).parents[1].glob("run/fixtures/**/journal.jsonl"))


@pytest.mark.parametrize("journal", OLD_JOURNALS, ids=lambda path: path.parent.name)
def test_journals_of_earlier_versions(journal: Path) -> None:
    curves = RunSeries(journal.parent)
    curves.refresh()
    assert curves.rows > 0
    check(curves, journal.parent, curves.metrics())


def test_a_column_without_room_is_not_read_again_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = list[int]()
    real = RowReader.read

    def read(self: RowReader, content: bytes, offset: int, only: str | None = None) -> int:
        if only is not None:
            offsets.append(offset)
        return real(self, content, offset, only)

    monkeypatch.setattr(RowReader, "read", read)
    rows = [row(index, {"a": index, "b": -index}) for index in range(1, 101)]
    write(tmp_path, [header(), attempt(), *rows])
    curves = RunSeries(tmp_path, most_bytes=8 * 100)
    curves.refresh()
    assert list(curves.column("b")) == [-index for index in range(1, 101)]
    size = (tmp_path / "journal.jsonl").stat().st_size
    write(tmp_path, [row(101, {"a": 1}), row(102, {"a": 1, "b": 7})])
    curves.refresh()
    later = curves.column("b")
    assert np.isnan(later[100])
    assert (later.size, later[101]) == (102, 7)
    assert offsets == [0, size]
    write(tmp_path, [attempt(1, 50), row(51, {"a": 1, "b": 8}, attempt=1)])  # rows are superseded
    curves.refresh()
    assert list(curves.column("b")) == [*(-index for index in range(1, 51)), 8]
