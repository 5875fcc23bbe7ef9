from __future__ import annotations

from typing import Any

import pytest

from paceline.cli.metric_choice import default_metric, metric_names


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        ({"epoch": 3, "accuracy": 0.5, "loss": 0.1}, "loss"),
        ({"step": 100, "lr": 0.1, "accuracy": 0.5}, "accuracy"),
        ({"epoch": 2.0, "time_this_iter_s": 0.5, "reward": 7}, "reward"),
        ({"timesteps_total": 10, "samples": 12, "tokens_total": 5, "global_step": 3, "f1": 0.25}, "f1"),
        ({"seen": 4, "correct": 57}, "correct"),  # as high as the number of reports
        ({"correct": 57, "f1": 0.5}, "f1"),
        ({"train": {"epoch": 1, "acc": 0.5}, "val": {"epoch": 1, "loss": 2}}, "val/loss"),
        ({"steps_per_s": 8.5, "auc": 0.9}, "auc"),
        ({"timeliness": 0.5}, "timeliness"),
        ({"epoch": 3, "done": True, "name": "x"}, None),
        ({}, None),
    ],
)
def test_counters_are_left_out_and_losses_come_first(metrics: dict[str, Any], chosen: str | None) -> None:
    assert default_metric(metrics, iteration=4) == chosen


def test_names_of_all_runs() -> None:
    assert metric_names([{"a": 1, "b": {"c": 2}}, {"d": 1, "a": 3}]) == ["a", "b/c", "d"]
