"""One run on its way to one tracker, from journals that are written by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air.config import RunConfig
from paceline.air.settings import stored
from paceline.run.records import AttemptStarted, CheckpointCommitted, Ended, Header, Record, Row, Validated
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir
from paceline.trackers.delivery import MOST_RECORDS, Delivery
from paceline.trackers.tracker import TrackedRun, outcome_of
from tests.trackers.ledger import LedgerTracker, runs
from tests.trackers.readers import read_ledger


class Written:
    """A run's directory with a journal that a test writes."""

    def __init__(self, root: Path, config: Any = None) -> None:
        self.run_dir = RunDir(root / "run")
        self.run_dir.create()
        self.journal = Journal(self.run_dir.journal)
        self.service = root / "service"
        settings = {"config": {"lr": 0.1} if config is None else config, "run_config": stored(RunConfig())}
        self.add(
            Header(
                trainer="Climb",
                experiment_name="climbs",
                trial_id="4913f_00000",
                experiment_id="4913f" + "0" * 27,
                experiment_tag="0",
                settings=settings,
                time=1000.0,
            )
        )

    def add(self, *records: Record) -> None:
        for record in records:
            self.journal.append(record, finite=False)
        self.journal.flush()

    def rows(self, attempt: int, indices: range, rank: int = 0) -> None:
        self.add(
            *(
                Row(
                    attempt=attempt,
                    index=index,
                    rank=rank,
                    stamp=1000.0 + index,
                    elapsed=0.5 * index,
                    metrics={"height": 10 * index},
                )
                for index in indices
            )
        )

    def cut(self, size: int) -> None:
        """What came after so many bytes is lost."""
        self.journal.close()
        os.truncate(self.run_dir.journal, size)
        self.journal = Journal(self.run_dir.journal)

    def delivery(self, **options: Any) -> Delivery:
        """Each one stands for a driver of its own."""
        tracker = LedgerTracker(self.service, counts=options.pop("counts", True))
        tracker.wants_checkpoints = options.pop("wants_checkpoints", True)
        return Delivery(tracker, self.run_dir, "ledger", **options)

    def steps(self) -> list[tuple[int, int]]:
        return [(row.attempt, row.step) for run in read_ledger(self.service) for row in run.rows]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [each for told in runs(self.service).values() for each in told if each["event"] == event]


@pytest.fixture
def written(tmp_path: Path) -> Any:
    run = Written(tmp_path)
    yield run
    run.journal.close()


def deliver(delivery: Delivery) -> None:
    while delivery.advance():
        pass


def test_nothing_is_told_before_workers_have_started(written: Written) -> None:
    delivery = written.delivery()
    deliver(delivery)
    assert runs(written.service) == {}
    written.add(AttemptStarted(attempt=0, hostname="here", pid=7))
    deliver(delivery)
    (opened,) = written.told("open")
    assert (opened["name"], opened["config"], opened["hostname"]) == ("Climb_4913f_00000", {"lr": 0.1}, "here")


def test_rows_of_rank_0_are_completed_as_others_see_them(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    for index in range(1, 4):
        written.rows(0, range(index, index + 1))
        written.rows(0, range(index, index + 1), rank=1)
    written.add(AttemptStarted(attempt=1, start_index=2, start_time_s=1.0))
    written.rows(1, range(3, 4))
    deliver(written.delivery())
    assert written.steps() == [(0, 1), (0, 2), (0, 3), (1, 3)]
    values = [each["values"] for each in written.told("row")]
    assert values[1] == {"training_iteration": 2, "time_total_s": 1.0, "time_this_iter_s": 0.5, "height": 20}
    assert values[3]["time_total_s"] == 2.5
    assert [each["ordinal"] for each in written.told("row")] == [0, 1, 2, 3]


def test_a_journal_that_grows_is_followed(written: Written) -> None:
    delivery = written.delivery()
    written.add(AttemptStarted(attempt=0))
    for index in range(1, 5):
        written.rows(0, range(index, index + 1))
        assert delivery.advance()
        assert not delivery.advance()
    written.add(Ended(status="finished"))
    assert not delivery.is_done
    delivery.end("finished")
    deliver(delivery)
    assert delivery.is_done
    assert written.steps() == [(0, index) for index in range(1, 5)]
    assert [each["outcome"] for each in written.told("close")] == ["finished"]


def test_the_next_driver_begins_where_the_last_one_ended(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 4))
    deliver(written.delivery(counts=False))
    written.add(AttemptStarted(attempt=1, start_index=3, start_time_s=1.5))
    written.rows(1, range(4, 6))
    deliver(written.delivery(counts=False))
    assert written.steps() == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]
    assert written.told("row")[3]["values"]["time_total_s"] == 3.5


