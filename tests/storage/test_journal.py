"""Records survive everything that can happen to the process that writes them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.air.errors import StorageError
from paceline.storage.journal import Journal, decode_record, encode_record, read, records_in
from tests.storage.small_disk import run_on_small_disk

RECORDS: list[dict[str, Any]] = [
    {"kind": "run", "name": "ünï", "n": 2**70},
    {"kind": "row", "loss": 0.1, "nested": {"a": [1, None, True]}, "text": "line\nbreak"},
    {"kind": "row", "loss": 1e-310, "small": -0.0},
    {"kind": "path", "name": os.fsdecode(b"latin-\xff")},
]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()


def test_the_first_sync_makes_the_names_durable(tmp_path: Path, synced: list[Path]) -> None:
    """A power cut must not take the file along with its directory's entry."""
    directory = tmp_path / "experiment" / "trial"
    directory.mkdir(parents=True)
    journal = Journal(directory / "journal")
    for record in RECORDS:
        journal.append(record)
        journal.sync()
    assert synced[:3] == [journal.path, directory, directory.parent]
    assert set(synced[3:]) == {journal.path}
    journal.close()


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    write(tmp_path / "journal", RECORDS[:2])
    write(tmp_path / "journal", RECORDS[2:])
    assert list(read(tmp_path / "journal")) == RECORDS


def test_a_line_is_checksum_length_json(tmp_path: Path) -> None:
    write(tmp_path / "journal", [{"a": 1}])
    assert (tmp_path / "journal").read_bytes() == b'561bacaf 7 {"a":1}\n'


def test_nan_and_infinity_survive_exactly(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append({"a": math.nan, "b": math.inf, "c": [-math.inf]}, finite=False)
    journal.append_raw(b'{"raw":NaN}')
    journal.close()
    first, second = read(tmp_path / "journal")
    assert math.isnan(first["a"])
    assert (first["b"], first["c"]) == (math.inf, [-math.inf])
    assert math.isnan(second["raw"])


def test_a_tail_torn_at_any_byte_is_dropped_and_the_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sync in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, sync, lambda descriptor: None)  # hundreds of them take seconds
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    write(whole, RECORDS)
    content = whole.read_bytes()
    ends = [0]
    for line in content.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for length in range(len(content) + 1):
        torn.write_bytes(content[:length])
        expected = sum(1 for end in ends[1:] if end <= length)
        assert list(read(torn)) == RECORDS[:expected], length
        journal = Journal(torn)
        assert journal.dropped_bytes == length - ends[expected]
        journal.append({"kind": "after"})
        journal.close()
        assert list(read(torn)) == [*RECORDS[:expected], {"kind": "after"}], length


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    write(tmp_path / "journal", RECORDS)
    with open(tmp_path / "journal", "ab") as file:
        file.write(bytes(5000))
    assert list(read(tmp_path / "journal")) == RECORDS
    Journal(tmp_path / "journal").close()
    assert list(read(tmp_path / "journal")) == RECORDS


def test_a_line_that_is_being_written_is_not_damage(tmp_path: Path) -> None:
    """A driver at work may write more between two reads of the same reader."""
    path = tmp_path / "journal"
    write(path, RECORDS)
    content = path.read_bytes()
    half = len(content.splitlines(keepends=True)[0]) + 20
    path.write_bytes(content[:half])

    def read_while_it_grows() -> Iterator[bytes]:
        with open(path, "rb") as file, open(path, "ab") as writer:
            for line in file:
                if not line.endswith(b"\n"):
                    writer.write(content[half:])
                    writer.flush()
                yield line

    assert [decode_record(body) for body, _ in records_in(read_while_it_grows(), 0, "journal")] == RECORDS[:1]
    assert list(read(path)) == RECORDS


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [{"kind": "row", "i": i} for i in range(3)])
    content = path.read_bytes()
    first_line = content.index(b"\n")
    for position in range(first_line + 1):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match=r"journal.*byte 0\b"):
                list(read(path))
            with pytest.raises(StorageError, match=r"journal.*byte 0\b"):
                Journal(path)
    assert path.stat().st_size == len(content)  # opening a damaged journal does not cut it


def test_flushed_records_survive_sigkill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from paceline.storage.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for i in range(1000): journal.append({'i': i})\n"
        "journal.flush(); journal.append({'i': 1000})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "journal")])
    assert done.returncode == -9
    assert [record["i"] for record in read(tmp_path / "journal")] == list(range(1000))


def test_unflushed_memory_is_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for _ in range(100):
        journal.append_raw(b'"%b"' % (b"x" * 10_000))
    assert (tmp_path / "journal").stat().st_size > 700_000
    journal.close()


