"""What the files of a run say about its trackers."""

from __future__ import annotations

from pathlib import Path

from paceline.trackers import TrackerCallback, send
from paceline.trackers.state import states_together, tracker_states
from tests.trackers.climbs import ROWS, trainer
from tests.trackers.ledger import LedgerTracker


def test_what_a_service_that_was_down_has_not_got_is_counted_until_it_is_sent(tmp_path: Path) -> None:
    service = tmp_path / "service"
    service.mkdir()
    (service / "down").touch()
    callback = TrackerCallback(LedgerTracker(service), wait_at_end_s=0.2, wait_when_down_s=0.2)
    run = trainer([callback], tmp_path / "results").fit().path
    (state,) = tracker_states(run)
    assert (state.file, state.sent, state.left) == ("ledger", 0, ROWS)
    assert state.how_to_send == f"paceline.trackers.send({run!r}, tracker=...)"
    (both,) = states_together("/search", [run, run])
    assert (both.left, both.how_to_send) == (2 * ROWS, "paceline.trackers.send('/search', tracker=...)")
    (service / "down").unlink()
    send(run, LedgerTracker(service))
    (state,) = tracker_states(run)
    assert (state.sent, state.left, state.how_to_send) == (ROWS, 0, "")


def test_a_run_without_trackers(tmp_path: Path) -> None:
    assert tracker_states(tmp_path) == []