@pytest.mark.parametrize("counts", [True, False])
def test_a_lost_cursor_costs_repetitions_only_where_nobody_knows_better(written: Written, counts: bool) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 4))
    deliver(written.delivery())
    written.run_dir.tracker("ledger").write_text("{not JSON")
    written.rows(0, range(4, 5))
    deliver(written.delivery(counts=counts))
    again = [] if counts else [(0, 1), (0, 2), (0, 3)]
    assert written.steps() == [(0, 1), (0, 2), (0, 3), *again, (0, 4)]


def test_rows_that_did_not_survive_in_the_service_are_sent_again(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 6))
    deliver(written.delivery())
    (path,) = written.service.glob("*.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))  # the opening and two rows
    written.rows(0, range(6, 7))
    deliver(written.delivery())
    assert written.steps() == [(0, index) for index in range(1, 7)]


class Forgetful(LedgerTracker):
    """What it has taken is lost if it is not closed, and it cannot tell."""

    keeps_rows = False


def test_a_tracker_that_does_not_keep_rows_gets_those_since_the_last_close_again(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    written.add(Ended(status="interrupted"))
    first = Delivery(Forgetful(written.service, counts=False), written.run_dir, "ledger")
    deliver(first)
    written.add(AttemptStarted(attempt=1, start_index=2))
    written.rows(1, range(3, 5))
    second = Delivery(Forgetful(written.service, counts=False), written.run_dir, "ledger")
    deliver(second)  # and this one is killed
    third = Delivery(Forgetful(written.service, counts=False), written.run_dir, "ledger")
    deliver(third)
    assert written.steps() == [(0, 1), (0, 2), (1, 3), (1, 4), (1, 3), (1, 4)]


def test_a_run_that_was_continued_is_not_closed_in_between(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    written.add(Ended(status="interrupted"))
    written.rows(0, range(3, 4))  # from a checkpoint, because the journal was cut short
    written.add(AttemptStarted(attempt=1, start_index=2), Ended(status="failed"))
    deliver(written.delivery())
    assert [each["outcome"] for each in written.told("close")] == ["failed"]
    assert written.steps() == [(0, 1), (0, 2), (0, 3)]


def test_a_journal_that_lost_its_end_is_continued_from_where_it_ends(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    size = written.run_dir.journal.stat().st_size
    written.rows(0, range(3, 5))
    deliver(written.delivery(counts=False))
    written.cut(size)
    delivery = written.delivery(counts=False)
    written.add(AttemptStarted(attempt=1, start_index=2))
    written.rows(1, range(3, 4))
    deliver(delivery)
    assert written.steps() == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3)]


def test_rows_that_only_the_service_still_has_do_not_cost_new_ones(written: Written) -> None:
    """A copy on remote storage is as old as the last checkpoint: a machine that continues from it has neither the rows
    after that nor the last cursor."""
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 7))
    first = written.delivery()
    deliver(first)
    size, cursor = written.run_dir.journal.stat().st_size, written.run_dir.tracker("ledger").read_bytes()
    written.rows(0, range(7, 10))
    deliver(first)
    written.cut(size)
    written.run_dir.tracker("ledger").write_bytes(cursor)
    second = written.delivery()
    written.add(AttemptStarted(attempt=1, start_index=6))
    written.rows(1, range(7, 9))
    deliver(second)
    assert written.steps() == [*((0, step) for step in range(1, 10)), (1, 7), (1, 8)]
    written.rows(1, range(9, 10))
    deliver(written.delivery())
    assert written.steps()[-1] == (1, 9)
    assert [each["ordinal"] for each in written.told("row")] == list(range(12))


def test_a_changed_configuration_is_told_once(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 2))
    written.add(AttemptStarted(attempt=1, start_index=1, config={"lr": 0.2}))
    written.rows(1, range(2, 3))
    written.add(AttemptStarted(attempt=2, start_index=2, config={"lr": 0.2}))
    deliver(written.delivery())
    deliver(written.delivery())
    assert [(each["config"], each["attempt"]) for each in written.told("config")] == [({"lr": 0.2}, 1)]


def test_a_configuration_that_is_not_plain_data_is_shown_as_text(tmp_path: Path) -> None:
    written = Written(tmp_path)
    header = json.loads(written.run_dir.journal.read_text().split(" ", 2)[2])
    assert header["settings"]["config"] == {"lr": 0.1}
    written.journal.close()
    other = Written(tmp_path / "other", config={"fn": "None"})
    other.add(AttemptStarted(attempt=0, config=None))
    deliver(other.delivery(config={"fn": len, "password": "hidden"}))
    (opened,) = other.told("open")
    assert opened["config"] == {"fn": "<built-in function len>", "password": "***"}
    other.journal.close()


