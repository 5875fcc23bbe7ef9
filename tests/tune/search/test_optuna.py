"""OptunaSearch."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from paceline.air.errors import ConfigError, RestoreError
from paceline.testing.searcher_contract import METRIC, SPACE, Conversation, SearcherContract
from paceline.tune.search import OptunaSearch, Searcher
from paceline.tune.search.sample import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from tests.tune.search.optuna_searchers import ready, suggested


class TestTpe(SearcherContract):
    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = OptunaSearch(seed=seed)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


class TestRandom(SearcherContract):
    learns = False

    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = OptunaSearch(seed=seed, sampler="random")
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


# Spaces


def test_domains_become_distributions() -> None:
    searcher = ready(
        {
            "float": uniform(-1, 2),
            "log": loguniform(1e-3, 1),
            "steps": quniform(0, 1, 0.25),
            "int": randint(2, 7),
            "log_int": lograndint(1, 100),
            "even": qrandint(2, 8, 2),
            "plain": choice(["a", 1, None]),
            "inner": {"objects": choice([print, [1]]), "log_steps": qloguniform(0.5, 4, 0.5)},
            "log_even": qlograndint(2, 64, 2),
        }
    )
    searcher.suggest("a")
    assert searcher.study.trials[0].distributions == {
        "float": FloatDistribution(-1, 2),
        "log": FloatDistribution(1e-3, 1, log=True),
        "steps": IntDistribution(0, 4),
        "int": IntDistribution(2, 6),
        "log_int": IntDistribution(1, 99, log=True),
        "even": IntDistribution(2, 8, step=2),
        "plain": CategoricalDistribution(["a", 1, None]),
        "inner/objects": CategoricalDistribution([0, 1]),
        "inner/log_steps": IntDistribution(1, 8, log=True),
        "log_even": IntDistribution(1, 32, log=True),
    }


def test_options_that_python_takes_for_equal_stay_apart() -> None:
    searcher = ready({"x": choice([True, 1, 1.0])}, sampler="random")
    values = [suggested(searcher, str(number))["x"] for number in range(30)]
    assert {type(value) for value in values} == {bool, int, float}


@pytest.mark.parametrize(
    ("domain", "advice"),
    [
        (grid_search([1, 2]), r"a/b.*grid_search.*tune\.choice"),
        (sample_from(lambda spec: 1), r"a/b.*sample_from.*function"),
        (randn(2, 1), r"a/b.*randn.*tune\.uniform\(-1, 5\)"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_advice(domain: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        OptunaSearch().set_search_properties("loss", "min", {"a": {"b": domain}})


def test_a_space_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OptunaSearch.*param_space.*tune\.uniform"):
        OptunaSearch().set_search_properties("loss", "min", {"constant": 1})


def test_a_space_of_distributions() -> None:
    space = {"a": {"lr": FloatDistribution(0.1, 1, log=True)}, "kind": CategoricalDistribution(["x", "y"])}
    searcher = OptunaSearch(space, metric="loss", mode="max", seed=1)
    suggestion = suggested(searcher, "t")
    assert set(suggestion) == {"a", "kind"}
    assert 0.1 <= suggestion["a"]["lr"] <= 1
    assert searcher.study.direction.name == "MAXIMIZE"
    with pytest.raises(ConfigError, match=r"constant=1\b"):
        OptunaSearch({**space, "constant": 1}, "loss", "min").suggest("t")


def conditional(trial: optuna.Trial) -> dict[str, Any]:
    kind = trial.suggest_categorical("model/kind", ["tree", "net"])
    if kind == "tree":
        trial.suggest_int("model/depth", 1, 8)
    else:
        trial.suggest_float("model/rate", 1e-3, 1, log=True)
    return {"model": {"family": kind.upper()}, "epochs": 3}


def test_a_space_that_a_function_defines() -> None:
    searcher = OptunaSearch(conditional, "loss", "min", seed=1)
    suggestions = [suggested(searcher, str(number)) for number in range(20)]
    assert {each["model"]["kind"] for each in suggestions} == {"tree", "net"}
    for each in suggestions:
        assert each["epochs"] == 3
        assert set(each["model"]) == {"kind", "family", "depth" if each["model"]["kind"] == "tree" else "rate"}


def test_a_space_that_a_function_defines_is_replayed() -> None:
    def make() -> OptunaSearch:
        return OptunaSearch(conditional, "loss", "min", seed=1)

    talk = Conversation(make(), {}, lambda config: config["model"].get("depth", 9))
    talk.advance(25, failing=6)
    assert talk.repeated_to(make()).advance(5) == talk.advance(5)


def test_a_function_must_not_give_a_parameter_two_values() -> None:
    searcher = OptunaSearch(lambda trial: {"x": 10 ** trial.suggest_int("x", 1, 3)}, "loss", "min")
    with pytest.raises(ConfigError, match=r"x=.*'x'.*name"):
        searcher.suggest("a")
    assert [trial.state for trial in searcher.study.trials] == [TrialState.FAIL]


def test_two_spaces_are_refused() -> None:
    searcher = OptunaSearch(conditional, "loss", "min")
    assert not searcher.set_search_properties(None, None, {"x": uniform(0, 1)})
    assert searcher.set_search_properties(None, None, {"constant": 1})


def test_missing_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"OptunaSearch.*\bmetric: .*TuneConfig"):
        OptunaSearch(conditional).suggest("a")
    with pytest.raises(ConfigError, match=r"OptunaSearch.*\bmode: .*TuneConfig"):
        OptunaSearch(conditional, metric="loss").suggest("a")
    with pytest.raises(ConfigError, match=r"OptunaSearch.*param_space.*space="):
        OptunaSearch(metric="loss", mode="min").suggest("a")


# Points


def test_points_come_first_and_what_they_leave_out_is_chosen() -> None:
    space = {"x": uniform(0, 1), "inner": {"option": choice([print, max])}, "constant": 5}
    searcher = ready(space, points_to_evaluate=[{"x": 0.5, "inner": {"option": max}}, {"inner/option": print}])
    assert suggested(searcher, "a") == {"x": 0.5, "inner": {"option": max}}
    second = suggested(searcher, "b")
    assert second["inner"]["option"] is print
    assert 0 <= second["x"] <= 1


@pytest.mark.parametrize(
    ("point", "problem"), [({"y": 1}, "'y', which is not searched for"), ({"x": 7}, r"x is 7, which is not in uniform")]
)
def test_points_outside_of_the_space_are_refused(point: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ready(points_to_evaluate=[point]).suggest("a")


def test_points_with_known_values_are_learnt_from_and_not_run() -> None:
    points = [{"x": 0.1}, {"x": 0.2}]
    searcher = ready(points_to_evaluate=points, evaluated_rewards=[1.0, 2.0])
    assert suggested(searcher, "a") not in points
    assert [trial.value for trial in searcher.study.trials] == [1.0, 2.0, None]
    searcher.on_trial_complete("a", {"loss": 3.0})
    assert searcher.study.trials[2].value == 3.0
    with pytest.raises(ConfigError, match=r"evaluated_rewards.*points_to_evaluate"):
        OptunaSearch(points_to_evaluate=points, evaluated_rewards=[1.0])


def test_points_that_were_evaluated_elsewhere(tmp_path: Path) -> None:
    searcher = ready()
    searcher.add_evaluated_point({"x": 0.25}, 4.0)
    first = suggested(searcher, "a")
    searcher.add_evaluated_point({"x": 0.5}, 0.0, error=True)
    assert [trial.state.name for trial in searcher.study.trials] == ["COMPLETE", "RUNNING", "FAIL"]
    assert searcher.knows_more
    searcher.save(str(tmp_path / "search"))
    again = ready()
    again.restore(str(tmp_path / "search"))
    assert [trial.params for trial in again.study.trials] == [{"x": 0.25}, first, {"x": 0.5}]
    again.on_trial_complete("a", {"loss": 1.0})
    assert [trial.value for trial in again.study.trials] == [4.0, 1.0, None]
    with pytest.raises(ConfigError, match=r"evaluated point .*parameter"):
        again.add_evaluated_point({}, 1.0)


# What is told


def test_the_last_value_counts_and_failures_do_not() -> None:
    searcher = ready()
    for trial in "abc":
        searcher.suggest(trial)
    searcher.on_trial_complete("a", {"loss": 2, "done": True})
    searcher.on_trial_complete("b", {"loss": 1.0}, error=True)
    with pytest.warns(UserWarning, match=r"Trial c\b.*'loss' is nan"):
        searcher.on_trial_complete("c", {"loss": math.nan})
    searcher.suggest("d")
    searcher.on_trial_complete("d", {"score": 1.0})  # said once
    searcher.on_trial_complete("never suggested", {"loss": 0.0})
    trials = searcher.study.trials
    assert [(trial.state, trial.value) for trial in trials] == [
        (TrialState.COMPLETE, 2.0),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
    ]
    assert not searcher.wants_results


def test_nested_metrics_are_found() -> None:
    searcher = OptunaSearch({"x": uniform(0, 1)}, "eval/loss", "min")
    for trial in "ab":
        searcher.suggest(trial)
    searcher.on_trial_complete("a", {"eval": {"loss": 1.5}})
    searcher.on_trial_complete("b", {"eval/loss": 2.5})
    assert [trial.value for trial in searcher.study.trials] == [1.5, 2.5]


def test_several_goals() -> None:
    def make() -> OptunaSearch:
        return OptunaSearch({"x": uniform(0, 1)}, ["cost", "score"], ["min", "max"], seed=1)

    searcher, replayed = make(), make()
    for number in range(15):
        x = suggested(searcher, str(number))["x"]
        replayed.remember(str(number), {"x": x})
        for each in (searcher, replayed):
            each.on_trial_complete(str(number), {"cost": x, "score": x * x})
    assert len(searcher.study.best_trials) == 15, "what costs more scores more: none is beaten by another"
    assert searcher.suggest("next") == replayed.suggest("next")


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    searcher = ready()
    for number in range(12):
        searcher.suggest(str(number))
        searcher.on_trial_complete(str(number), {"loss": 1.0})
    assert capfd.readouterr() == ("", "")


# Saving and replaying


def test_a_file_of_another_searcher_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search"
    path.write_text('{"searcher": "HyperOptSearch", "seed": 1}\n')
    with pytest.raises(RestoreError, match=r"HyperOptSearch.*OptunaSearch"):
        ready().restore(str(path))
    searcher = ready()
    searcher.suggest("a")
    with pytest.raises(RestoreError, match=r"OptunaSearch.*new one"):
        searcher.restore(str(path))


def test_a_long_search_is_replayed_without_searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 trials take about a second; sampling them would take minutes."""
    searcher = ready(SPACE)
    config = Conversation(ready(SPACE), SPACE).advance(1)[0]

    def unexpected(*_: Any, **__: Any) -> None:
        raise AssertionError("a remembered trial was sampled")

    monkeypatch.setattr(optuna.Study, "ask", unexpected)
    for number in range(2_000):
        searcher.remember(str(number), config)
        if number % 2:
            searcher.on_trial_complete(str(number), {METRIC: float(number)})
    states = [trial.state for trial in searcher.study.get_trials(deepcopy=False)]
    assert states == [TrialState.RUNNING, TrialState.COMPLETE] * 1_000
    searcher.on_trial_complete("0", {METRIC: -1.0})
    assert searcher.study.best_trial.number == 0


def test_warnings_of_optuna_do_not_reach_users() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampler in ("tpe", "random", "nsga2", "nsga3", "qmc"):
            ready(SPACE, sampler=sampler, seed=2**62).suggest("a")


def test_a_pruner_is_answered_with_schedulers() -> None:
    with pytest.raises(TypeError, match=r"^OptunaSearch\(\).*'pruner'.*ASHAScheduler"):
        OptunaSearch(pruner=optuna.pruners.MedianPruner())  # type: ignore[call-arg]
