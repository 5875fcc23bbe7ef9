"""The samplers of OptunaSearch: which can be chosen, and how a restored search continues with them."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from paceline.air.errors import ConfigError
from paceline.testing.searcher_contract import Conversation
from paceline.tune.search import OptunaSearch, Searcher
from paceline.tune.search.sample import (
    choice,
    quniform,
    randint,
    uniform,
)
from tests.tune.search.optuna_searchers import ready, suggested

# Samplers


@pytest.mark.parametrize(
    ("sampler", "trials"),
    [
        ("nsga2", 60),  # a second generation, in which parents matter
        ("nsga3", 60),
        ("qmc", 20),
        (optuna.samplers.TPESampler, 15),
        (lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=3), 12),
        (lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=4), 15),
    ],
)
def test_samplers_are_continued_where_they_were(sampler: Any, trials: int) -> None:
    space = {"x": uniform(-10, 10), "option": choice(["a", "b"]), "step": quniform(0, 1, 0.1)}

    def make() -> OptunaSearch:
        return ready(space, sampler=sampler)

    talk = Conversation(make(), space)
    talk.advance(trials, failing=7)
    assert talk.repeated_to(make()).advance(3) == talk.advance(3)


@pytest.mark.slow  # imports torch
def test_a_gaussian_process_is_continued_where_it_was() -> None:
    space = {"x": uniform(-10, 10)}

    def make() -> OptunaSearch:
        return ready(space, sampler=lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=2))

    talk = Conversation(make(), space)
    talk.advance(3, unfinished=0)
    assert talk.repeated_to(make()).advance(1) == talk.advance(1)


def test_cmaes_is_continued_where_it_was() -> None:
    pytest.importorskip("cmaes")
    space = {"x": uniform(-10, 10), "y": uniform(0, 1)}
    talk = Conversation(ready(space, sampler="cmaes"), space)
    talk.advance(30, failing=7)
    assert talk.repeated_to(ready(space, sampler="cmaes")).advance(10) == talk.advance(10)


def test_points_of_a_quasi_random_sequence_cover_the_space_evenly() -> None:
    searcher = ready(sampler="qmc")
    searcher.suggest("first")  # by chance: the sequence begins when the space is known
    searcher.on_trial_complete("first", {"loss": 0.0})
    values = sorted(suggested(searcher, str(number))["x"] for number in range(16))
    assert [int(value * 16) for value in values] == list(range(16))


def test_brute_force_ends_when_all_has_been_tried() -> None:
    def make() -> OptunaSearch:
        return ready({"a": randint(0, 3), "b": choice(["x", "y"])}, sampler="brute_force")

    searcher, replayed = make(), make()
    seen = []
    for number in range(6):
        suggestion = suggested(searcher, str(number))
        seen.append((suggestion["a"], suggestion["b"]))
        replayed.remember(str(number), suggestion)
        for each in (searcher, replayed):
            each.on_trial_complete(str(number), {"loss": 0.0})
    assert len(set(seen)) == 6
    assert searcher.suggest("more") == replayed.suggest("more") == Searcher.FINISHED


def test_a_sampler_object_continues_with_the_same_history() -> None:
    def make() -> OptunaSearch:
        return ready(sampler=optuna.samplers.TPESampler())  # unseeded

    searcher, replayed = make(), make()
    for number in range(3):
        replayed.remember(str(number), suggested(searcher, str(number)))
    assert [trial.params for trial in replayed.study.trials] == [trial.params for trial in searcher.study.trials]


def test_a_sampler_with_notes_that_cannot_be_had_again_is_named() -> None:
    searcher = ready(sampler=optuna.samplers.NSGAIISampler())  # unseeded
    with pytest.warns(UserWarning, match="sampler of OptunaSearch.*Seed"):
        searcher.remember("a", {"x": 0.125})
    searcher.on_trial_complete("a", {"loss": 1.0})
    (kept,) = [trial for trial in searcher.study.trials if trial.state == TrialState.COMPLETE]
    assert kept.params == {"x": 0.125}


@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        ("bayes", "'bayes'.*tpe, random, gp, .*Bayesian"),
        (3, "give a name"),
        (optuna.samplers.GridSampler({"x": [1]}), r"tune\.grid_search"),
    ],
)
def test_samplers_that_cannot_be_are_refused(sampler: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        OptunaSearch(sampler=sampler)


def test_a_sampler_whose_library_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install cmaes"):
        OptunaSearch(sampler="cmaes")


def test_optuna_itself_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ImportError, match=r"paceline\[tune\]"):
        OptunaSearch()