def test_checkpoints_are_told_in_order_and_deleted_ones_are_passed_over(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    for number in range(2):
        written.rows(0, range(number + 1, number + 2))
        written.add(CheckpointCommitted(number=number, iteration=number + 1))
    path = written.run_dir.checkpoint(1)
    path.mkdir()
    (path / "weights").touch()
    deliver(written.delivery())
    assert [(each["number"], each["files"]) for each in written.told("checkpoint")] == [(1, ["weights"])]
    assert written.steps() == [(0, 1), (0, 2)]


def test_rows_are_not_split_at_checkpoints_that_nobody_wants(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that saves with every report would else be sent row by row."""
    written.add(AttemptStarted(attempt=0))
    for number in range(5):
        written.rows(0, range(number + 1, number + 2))
        written.add(CheckpointCommitted(number=number, iteration=number + 1))
    sizes: list[int] = []
    original = LedgerTracker.send
    monkeypatch.setattr(
        LedgerTracker, "send", lambda self, run_id, rows: (sizes.append(len(rows)), original(self, run_id, rows))
    )
    deliver(written.delivery(wants_checkpoints=False))
    assert sizes == [5]


def test_a_long_journal_is_sent_in_parts(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, MOST_RECORDS + 1))
    written.rows(0, range(1, 2 * MOST_RECORDS), rank=1)  # nothing to send for a while
    written.rows(0, range(MOST_RECORDS + 1, MOST_RECORDS + 3))
    delivery = written.delivery()
    assert delivery.advance()
    assert len(written.steps()) < MOST_RECORDS + 1
    deliver(delivery)
    assert written.steps() == [(0, index) for index in range(1, MOST_RECORDS + 3)]
    assert delivery.rows_left() == 0


def test_a_failed_call_is_repeated_from_the_last_acknowledged_place(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    delivery = written.delivery()
    deliver(delivery)
    (written.service / "down").touch()
    written.rows(0, range(3, 5))
    for _ in range(2):
        with pytest.raises(ConnectionError):
            delivery.advance()
    assert delivery.rows_left() == 2
    (written.service / "down").unlink()
    deliver(delivery)
    assert written.steps() == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_a_run_without_an_end_is_closed_as_interrupted(written: Written) -> None:
    """Its storage failed, or its driver was killed and somebody sends the rest."""
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    delivery = written.delivery()
    delivery.end(outcome_of(None))
    deliver(delivery)
    assert delivery.is_done
    assert [each["outcome"] for each in written.told("close")] == ["interrupted"]


def test_a_run_whose_driver_has_gone_is_noticed(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.trackers.delivery.LOCK_LOOK_S", -1.0)
    written.add(AttemptStarted(attempt=0))
    delivery = written.delivery()
    deliver(delivery)
    delivery.notice_end()
    deliver(delivery)
    assert delivery.is_done


class Abandoning(LedgerTracker):
    """Is given up while it is called."""

    delivery: Delivery

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        self.delivery.abandon()
        return super().open(run, resume_id)


def test_what_is_given_up_in_the_middle_of_a_call_does_nothing_more(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    tracker = Abandoning(written.service)
    tracker.delivery = Delivery(tracker, written.run_dir, "ledger")
    tracker.delivery.advance()
    assert written.told("row") == []
    assert json.loads(written.run_dir.tracker("ledger").read_bytes())["run_id"] is None
    deliver(written.delivery())  # and somebody else can begin
    assert written.steps() == [(0, 1), (0, 2)]


def test_a_validation_is_a_call_of_its_own_at_the_step_of_its_row(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 4))
    late = Validated(
        attempt=0,
        index=2,
        number=0,
        time=1010.0,
        duration_s=1.0,
        metrics={"error": 0.5},
        counters={"timesteps_total": 64},
    )
    written.add(late)
    deliver(written.delivery())
    written.rows(0, range(4, 5))
    delivery = written.delivery()  # of the next driver
    assert delivery.rows_left() == 1
    deliver(delivery)
    rows = written.told("row")
    assert [(each["index"], each["ordinal"]) for each in rows] == [(1, 0), (2, 1), (3, 2), (2, 3), (4, 4)]
    assert rows[3]["values"] == {"training_iteration": 2, "timesteps_total": 64, "validation/error": 0.5}
    assert rows[3]["step"] == 64
    assert rows[4]["values"]["time_this_iter_s"] == 0.5
