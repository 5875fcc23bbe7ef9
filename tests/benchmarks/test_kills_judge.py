"""The kill campaign finds whatever is wrong with an experiment. These were real and whole before the damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kills_experiment
from benchmarks.kills import table
from benchmarks.kills_driver import Settings, fit_run, fit_search
from benchmarks.kills_experiment import Report, strays
from benchmarks.kills_judge import Finding, Life, judge
from paceline.testing.invariants import whole_records

Record = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Settings]:
    """An experiment that nothing happened to, one per workload."""
    made: dict[str, Settings] = {}

    def make(workload: str) -> Settings:
        if workload not in made:
            place = tmp_path_factory.mktemp(workload)
            settings = Settings(str(place), workload, acknowledged=True, dataset=str(place / "dataset"))
            if workload == "data":
                from benchmarks.kills import write_dataset

                write_dataset(place / "dataset")
            outcome = fit_search(settings) if workload == "search" else fit_run(settings)
            (place / "outcome.json").write_text(json.dumps({**outcome, "strays": []}))
            made[workload] = settings
        return made[workload]

    return make


@pytest.fixture
def copy(finished: Callable[[str], Settings], tmp_path: Path) -> Callable[[str], Settings]:
    """One that a test may damage."""

    def make(workload: str) -> Settings:
        settings = finished(workload)
        shutil.copytree(settings.place, tmp_path / workload)
        return replace(settings, place=str(tmp_path / workload))

    return make


def columns(settings: Settings, *lives: Life) -> set[str]:
    return {finding.column for finding in judge(settings, list(lives) or [Life(exit=0)])}


def one(settings: Settings, pattern: str) -> Path:
    return sorted(settings.experiment.glob(pattern))[0]


def rewrite(journal: Path, change: Callable[[list[Record]], list[Record]]) -> None:
    """A journal with other records; each of them is whole."""
    lines = []
    for record in change(list(whole_records(journal.read_bytes()))):
        body = json.dumps(record).encode()
        lines.append(f"{zlib.crc32(body):08x} {len(body)} ".encode() + body + b"\n")
    journal.write_bytes(b"".join(lines))


def is_row(record: Record, index: int, rank: int = 0) -> bool:
    return record["kind"] == "row" and (record["index"], record["rank"]) == (index, rank)


def retried(records: list[Record], after: int) -> list[Record]:
    """The same run with a second attempt that starts after a row."""
    *records, end = records
    attempt = next(record for record in records if record["kind"] == "attempt")
    later = [each for each in records if each["kind"] == "row" and each["index"] > after]
    earlier = [each for each in records if each not in later]
    return [*earlier, {**attempt, "attempt": 1, "start_index": after}, *later, end]


@pytest.mark.parametrize("workload", ["run", "search", "data"])
def test_a_whole_experiment_has_no_findings(finished: Callable[[str], Settings], workload: str) -> None:
    assert judge(finished(workload), [Life(exit=0)]) == []


@pytest.mark.parametrize(
    ("life", "column"),
    [
        (Life(exit=None, killed=["rank"], stacks="in poll"), "hangs"),
        (Life(exit=1, killed=["warden"], output="paceline.air.errors.TrainingFailedError: no"), "wrong errors"),
        (Life(exit=0, strays=["123 (stays) S sleep 600"]), "orphans"),
    ],
)
def test_what_became_of_the_driver(finished: Callable[[str], Settings], life: Life, column: str) -> None:
    assert columns(finished("run"), life) == {column}


def test_a_killed_driver_may_end_like_that(finished: Callable[[str], Settings]) -> None:
    assert columns(finished("run"), Life(exit=-9, killed=["driver"]), Life(exit=0)) == set()


def flip_a_byte(checkpoint: Path) -> None:
    path = checkpoint / "weights.bin"
    path.write_bytes(b"?" + path.read_bytes()[1:])


@pytest.mark.parametrize("damage", [flip_a_byte, lambda checkpoint: (checkpoint / "MANIFEST.json").unlink()])
def test_torn_checkpoints(copy: Callable[[str], Settings], damage: Callable[[Path], None]) -> None:
    settings = copy("run")
    damage(one(settings, "*/checkpoint_*"))
    assert columns(settings) == {"torn"}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("index", [1, 4, 8])
def test_a_row_is_missing(copy: Callable[[str], Settings], rank: int, index: int) -> None:
    settings = copy("run")
    rewrite(one(settings, "*/journal.jsonl"), lambda all: [each for each in all if not is_row(each, index, rank)])
    assert columns(settings) == {"lost"}


def test_a_row_is_missing_that_a_killed_rank_had_sent(copy: Callable[[str], Settings]) -> None:
    settings = replace(copy("run"), acknowledged=False)
    pid = settings.marks.read("started", rank=1)[0]["pid"]

    def superseded(records: list[Record]) -> list[Record]:
        """Row 3 of rank 1 is another function's, as if that of an attempt that failed had been lost."""
        for row in (record for record in records if is_row(record, 3, 1)):
            row["metrics"]["life"] = "next"
        return retried(records, 2)

    rewrite(one(settings, "*/journal.jsonl"), superseded)
    assert columns(settings, Life(exit=0)) == set()
    assert columns(settings, Life(exit=0, killed=["rank"], killed_ranks=[pid])) == {"lost"}


