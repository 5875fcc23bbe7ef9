"""The base class: what a searcher of one's own gets for free."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.testing.searcher_contract import SearcherContract
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from paceline.tune.search.searcher import Searcher, Suggestion, report_completion
from paceline.tune.search.space import find


class AroundTheBest(Searcher):
    """A searcher as a user would write it: near the best x so far, or anywhere."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._own_seed = seed
        self._random = random.Random(seed)
        self._space: dict[str, Any] = {}
        self._given: dict[str, float] = {}
        self._best: tuple[float, float] | None = None

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self._space = config
        return super().set_search_properties(metric, mode, config, **spec)

    def set_seed(self, seed: int) -> None:
        if self._own_seed is None:
            self._random.seed(seed)

    def suggest(self, trial_id: str) -> Suggestion:
        flat = {"/".join(map(str, path)): each.draw(self._random) for path, each in find(self._space).domains.items()}
        if self._best is not None:
            flat["x"] = min(10.0, max(-10.0, self._random.gauss(self._best[1], 1.0)))
        self._given[trial_id] = flat["x"]
        return flat

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        x = self._given.pop(trial_id)
        value = (result or {}).get(str(self.metric))
        if error or not isinstance(value, float) or value != value:
            return
        value = value if self.mode == "min" else -value
        self._best = min(filter(None, [self._best, (value, x)]))


class TestSearcherOfOnesOwn(SearcherContract):
    saves = False

    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = AroundTheBest(seed)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


class TestBasicVariantGenerator(SearcherContract):
    learns = False

    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = BasicVariantGenerator(random_state=seed)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


class Forgetful(Searcher):
    def suggest(self, trial_id: str) -> Suggestion:
        return {"x": 1.0, "inner": {"y": 2.0}}


def test_a_searcher_that_does_not_repeat_itself_is_named_once() -> None:
    searcher = Forgetful()
    searcher.remember("a", {"x": 1.0, "inner": {"y": 2.0}, "constant": 3})
    with pytest.warns(UserWarning, match=r"Forgetful.* trial b\b.*remember\(\)"):
        searcher.remember("b", {"x": 5.0, "inner": {"y": 2.0}})
    searcher.remember("c", {"x": 6.0, "inner": {"y": 2.0}})


def test_rows_are_wanted_by_those_who_take_them() -> None:
    class Listening(Forgetful):
        def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
            pass

    assert not Forgetful().wants_results
    assert Listening().wants_results


def test_the_goal_comes_from_either_side() -> None:
    searcher = Forgetful()
    assert searcher.set_search_properties("loss", "min", {})
    assert (searcher.metric, searcher.mode) == ("loss", "min")
    assert Forgetful("loss", "min").set_search_properties(None, None, {})
    assert Forgetful("loss", "min").set_search_properties("loss", "min", {})
    assert Forgetful(mode="max").set_search_properties("score", None, {})


@pytest.mark.parametrize(("metric", "mode"), [("score", "min"), ("loss", "max"), (None, "max")])
def test_a_contradicting_goal_is_refused(metric: str | None, mode: str) -> None:
    searcher = Forgetful("loss", "min")
    assert not searcher.set_search_properties(metric, mode, {})
    assert (searcher.metric, searcher.mode) == ("loss", "min")


def test_of_several_goals_one_may_be_named() -> None:
    searcher = Forgetful(["loss", "size"], ["min", "max"])
    assert searcher.set_search_properties("size", "max", {})
    assert searcher.set_search_properties("size", None, {})
    assert searcher.set_search_properties(["loss", "size"], ["min", "max"], {})  # type: ignore[arg-type]
    assert not searcher.set_search_properties("size", "min", {})
    assert not searcher.set_search_properties("speed", "min", {})
    assert searcher.metric == ["loss", "size"]


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("loss", "least"), (["a", "b"], ["min"]), (["a", "a"], "min"), (["a"], ["least"]), ([], []), (["a", "b"], None)],
)
def test_a_goal_that_makes_no_sense_is_refused(metric: Any, mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"mode|metric"):
        Forgetful(metric, mode)


def test_what_is_not_defined_says_so() -> None:
    searcher = Searcher()
    with pytest.raises(NotImplementedError, match="suggest"):
        searcher.suggest("a")
    with pytest.raises(NotImplementedError, match=r"Searcher.*points"):
        searcher.add_evaluated_point({"x": 1.0}, 1.0)
    with pytest.raises(NotImplementedError, match="save"):
        searcher.save("somewhere")
    assert searcher.total_samples is None
    assert not searcher.set_max_concurrency(2)


def test_a_searcher_of_ones_own_need_not_call_the_init_of_the_base() -> None:
    class Counting(Searcher):
        def __init__(self) -> None:
            self.count = 0

    made = Counting()
    assert made.set_search_properties("loss", "min", {})
    assert (made.metric, made.mode) == ("loss", "min")


def test_the_end_of_a_trial_may_be_heard_in_any_of_the_usual_forms() -> None:
    told: list[Any] = []

    class Whole(Forgetful):
        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            told.append((trial_id, result, error))

    class Keywords(Forgetful):
        def on_trial_complete(self, trial_id: str, **info: Any) -> None:  # type: ignore[override]
            told.append((trial_id, info["result"], info["error"]))

    class WithoutError(Forgetful):
        def on_trial_complete(self, trial_id: str, result: Any = None) -> None:  # type: ignore[override]
            told.append((trial_id, result))

    class OtherNames(Forgetful):
        def on_trial_complete(self, name: str, row: Any = None, failed: bool = False) -> None:  # type: ignore[override]
            told.append((name, row, failed))

    for kind in (Whole, Keywords, WithoutError, OtherNames):
        report_completion(kind(), "a", {"x": 1}, error=True)
    assert told == [("a", {"x": 1}, True), ("a", {"x": 1}, True), ("a", {"x": 1}), ("a", {"x": 1}, True)]


def test_a_limiter_passes_the_end_on_to_a_searcher_without_error() -> None:
    told: list[Any] = []

    class WithoutError(Searcher):
        def suggest(self, trial_id: str) -> Suggestion:
            return {"x": 1}

        def on_trial_complete(self, trial_id: str, result: Any = None) -> None:  # type: ignore[override]
            told.append((trial_id, result))

    limiter = ConcurrencyLimiter(WithoutError(), 1)
    limiter.suggest("a")
    limiter.on_trial_complete("a", {"x": 1})
    assert told == [("a", {"x": 1})]
