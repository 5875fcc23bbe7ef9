"""The keys that every row has."""

from __future__ import annotations

import time

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.run.history import RowFiller, node_ip
from paceline.run.records import AttemptStarted
from paceline.run.spec import TrialIdentity

IDENTITY = TrialIdentity("4913f_00000", "4913f0123456789")

GUIDE_KEYS = {
    "_time_this_iter_s", "_timestamp", "_training_iteration", "config", "date", "done", "episodes_total",
    "experiment_id", "experiment_tag", "hostname", "iterations_since_restore", "node_ip", "pid",
    "time_since_restore", "time_this_iter_s", "time_total_s", "timestamp", "timesteps_since_restore",
    "timesteps_total", "training_iteration", "trial_id", "warmup_time",
}  # fmt: skip


def filler(**facts: float) -> RowFiller:
    attempt = AttemptStarted(attempt=0, hostname="host", node_ip="10.0.0.1", pid=7, warmup_time=0.5, **facts)  # type: ignore[arg-type]
    return RowFiller(IDENTITY, {}, attempt)


def test_a_row_has_the_users_keys_and_those_of_the_guide() -> None:
    row = filler().fill(1, {"epoch": 0}, stamp=1656349412.7, elapsed=3.5)
    assert set(row) == {"epoch"} | GUIDE_KEYS
    assert set(row) - {"epoch"} <= set(AUTOFILLED_KEYS)
    assert next(iter(row)) == "epoch"
    assert row["timestamp"] == row["_timestamp"] == 1656349412
    assert row["date"] == time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(1656349412))
    assert row["done"] is False
    assert row["timesteps_total"] is row["episodes_total"] is None
    assert (row["trial_id"], row["experiment_id"], row["experiment_tag"]) == ("4913f_00000", "4913f0123456789", "0")


def test_times_and_counts_go_on_where_an_attempt_takes_up() -> None:
    fill = filler(start_index=10, start_time_s=100.0).fill
    first, second = fill(11, {}, 0.0, 2.0), fill(12, {}, 0.0, 5.0)
    assert [row["training_iteration"] for row in (first, second)] == [11, 12]
    assert [row["iterations_since_restore"] for row in (first, second)] == [1, 2]
    assert [row["time_this_iter_s"] for row in (first, second)] == [2.0, 3.0]
    assert [row["time_since_restore"] for row in (first, second)] == [2.0, 5.0]
    assert [row["time_total_s"] for row in (first, second)] == [102.0, 105.0]


def test_the_users_keys_win() -> None:
    row = filler().fill(3, {"training_iteration": 300, "done": "almost", "config": 1}, 0.0, 1.0)
    assert (row["training_iteration"], row["done"], row["config"]) == (300, "almost", 1)
    assert row["_training_iteration"] == 3


def test_before_the_first_report() -> None:
    assert set(filler().first()) == {
        "trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip", "config",
    }  # fmt: skip


def test_the_address_of_this_machine() -> None:
    assert node_ip().count(".") == 3