def test_a_rank_that_was_behind_a_checkpoint_has_fewer_rows(copy: Callable[[str], Settings]) -> None:
    """Nothing is lost: it never came to report them."""
    settings = replace(copy("run"), acknowledged=False)

    def behind(records: list[Record]) -> list[Record]:
        return [each for each in retried(records, 4) if not (is_row(each, 3, 1) or is_row(each, 4, 1))]

    rewrite(one(settings, "*/journal.jsonl"), behind)
    for path in settings.marks.directory.glob("*.marks"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"iteration": 4' not in line))
    assert columns(settings) == set()


def test_a_row_is_there_twice(copy: Callable[[str], Settings]) -> None:
    settings = copy("run")
    rewrite(
        one(settings, "*/journal.jsonl"),
        lambda all: [each for record in all for each in [record] * (1 + is_row(record, 3))],
    )
    assert columns(settings) == {"duplicated"}


@pytest.mark.parametrize("name", ["result.json", "progress.csv"])
def test_the_users_files_have_every_row_once(copy: Callable[[str], Settings], name: str) -> None:
    settings = copy("run")
    path = one(settings, f"*/{name}")
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    assert columns(settings) == {"lost"}
    path.write_text("".join([*lines, last, last]))
    assert columns(settings) == {"duplicated"}


def test_a_checkpoint_was_forgotten(copy: Callable[[str], Settings]) -> None:
    settings = copy("run")
    [trial] = {mark["trial"] for mark in settings.marks.read("started")}
    settings.marks.say("started", trial=trial, rank=0, pid=1, life="next", after=2)
    assert columns(settings) == {"lost"}


def test_a_run_was_forgotten(copy: Callable[[str], Settings]) -> None:
    settings = copy("run")
    settings.marks.say("started", trial="another", rank=0, pid=1, life="next", after=0)
    assert columns(settings) == {"lost"}


def test_the_end_was_not_written_down(copy: Callable[[str], Settings]) -> None:
    settings = copy("run")
    rewrite(one(settings, "*/journal.jsonl"), lambda all: all[:-1])
    assert columns(settings) == {"lost"}


def test_leftovers(copy: Callable[[str], Settings]) -> None:
    settings = copy("run")
    (one(settings, "*/journal.jsonl").parent / ".checkpoint_000009.tmp-0-abcd").mkdir()
    assert columns(settings) == {"leftovers"}


def test_rows_of_a_dataset_are_missing_and_twice(copy: Callable[[str], Settings]) -> None:
    settings = copy("data")

    def shift(records: list[Record]) -> list[Record]:
        ids = next(record["metrics"]["ids"] for record in records if is_row(record, 2))
        ids[0] = ids[1]
        return records

    rewrite(one(settings, "*/journal.jsonl"), shift)
    assert columns(settings) == {"lost", "duplicated"}


def test_a_trial_has_no_end(copy: Callable[[str], Settings]) -> None:
    settings = copy("search")
    rewrite(
        one(settings, "experiment-*.jsonl"),
        lambda all: [each for each in all if each.get("n") != 2 or each["kind"] != "end"],
    )
    assert columns(settings) == {"lost"}


def test_a_trial_was_made_twice(copy: Callable[[str], Settings]) -> None:
    settings = copy("search")

    def again(records: list[Record]) -> list[Record]:
        trial = next(record for record in records if record["kind"] == "trial")
        return [*records, {**trial, "id": "another", "n": 9}]

    rewrite(one(settings, "experiment-*.jsonl"), again)
    assert columns(settings) == {"duplicated"}


def test_a_trial_ran_again_after_its_end(copy: Callable[[str], Settings]) -> None:
    settings = copy("search")
    trial = settings.marks.read("started")[0]["trial"]
    assert columns(settings, Life(exit=0, started_ns=0, ended_trials=[trial])) == {"duplicated"}


@pytest.mark.parametrize(
    ("workload", "change", "column"),
    [
        ("search", {"statuses": ["failed", "finished", "finished", "finished"], "errors": ["no"]}, "wrong errors"),
        ("search", {"rows": [4, 4, 3, 4]}, "lost"),
        ("run", {"saved": 6}, "lost"),
        ("run", {"strays": ["123 (daemon)"]}, "orphans"),
    ],
)
def test_what_fit_gave(copy: Callable[[str], Settings], workload: str, change: dict[str, Any], column: str) -> None:
    settings = copy(workload)
    path = Path(settings.place) / "outcome.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert columns(settings) == {column}


def test_strays_are_found_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills_experiment, "SECONDS_TO_GO", 0.05)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "KILLS_MARK": "kills-of-this-test"}) as process:
        found = strays("kills-of-this-test")
        process.kill()
    assert [text.split()[:2] for text in found] == [[str(process.pid), "(stays)"]]
    assert strays("kills-of-this-test") == []


def test_the_table_counts_experiments() -> None:
    settings = Settings("", "run")
    bad = Report(1, "run", "rank", [], settings, [Life(killed=["rank"])], [Finding("hangs", "")] * 2)
    missed = Report(2, "run", "rank", [], settings, [Life(exit=0)])
    *_, rank, total = table([bad, missed], [("run", "rank")]).splitlines()
    assert rank.split() == ["run", "rank", "1", "1", "1", "0", "0", "0", "0", "0", "0"]
    assert total.split()[1:] == rank.split()[2:]
