"""What the workers of a run have printed."""

from __future__ import annotations

import re
import struct
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air.errors import LogsNotHereError, RestoreError
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.view.logs import LogLine, follow, merged, ranks_of, read_log

FIRST = 1_700_000_000.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.journal.touch()
    return run_dir


def log(run: RunDir, rank: int, *lines: tuple[float, str] | str, suffix: str = "", base: int = 0) -> None:
    """A log, with the time of each line if it has one."""
    path = run.log(rank).with_name(run.log(rank).name + suffix)
    text, notes = "", struct.pack("<Qd", base, -1.0)
    for line in lines:
        text += (line if isinstance(line, str) else line[1]) + "\n"
        if not isinstance(line, str):
            notes += struct.pack("<Qd", len(text.encode()), FIRST + line[0])
    path.write_text(text)
    if len(notes) > 16 or base:
        path.with_name(f"{path.name}.times").write_bytes(notes)


def shown(lines: Iterator[LogLine]) -> list[tuple[int, float | None, str]]:
    return [(line.rank, None if line.time is None else line.time - FIRST, line.text) for line in lines]


class TestMerged:
    def test_lines_come_in_the_order_of_time(self, run: RunDir) -> None:
        log(run, 0, (1, "a"), (4, "d"), (5, "f"))
        log(run, 1, (2, "b"), (3, "c"), (5, "g"))
        assert shown(merged(run.root)) == [
            (0, 1, "a"), (1, 2, "b"), (1, 3, "c"), (0, 4, "d"), (0, 5, "f"), (1, 5, "g")
        ]  # fmt: skip
        assert [line.text for line in merged(str(run.root), [1])] == ["b", "c", "g"]
        assert [line.text for line in merged(run.root, since=FIRST + 4)] == ["d", "f", "g"]
        assert [line.text for line in merged(run.root, grep=re.compile("[bf]"))] == ["b", "f"]

    def test_lines_between_two_looks_of_the_driver_share_a_time(self, run: RunDir) -> None:
        log(run, 0, "a", "b", (2, "c"), "d")
        log(run, 1, (1, "x"))
        lines = shown(merged(run.root))
        assert lines[:4] == [(1, 1, "x"), (0, 2, "a"), (0, 2, "b"), (0, 2, "c")]
        assert (lines[4][0], lines[4][2]) == (0, "d"), "after the last look"

    def test_a_run_of_an_earlier_version(self, run: RunDir) -> None:
        log(run, 0, "a", "b")
        log(run, 1, "c")
        assert shown(merged(run.root)) == [(0, None, "a"), (0, None, "b"), (1, None, "c")]
        assert len(list(merged(run.root, since=FIRST))) == 3, "the files are newer"
        assert list(merged(run.root, since=4_000_000_000.0)) == []

    def test_older_files_come_first(self, run: RunDir) -> None:
        log(run, 0, (1, "a"), (3, "c"), suffix=".1", base=100)
        log(run, 0, (4, "d"), (6, "f"), base=104)
        log(run, 1, (2, "b"), (5, "e"))
        assert "".join(line.text for line in merged(run.root)) == "abcdef"
        assert "".join(line.text for line in merged(run.root, since=FIRST + 3)) == "cdef"
        assert "".join(line.text for line in merged(run.root, since=FIRST + 4.5)) == "ef"

    def test_odd_lines(self, run: RunDir) -> None:
        run.log(0).write_bytes(b"\xff\xfe\r\n\n" + b"x" * 200_000 + b"\nlast")
        lines = [line.text for line in merged(run.root)]
        assert lines[:2] == ["��", ""]
        assert "".join(lines[2:-1]) == "x" * 200_000
        assert max(map(len, lines)) < 2**17
        assert lines[-1] == "last"

    def test_no_such_rank_run_or_place(self, run: RunDir, tmp_path: Path) -> None:
        with pytest.raises(RestoreError, match="no log of rank 3; it has none at all"):
            merged(run.root, [3])
        log(run, 0, "a")
        log(run, 10, "a")
        log(run, 2, "a")
        assert ranks_of(run.root) == [0, 2, 10]
        with pytest.raises(RestoreError, match="no log of rank 3; it has those of ranks 0, 2, 10"):
            read_log(run.root, 3)
        with pytest.raises(RestoreError, match="holds no run"):
            merged(tmp_path)
        (tmp_path / "experiment-12345.jsonl").touch()
        with pytest.raises(RestoreError, match="is a search"):
            merged(tmp_path)
        with pytest.raises(LogsNotHereError, match=r"s3://\*+@?.*bucket|s3://bucket"):
            merged("s3://bucket/experiment/run")


