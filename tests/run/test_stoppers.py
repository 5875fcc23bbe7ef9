"""When runs stop: every form of RunConfig(stop=...)."""

from __future__ import annotations

import math
import re
import threading
from datetime import timedelta
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.run.stoppers import (
    CombinedStopper,
    DictStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
    make_stopper,
)


def decisions(stopper: Stopper, values: list[Any], key: str = "loss") -> list[bool]:
    return [stopper("t", {key: value, "training_iteration": i}) for i, value in enumerate(values, start=1)]


def test_nothing_asked_for_is_no_stopper() -> None:
    assert make_stopper(None) is None
    assert make_stopper({}) is None


def test_a_nested_dict_is_a_path() -> None:
    stopper = make_stopper({"valid": {"accuracy": 0.9}})
    assert stopper is not None
    rows = [{"valid": {"accuracy": value}, "training_iteration": 1} for value in (0.8, 0.95)]
    assert [stopper("t", row) for row in rows] == [False, True]


def test_dict_stops_at_its_threshold() -> None:
    stopper = make_stopper({"accuracy": 0.9})
    assert stopper is not None
    assert decisions(stopper, [0.5, 0.89, 0.9, 0.95], "accuracy") == [False, False, True, True]
    assert not stopper.stop_all()


def test_any_threshold_of_a_dict_is_enough() -> None:
    stopper = DictStopper({"accuracy": 0.9, "training_iteration": 2})
    assert decisions(stopper, [0.1, 0.1], "accuracy") == [False, True]


def test_dict_reaches_into_nested_metrics() -> None:
    stopper = DictStopper({"eval/accuracy": 0.9})
    assert not stopper("t", {"eval": {"accuracy": 0.1}})
    assert stopper("t", {"eval": {"accuracy": 0.9}})
    assert stopper("t", {"eval/accuracy": 1.0})


STOPPERS_BY_ACCURACY = [
    DictStopper({"accuracy": 0.9}),
    TrialPlateauStopper("accuracy"),
    ExperimentPlateauStopper("accuracy", top=2),
    CombinedStopper(NoopStopper(), DictStopper({"accuracy": 0.9})),
]


@pytest.mark.parametrize("given", STOPPERS_BY_ACCURACY, ids=lambda stopper: type(stopper).__name__)
def test_a_metric_that_ten_rows_do_not_have_is_taken_for_a_slip(given: Stopper) -> None:
    stopper = make_stopper(given)
    assert stopper is not None
    assert decisions(stopper, [1.0] * 9, "acuracy") == [False] * 9
    with pytest.raises(ConfigError, match=r"stop=.*'accuracy'.*\b10 rows.*\bacuracy\b"):
        stopper("t", {"acuracy": 1.0, "training_iteration": 10, "config": {"acuracy_": 1}, "pid": 3})


def test_an_unknown_metric_names_what_the_user_reported() -> None:
    stopper = DictStopper({"wer": 1})
    stopper("t", {"training_iteration": 1})
    row = {"loss": 1, "pid": 3, "hostname": "h", "eval": {"f1": 1}, "config": {"x": 1}, "training_iteration": 10}
    with pytest.raises(ConfigError, match=r"'wer'.*: loss, eval/f1, training_iteration, time_total_s\.$"):
        stopper("t", row)


def test_a_metric_of_some_rows_is_judged_in_those() -> None:
    stopper = DictStopper({"accuracy": 0.9})
    rows = [{"training_iteration": i, **({"accuracy": i / 40} if i % 5 == 0 else {})} for i in range(1, 41)]
    assert [row["training_iteration"] for row in rows if stopper("t", row)] == [40]


def test_a_trial_whose_first_row_was_not_seen_may_have_reported_the_metric_before() -> None:
    stopper = DictStopper({"accuracy": 0.9})
    assert not any(stopper("restored", {"training_iteration": i}) for i in range(5, 50))


def test_rows_without_the_metric_do_not_count_towards_a_plateau() -> None:
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=2)
    rows = [{"loss": 1.0}, {}, {}, {"loss": 1.0}]
    told = [stopper("t", {**row, "training_iteration": i}) for i, row in enumerate(rows, start=1)]
    assert told == [False, False, False, True]


def test_misspelt_metric_shows_even_if_another_one_stops() -> None:
    stopper = DictStopper({"loss": 0, "typo": 1})
    assert stopper("t", {"loss": 1, "training_iteration": 1})
    assert "'typo'" in str(stopper.never_reported("t", {"loss": 1}))


@pytest.mark.parametrize("given", STOPPERS_BY_ACCURACY, ids=lambda stopper: type(stopper).__name__)
def test_a_trial_that_ended_without_the_metric_is_told(given: Stopper) -> None:
    stopper = make_stopper(given)
    assert stopper is not None
    assert decisions(stopper, [1.0] * 3, "acuracy") == [False] * 3
    assert "acuracy" in str(stopper.never_reported("t", {"acuracy": 1.0}))
    assert stopper.never_reported("t", {"acuracy": 1.0}) is None, "once"
    decisions(stopper, [0.1, 0.5], "accuracy")
    assert stopper.never_reported("t", {"accuracy": 0.5}) is None


@pytest.mark.parametrize("value", [None, math.nan])
def test_no_value_does_not_stop(value: float | None) -> None:
    assert not DictStopper({"loss": 0})("t", {"loss": value})


def test_text_is_not_compared() -> None:
    with pytest.raises(ConfigError, match=r"'phase'.*'warmup'"):
        DictStopper({"phase": 1})("t", {"phase": "warmup"})


