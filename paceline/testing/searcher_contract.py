"""What every searcher must do, as one test class.

A searcher's test module subclasses SearcherContract and says how to make one::

    class TestMySearcher(SearcherContract):
        def make(self, metric, mode, space, seed):
            searcher = MySearcher(seed=seed)
            assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
            return searcher

`seed` may be None: then the searcher shall use what `set_seed` gives it.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.tune.search.sample import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    quniform,
    randint,
    uniform,
)
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.space import find, path_text, resolve

Config = dict[str, Any]
Objective = Callable[[Config], float]

METRIC = "loss"
OPTIMUM = 3.0
RECORDED_SEED = 2**62 + 5
"""Experiments draw 63 bits."""
SPACE: Config = {
    "x": uniform(-10.0, 10.0),
    "rate": loguniform(1e-5, 1e-1),
    "fraction": quniform(0.0, 1.0, 0.1),
    "scale": qloguniform(0.5, 50.0, 0.5),
    "network": {
        "width": qrandint(8, 64, 8),
        "depth": randint(1, 5),
        "heads": qlograndint(2, 32, 2),
        "units": lograndint(1, 1000),
        "shape": choice([[1, 2], "wide", None]),
    },
    "stages": [uniform(0.0, 1.0), {"kind": choice(["a", "b"])}],
    "constant": "as it is",
}


def distance(config: Config) -> float:
    """The objective: smallest where x is OPTIMUM."""
    return float((config["x"] - OPTIMUM) ** 2)


class Conversation:
    """An experiment in miniature: asks, keeps a few trials unfinished, and tells how they ended."""

    def __init__(self, searcher: Searcher, space: Config, objective: Objective = distance) -> None:
        self.searcher = searcher
        self.space = space
        self.objective = objective
        self.calls: list[tuple[Any, ...]] = []
        self.configs: list[Config] = []
        self.end: tuple[Config | None, bool] | None = None
        """The last row of every trial and whether it failed, in the place of the objective."""
        self._unfinished: list[tuple[str, Config]] = []

    def advance(self, trials: int, unfinished: int = 2, failing: int = 0) -> list[Config]:
        """Run this many trials; every `failing`-th one fails. The configurations they got."""
        target = len(self.configs) + trials
        while len(self.configs) < target:
            trial_id = f"trial_{len(self.configs)}"
            suggestion = self.searcher.suggest(trial_id)
            if suggestion is None:
                assert self._unfinished, "the searcher waits, and there is nothing to wait for"
                self._finish(failing)
                continue
            assert isinstance(suggestion, dict)
            config, _ = resolve(self.space, suggestion, 0)
            self.calls.append(("remember", trial_id, config))
            self.configs.append(config)
            self._unfinished.append((trial_id, config))
            suggestion.clear()  # a suggestion belongs to who asked for it
            while len(self._unfinished) > unfinished:
                self._finish(failing)
        return self.configs[-trials:]

    def _finish(self, failing: int) -> None:
        trial_id, config = self._unfinished.pop(0)
        if failing and int(trial_id.rpartition("_")[2]) % failing == 0:
            result, error = None, True
        else:
            result, error = self.end or ({METRIC: self.objective(config)}, False)
        self.calls.append(("on_trial_complete", trial_id, result, error))
        self.searcher.on_trial_complete(trial_id, result, error)

    def repeated_to(self, searcher: Searcher) -> Conversation:
        """The same calls, made to another searcher as a restore makes them."""
        for call, *arguments in self.calls:
            getattr(searcher, call)(*arguments)
        return self.continued_by(searcher)

    def continued_by(self, searcher: Searcher) -> Conversation:
        """A conversation that has come as far as this one, with another searcher."""
        other = Conversation(searcher, self.space, self.objective)
        other.configs, other._unfinished = list(self.configs), list(self._unfinished)
        return other


class SearcherContract:
    """Subclass it, and define `make`."""

    learns = True
    """False for searchers that do not look at results."""
    saves = True
    """False for searchers without save() and restore()."""
    draws = True
    """False for searchers without chance in them."""

    def make(self, metric: str, mode: str, space: Config, seed: int | None) -> Searcher:
        """A new searcher, ready to be asked."""
        raise NotImplementedError

    def talk(self, seed: int | None = 1, mode: str = "min", space: Config = SPACE) -> Conversation:
        return Conversation(self.make(METRIC, mode, space, seed), space)

    def test_suggestions_lie_in_the_space(self) -> None:
        found = find(SPACE)
        for config in self.talk().advance(25):
            _, evaluated = resolve(SPACE, config)
            for path, domain in found.domains.items():
                value = evaluated[path_text(path)]
                assert domain.is_valid(value), f"{path_text(path)} is {value!r}, not in {domain}"
            assert config["constant"] == "as it is"

    def test_metric_and_mode_are_known(self) -> None:
        searcher = self.make(METRIC, "max", SPACE, 1)
        assert (searcher.metric, searcher.mode) == (METRIC, "max")

    def test_the_seed_decides(self) -> None:
        first = self.talk(seed=1).advance(16)
        assert self.talk(seed=1).advance(16) == first
        if self.draws:
            assert self.talk(seed=2).advance(16) != first

    def test_a_recorded_seed_is_for_searchers_without_one(self) -> None:
        def suggestions(own: int | None, recorded: int) -> list[Config]:
            talk = self.talk(seed=own)
            talk.searcher.set_seed(recorded)
            return talk.advance(5)

        one, another = RECORDED_SEED, RECORDED_SEED + 1
        assert suggestions(None, one) == suggestions(None, one)
        assert suggestions(1, one) == suggestions(1, another) == self.talk(seed=1).advance(5)
        if self.draws:
            assert suggestions(None, one) != suggestions(None, another)

    def test_nothing_is_given_twice_for_lack_of_results(self) -> None:
        if self.draws:
            values = [config["x"] for config in self.talk().advance(12, unfinished=2)]
            assert len(set(values)) > 4

    @pytest.mark.parametrize("error", [False, True])
    def test_trials_without_a_usable_result_do_not_end_the_search(self, error: bool) -> None:
        talk = self.talk()
        talk.advance(12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such a trial is not learnt from may be said
            for result in (None, {}, {METRIC: None}, {METRIC: math.nan}, {METRIC: math.inf}, {METRIC: "text"}):
                talk.end = result, error
                talk.advance(2, unfinished=0)
        talk.end = None
        assert len(talk.advance(5)) == 5

    def test_a_search_of_failures_goes_on(self) -> None:
        assert len(self.talk().advance(30, failing=1)) == 30

    # Continuing an interrupted search

    @pytest.mark.parametrize("trials", [1, 7, 25])
    def test_replayed_calls_lead_to_the_same_state(self, trials: int) -> None:
        talk = self.talk(seed=None)
        talk.searcher.set_seed(RECORDED_SEED)
        talk.advance(trials, failing=5)
        searcher = self.make(METRIC, "min", SPACE, None)
        searcher.set_seed(RECORDED_SEED)
        replayed = talk.repeated_to(searcher)
        assert replayed.advance(4) == talk.advance(4)

    def test_a_search_can_be_interrupted_again_and_again(self) -> None:
        steady, broken = self.talk(), self.talk()
        for _ in range(4):
            steady.advance(5)
            broken.advance(5)
            again = broken.repeated_to(self.make(METRIC, "min", SPACE, 1))
            again.calls = broken.calls
            broken = again
        assert broken.configs == steady.configs

    def test_a_saved_search_goes_on(self, tmp_path: Path) -> None:
        if not self.saves:
            pytest.skip("this searcher has no save()")
        talk = self.talk(seed=1)
        talk.advance(16, failing=5)
        talk.searcher.save(str(tmp_path / "search"))
        searcher = self.make(METRIC, "min", SPACE, 1)
        searcher.restore(str(tmp_path / "search"))
        assert talk.continued_by(searcher).advance(4) == talk.advance(4)

    # Learning

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_later_suggestions_are_better_than_chance(self, mode: str) -> None:
        if not self.learns:
            pytest.skip("this searcher does not look at results")
        space = {"x": uniform(-10.0, 10.0)}
        sign = 1 if mode == "min" else -1
        talk = Conversation(self.make(METRIC, mode, space, 1), space, lambda config: sign * distance(config))
        reached = [distance(config) for config in talk.advance(60)[-20:]]
        chance = random.Random(1)
        by_chance = [distance({"x": chance.uniform(-10, 10)}) for _ in range(20)]
        assert sum(reached) < sum(by_chance) / 2
