"""The thread that delivers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from paceline.run.records import AttemptStarted
from paceline.testing.processes import wait_for
from paceline.trackers import courier as module
from paceline.trackers.courier import Courier
from tests.trackers.ledger import LedgerTracker
from tests.trackers.test_delivery import Written, written

__all__ = ["written"]


def couriers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "paceline-tracker-ledger"]


def test_a_damaged_journal_is_given_up_with_a_warning_that_does_not_blame_the_service(written: Written) -> None:
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 6))
    lines = written.run_dir.journal.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"height", b"depth!")
    written.run_dir.journal.write_bytes(b"".join(lines))
    courier = Courier(LedgerTracker(written.service))
    courier.take(written.delivery())
    warnings: list[str] = []
    wait_for(lambda: bool(warnings.extend(courier.take_warnings()) or warnings), "a warning")
    assert courier.finish(10.0, 10.0).deliveries == []
    (warning,) = warnings
    assert warning.startswith("run is no longer sent to the ledger service: ")
    assert "journal" in warning
    assert "accepting" not in warning


def test_a_thread_without_work_ends_and_the_next_run_gets_a_new_one(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    written.add(AttemptStarted(attempt=0))
    written.rows(0, range(1, 3))
    courier = Courier(LedgerTracker(written.service))
    for _ in range(2):
        delivery = written.delivery()
        delivery.end("finished")
        courier.take(delivery)
        wait_for(lambda: not couriers(), "the end of the thread")
    assert courier.finish(10.0, 10.0).deliveries == []
    assert written.steps() == [(0, 1), (0, 2)]