@pytest.mark.parametrize("stop", [{"loss": "0.1"}, {1: 2}, {"loss": None}])
def test_dict_that_is_no_thresholds_is_refused(stop: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stop=.*metric.*number"):
        make_stopper(stop)


def test_function() -> None:
    seen: list[str] = []

    def enough(trial_id: str, result: dict[str, Any]) -> bool:
        seen.append(trial_id)
        return bool(result["loss"] < 0.1)

    stopper = make_stopper(enough)
    assert isinstance(stopper, FunctionStopper)
    assert decisions(stopper, [1.0, 0.05]) == [False, True]
    assert seen == ["t", "t"]


def test_a_stopper_is_taken_as_a_copy() -> None:
    stopper = NoopStopper()
    copied = make_stopper(stopper)
    assert isinstance(copied, NoopStopper)
    assert copied is not stopper


def test_a_class_instead_of_an_instance_gets_advice() -> None:
    with pytest.raises(ConfigError, match=r"MaximumIterationStopper\(\.\.\.\)"):
        make_stopper(MaximumIterationStopper)


@pytest.mark.parametrize("stop", [5, "loss", [NoopStopper()], dict])
def test_anything_else_is_refused(stop: object) -> None:
    with pytest.raises(ConfigError, match=f"stop={re.escape(repr(stop))}"):
        make_stopper(stop)


def test_maximum_iteration_counts_a_repeated_row_once() -> None:
    stopper = MaximumIterationStopper(4)
    iterations = [1, 2, 3, 2, 3, 4]  # a retry went back to the checkpoint of iteration 1
    assert [stopper("t", {"training_iteration": i}) for i in iterations] == [False] * 5 + [True]


def test_timeout_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("paceline.run.stoppers.time.monotonic", lambda: now[0])
    stopper = TimeoutStopper(timedelta(seconds=10))
    assert not stopper("t", {})
    now[0] += 9.9
    assert not stopper.stop_all()
    now[0] += 0.2
    assert stopper.stop_all()
    assert stopper("t", {})


def test_timeout_must_be_above_zero() -> None:
    with pytest.raises(ConfigError, match=r"TimeoutStopper.*\b0\b"):
        TimeoutStopper(0)


def test_trial_plateau() -> None:
    stopper = TrialPlateauStopper("loss", std=0.01, num_results=3, grace_period=5)
    assert decisions(stopper, [1, 1, 1, 1, 1]) == [False, False, False, False, True]
    assert decisions(TrialPlateauStopper("loss", num_results=3, grace_period=0), [3, 2, 1, 1, 1])[-2:] == [False, True]


def test_trial_plateau_keeps_trials_apart() -> None:
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=2)
    assert [stopper(trial, {"loss": 1}) for trial in ("a", "b", "a", "b")] == [False, False, True, True]


@pytest.mark.parametrize(("mode", "value"), [("min", 0.5), ("max", 0.05)])
def test_trial_plateau_waits_for_the_good_side_of_its_threshold(mode: Any, value: float) -> None:
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=0, metric_threshold=0.1, mode=mode)
    assert decisions(stopper, [value] * 4) == [False] * 4
    assert decisions(stopper, [0.1, 0.1])[-1]


def test_trial_plateau_threshold_needs_a_mode() -> None:
    with pytest.raises(ConfigError, match="mode='min'"):
        TrialPlateauStopper("loss", metric_threshold=0.1)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_broken_metric_is_not_at_rest(value: float | None) -> None:
    stopper = TrialPlateauStopper("loss", num_results=2, grace_period=0)
    assert decisions(stopper, [value] * 5) == [False] * 5


def test_experiment_plateau_needs_full_top_and_patience() -> None:
    stopper = ExperimentPlateauStopper("loss", top=3, patience=2)
    assert decisions(stopper, [1, 1, 1, 1, 1]) == [False, False, False, False, True]
    assert stopper.stop_all()


def test_experiment_plateau_starts_again_when_a_better_value_comes() -> None:
    stopper = ExperimentPlateauStopper("accuracy", top=2, mode="max", patience=1)
    assert decisions(stopper, [0.5, 0.5, 0.9, 0.9, 0.9], "accuracy") == [False, False, False, False, True]


@pytest.mark.parametrize("wrong", [{"mode": "best"}, {"top": 1}, {"patience": -1}])
def test_experiment_plateau_refuses_settings_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ExperimentPlateauStopper("loss", **wrong)


def test_combined_shows_every_row_to_every_stopper() -> None:
    plateau = TrialPlateauStopper("loss", num_results=2, grace_period=2)
    stopper = CombinedStopper(FunctionStopper(lambda trial_id, result: result["training_iteration"] == 1), plateau)
    assert decisions(stopper, [1, 1]) == [True, True]


def test_combined_hands_on_stop_all() -> None:
    class Everything(NoopStopper):
        def stop_all(self) -> bool:
            return True

    assert not CombinedStopper(NoopStopper()).stop_all()
    assert CombinedStopper(NoopStopper(), Everything()).stop_all()


def test_combined_takes_stoppers_only() -> None:
    with pytest.raises(ConfigError, match=r"CombinedStopper.*Stopper.*'loss'"):
        CombinedStopper({"loss": 1})  # type: ignore[arg-type]


def test_what_a_stopper_learned_in_one_run_does_not_count_in_the_next() -> None:
    given = CombinedStopper(ExperimentPlateauStopper("loss", top=2))
    for _ in range(2):
        stopper = make_stopper(given)
        assert stopper is not None
        assert decisions(stopper, [1.0, 1.0]) == [False, True]
    assert not given.stop_all()


def test_a_stopper_that_cannot_be_copied_is_used_as_it_is() -> None:
    stopper = MaximumIterationStopper(3)
    stopper.lock = threading.Lock()  # type: ignore[attr-defined]
    assert make_stopper(stopper) is stopper