def test_threads_may_append_at_the_same_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    def work(worker: int) -> None:
        for i in range(500):
            journal.append({"worker": worker, "i": i})
            if i % 50 == 0:
                journal.sync()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    rows = list(read(tmp_path / "journal"))
    for worker in range(4):
        assert [row["i"] for row in rows if row["worker"] == worker] == list(range(500))


def test_closing_twice_is_fine_and_ends_the_thread(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append({})
    journal.flush()
    journal.close()
    journal.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "paceline-journal"]


def test_a_deleted_journal_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append({"a": 1})
    (tmp_path / "journal").unlink()
    with pytest.raises(StorageError, match=r"journal.*deleted"):
        journal.sync()
    with pytest.raises(StorageError, match=r"journal.*deleted"):
        journal.append({"a": 2})
    journal.close()


def test_a_missing_journal_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "journal"))


def test_a_full_disk_stops_the_run_and_leaves_a_sound_file(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from paceline.storage.journal import Journal, read\n"
        "from paceline.air.errors import StorageError\n"
        "path = Path(sys.argv[1]) / 'journal'\n"
        "journal, written = Journal(path), 0\n"
        "try:\n"
        "    while True:\n"
        "        journal.append({'text': 'x' * 10_000}); journal.sync(); written += 1\n"
        "except StorageError as error:\n"
        "    print(error.errno, error)\n"
        "try: journal.append({})\n"
        "except StorageError as error: print('again', error.errno)\n"
        "journal.close()\n"
        "assert len(list(read(path))) == written > 10\n"
        "assert path.read_bytes().endswith(b'\\n')\n"
    )
    output = run_on_small_disk(program, tmp_path)
    assert output.startswith("28 ")
    assert "needed: 1" in output
    assert "again 28" in output


@pytest.mark.skipif(shutil.which("strace") is None, reason="injects the error with strace")
def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from paceline.storage.journal import Journal\n"
        "from paceline.air.errors import StorageError\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "journal.append({'a': 1})\n"
        "for _ in range(3):\n"
        "    try: journal.sync()\n"
        "    except StorageError as error: print(error.errno, error)\n"
        "journal.close()\n"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(tmp_path / "journal")], capture_output=True, text=True
    )
    if "ptrace" in done.stderr.lower():
        pytest.skip("strace may not trace here")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["5", "5", "5"]
    assert trace.read_text().count("fdatasync(") == 1


def test_json_of_a_record_has_no_line_break(tmp_path: Path) -> None:
    write(tmp_path / "journal", [{"a\nb": "\u2028\n"}])
    lines = (tmp_path / "journal").read_bytes().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0].split(b" ", 2)[2]) == {"a\nb": "\u2028\n"}


class Interrupting:
    """Stands in for `os.write`: writes a part or all, then a signal's exception comes, once."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.real = os.write
        self.pending = True

    def __call__(self, descriptor: int, data: bytes | memoryview) -> int:
        if not self.pending:
            return self.real(descriptor, data)
        self.pending = False
        self.real(descriptor, data[: int(len(data) * self.share)])
        raise KeyboardInterrupt


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("can_cut", [True, False])
def test_an_interrupted_write_neither_repeats_nor_tears_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, can_cut: bool
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(RECORDS[0])
    journal.flush()
    journal.append(RECORDS[1])
    journal.append(RECORDS[2])
    monkeypatch.setattr(os, "write", Interrupting(share))

    def interrupted(descriptor: int, length: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if not can_cut:  # a second signal comes while the first one is dealt with
            patch.setattr(os, "ftruncate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.flush()
    journal.append(RECORDS[3])
    journal.close()
    assert list(read(tmp_path / "journal")) == RECORDS


def test_a_file_that_somebody_shortened_is_an_error_and_not_filled_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(RECORDS[0])
    journal.flush()
    os.truncate(tmp_path / "journal", 0)
    journal.append(RECORDS[1])
    with pytest.raises(StorageError, match="shortened"):
        journal.flush()
    journal.close()
    assert (tmp_path / "journal").read_bytes() == b""


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(RECORDS[0])
    child = os.fork()
    if child == 0:
        try:
            journal.append(RECORDS[1])
            journal.flush()
            journal.sync()
            journal.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert list(read(tmp_path / "journal")) == []
    journal.close()
    assert list(read(tmp_path / "journal")) == RECORDS[:1]


class Pair(msgspec.Struct, frozen=True, array_like=True):
    first: int
    second: int = 0


class Holder(msgspec.Struct, tag="holder", tag_field="kind", omit_defaults=True):
    value: float
    pair: Pair | None = None


@pytest.mark.parametrize("value", [1.0, math.inf])
def test_both_encoders_write_a_struct_within_a_record_alike(value: float) -> None:
    """The slower one writes numbers that are not finite."""
    fast, slow = (encode_record(Holder(value, Pair(1)), finite=finite) for finite in (True, False))
    assert decode_record(slow)["pair"] == decode_record(fast)["pair"] == [1, 0]
