"""TuneConfig: several goals, and what is refused where it is written."""

from __future__ import annotations

import pytest

from paceline.air.errors import ConfigError
from paceline.tune import TuneConfig


def test_one_mode_may_stand_for_all_metrics() -> None:
    # Three metrics, because "min" has three letters.
    assert TuneConfig(metric=["a", "b", "c"], mode="min").mode == ["min", "min", "min"]
    assert TuneConfig(metric=["a", "b"], mode="max").mode == ["max", "max"]


def test_modes_must_go_with_metrics() -> None:
    assert TuneConfig(metric=["a", "b"], mode=["min", "max"]).mode == ["min", "max"]
    with pytest.raises(ConfigError, match=r"\['a', 'b'\].*mode=\['min', 'min'\]"):
        TuneConfig(metric=["a", "b"], mode=["min"])
    with pytest.raises(ConfigError, match=r"mode=\['min'\].*'a'"):
        TuneConfig(metric="a", mode=["min"])