class TestReadLog:
    def test_the_tail_and_what_comes_before_it(self, run: RunDir) -> None:
        log(run, 0, *(f"line {number}" for number in range(100)))
        size = run.log(0).stat().st_size
        tail = read_log(run.root, 0, max_bytes=40)
        assert tail.text == "".join(f"line {number}\n" for number in range(95, 100))
        assert (tail.end, tail.size, tail.older) == (size, size, True)
        text, part = tail.text, tail
        while part.older:
            part = read_log(run.root, 0, before=part.start, max_bytes=100)
            assert part.text.endswith("\n")
            text = part.text + text
        assert text == run.log(0).read_text()
        assert read_log(run.root, 0, start=-10).text == "line 99\n"

    def test_forward_from_where_a_part_ended(self, run: RunDir) -> None:
        log(run, 0, *(f"line {number}" for number in range(100)))
        text, position = "", 0
        while part := read_log(run.root, 0, start=position, max_bytes=100):
            if not part.text:
                break
            text, position = text + part.text, part.end
        assert text == run.log(0).read_text()
        assert read_log(run.root, 0, start=7, end=25).text == "line 1\nline 2\n"
        assert read_log(run.root, 0, start=10**9).text == ""

    def test_positions_stay_when_content_moves_to_the_older_file(self, run: RunDir) -> None:
        log(run, 0, (1, "one"), (2, "two"))
        first = read_log(run.root, 0, start=0, max_bytes=4)
        assert (first.text, first.end) == ("one\n", 4)
        log(run, 0, (1, "one"), (2, "two"), suffix=".1")
        log(run, 0, (3, "three"), base=8)
        assert read_log(run.root, 0, start=first.end).text == "two\nthree\n"
        assert read_log(run.root, 0, before=8).text == "one\ntwo\n"
        log(run, 0, (3, "three"), suffix=".1", base=8)
        log(run, 0, (4, "four"), base=14)
        whole = read_log(run.root, 0, start=first.end)
        assert (whole.text, whole.start, whole.older) == ("three\nfour\n", 8, False)

    def test_a_line_that_is_not_finished_is_left_for_later(self, run: RunDir) -> None:
        run.log(0).write_text("one\ntw")
        with RunLock(run.lock):
            part = read_log(run.root, 0)
            assert (part.text, part.end, part.size) == ("one\n", 4, 6)
            assert read_log(run.root, 0, start=4).text == ""
        assert read_log(run.root, 0, start=4).text == "tw", "nobody finishes it any more"

    def test_a_line_that_is_longer_than_what_was_asked_for(self, run: RunDir) -> None:
        log(run, 0, "x" * 1000, "end")
        part = read_log(run.root, 0, start=0, max_bytes=100)
        assert part.text == "x" * 100
        assert read_log(run.root, 0, start=part.end, max_bytes=2000).text == "x" * 900 + "\nend\n"
        assert read_log(run.root, 0, before=900, max_bytes=100).text == "x" * 100


TALKATIVE = """
import sys, time
from pathlib import Path
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer

def loop(config):
    marks = Path(config["marks"])
    number = 0
    while not (marks / "end.gate").exists():
        for _ in range(200):
            print(f"rank {session.get_world_rank()} says {number:07d}", flush=True)
            number += 1
        if session.get_world_rank() == 0:
            session.report({"number": number})
        time.sleep(0.01)  # it is meant to talk for a while

DataParallelTrainer(
    loop,
    train_loop_config={"marks": sys.argv[2]},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="talk", storage_path=sys.argv[1], verbose=0, max_log_bytes=int(sys.argv[3])),
).fit()
"""


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[tuple[Path, Marks]]:
    """A live run whose logs are moved to the older file again and again."""
    (tmp_path / "talk.py").write_text(textwrap.dedent(TALKATIVE))
    marks = Marks(tmp_path / "marks")
    arguments = [str(tmp_path / "talk.py"), str(tmp_path / "results"), str(marks.directory), "200000"]
    with Driver(arguments, output=tmp_path / "driver.txt") as driver:

        def find() -> Path | None:
            found = [each.parent for each in tmp_path.glob("results/talk/*/journal.jsonl")]
            return found[0] if found and (found[0] / "logs" / "rank_1.log.times").exists() else None

        path = wait_for(find, "the logs of the run")
        assert path is not None
        yield path, marks
        marks.open_gate("end")
        assert driver.wait() == 0


def test_a_live_run_is_followed_to_its_end(talk: tuple[Path, Marks]) -> None:
    path, marks = talk
    said: dict[int, list[int]] = {0: [], 1: []}
    times: dict[int, list[float]] = {0: [], 1: []}

    def end_after_the_second_move() -> None:
        older = path / "logs" / "rank_0.log.1.times"
        wait_for(lambda: older.exists() and struct.unpack_from("<Q", older.read_bytes())[0] > 0, "the second move")
        marks.open_gate("end")

    thread = threading.Thread(target=end_after_the_second_move, daemon=True)
    thread.start()
    lost = False
    for line in follow(path):
        if not line.text.startswith("rank"):  # a writer that is faster than the move loses something, and is told so
            lost = True
            continue
        said[line.rank].append(int(line.text.rpartition(" ")[2]))
        assert line.time is not None
        times[line.rank].append(line.time)
    thread.join()
    for rank in (0, 1):
        assert said[rank] == sorted(set(said[rank])), "nothing is repeated"
        assert lost or said[rank] == list(range(len(said[rank]))), "nothing is missing"
        assert len(said[rank]) > 10_000
        assert max(times[rank]) - min(times[rank]) > 0.2
    assert [line.text for line in merged(path, [1])][-1] == f"rank 1 says {said[1][-1]:07d}"


def test_following_what_has_ended_and_from_a_position(run: RunDir) -> None:
    log(run, 0, (1, "a"), (2, "b"))
    log(run, 1, (1.5, "x"))
    assert [line.text for line in follow(run.root)] == ["a", "x", "b"]
    assert [line.text for line in follow(run.root, start={0: read_log(run.root, 0).end})] == ["x"]
    assert [line.text for line in follow(run.root, [0], grep=re.compile("b"))] == ["b"]
