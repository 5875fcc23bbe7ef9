"""TuneConfig: several goals, and what is refused where it is written."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.air.errors import ConfigError, TuneError
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


def test_a_setting_that_cannot_work_is_an_error_of_tune() -> None:
    with pytest.raises(TuneError, match=r"mode.*'least'"):
        TuneConfig(metric="a", mode="least")


def test_reuse_actors_is_ignored_with_one_warning() -> None:
    with pytest.warns(UserWarning, match=r"reuse_actors=True is ignored.*fork") as caught:
        dataclasses.replace(TuneConfig(reuse_actors=True), num_samples=2)
    assert len(caught) == 1
