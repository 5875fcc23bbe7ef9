"""ConcurrencyLimiter and Repeater."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError, RestoreError
from paceline.testing.searcher_contract import SearcherContract
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch, Repeater, Searcher
from paceline.tune.search.sample import grid_search, uniform
from paceline.tune.search.searcher import Suggestion


class Counting(Searcher):
    """Suggests 0, 1, 2, ... and notes what it is told."""

    def __init__(self, ends_after: int | None = None) -> None:
        super().__init__("loss", "min")
        self.told: list[tuple[str, Any, bool]] = []
        self.rows: list[tuple[str, Any]] = []
        self.given = 0
        self.ends_after = ends_after

    def suggest(self, trial_id: str) -> Suggestion:
        if self.given == self.ends_after:
            return self.FINISHED
        self.given += 1
        return {"number": self.given - 1}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.rows.append((trial_id, result))

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self.told.append((trial_id, result, error))


class InPairs(Counting):
    """Says no more before it is told of the two trials it gave."""

    def suggest(self, trial_id: str) -> Suggestion:
        if self.given - len(self.told) == 2:
            return None
        self.given += 1
        return {"number": self.given - 1, "known": len(self.told)}


@pytest.mark.slow  # the contract of the searcher in it and of batches is checked each time
class TestLimitedSearch(SearcherContract):
    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = ConcurrencyLimiter(OptunaSearch(seed=seed), max_concurrent=2)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


class TestBatchedSearch(SearcherContract):
    learns = False  # the sampler of least effort: the batches are what is tested

    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = ConcurrencyLimiter(OptunaSearch(seed=seed, sampler="random"), max_concurrent=2, batch=True)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


class TestRepeatedSearch(SearcherContract):
    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = Repeater(OptunaSearch(seed=seed), repeat=2)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


def test_a_limiter_waits_for_a_free_place() -> None:
    limiter = ConcurrencyLimiter(Counting(), max_concurrent=2)
    assert limiter.suggest("a") == {"number": 0}
    assert limiter.suggest("b") == {"number": 1}
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"loss": 1.0})
    assert limiter.suggest("c") == {"number": 2}
    assert limiter.suggest("d") is None


def test_a_limiter_hands_on_ends_rows_and_results() -> None:
    inner = Counting(ends_after=1)
    limiter = ConcurrencyLimiter(inner, max_concurrent=2)
    limiter.suggest("a")
    assert limiter.suggest("b") == Searcher.FINISHED
    assert limiter.wants_results
    limiter.on_trial_result("a", {"loss": 3.0})
    limiter.on_trial_complete("a", None, error=True)
    assert inner.rows == [("a", {"loss": 3.0})]
    assert inner.told == [("a", None, True)]


def test_a_batch_is_told_when_it_is_complete() -> None:
    inner = Counting()
    limiter = ConcurrencyLimiter(inner, max_concurrent=2, batch=True)
    limiter.suggest("a")
    limiter.suggest("b")
    limiter.on_trial_complete("b", {"loss": 1.0})
    assert inner.told == []
    assert limiter.suggest("c") is None, "the batch is not over"
    limiter.on_trial_complete("a", {"loss": 2.0})
    assert inner.told == [("b", {"loss": 1.0}, False), ("a", {"loss": 2.0}, False)]
    assert limiter.suggest("c") == {"number": 2}


def test_a_batch_that_cannot_be_filled_is_told_nonetheless() -> None:
    inner = Counting(ends_after=3)
    limiter = ConcurrencyLimiter(inner, max_concurrent=2, batch=True)
    for trial in ("a", "b"):
        limiter.suggest(trial)
    for trial in ("a", "b"):
        limiter.on_trial_complete(trial, {"loss": 0.0})
    limiter.suggest("c")
    limiter.on_trial_complete("c", {"loss": 0.0})
    assert limiter.suggest("d") == Searcher.FINISHED
    assert [trial for trial, _, _ in inner.told] == ["a", "b", "c"]


def test_a_restored_batch_is_told_where_it_was_told_before() -> None:
    limiter, restored = (ConcurrencyLimiter(InPairs(), max_concurrent=3, batch=True) for _ in range(2))
    for trials in (("a", "b"), ("c", "d")):
        for trial in trials:
            suggestion = limiter.suggest(trial)
            assert isinstance(suggestion, dict)
            restored.remember(trial, {**suggestion, "constant": 1})
        for trial in trials:
            limiter.on_trial_complete(trial, {"loss": 1.0})
            restored.on_trial_complete(trial, {"loss": 1.0})
    expected = {"number": 4, "known": 4}
    assert (limiter.suggest("e"), restored.suggest("e")) == (expected, expected)


def test_the_smaller_limit_holds() -> None:
    limiter = ConcurrencyLimiter(Counting(), max_concurrent=3)
    assert limiter.set_max_concurrency(1)
    assert limiter.suggest("a") is not None
    assert limiter.suggest("b") is None


def test_a_repeater_tells_the_mean_once_all_repetitions_are_in() -> None:
    inner = Counting()
    repeater = Repeater(inner, repeat=3)
    configs = [repeater.suggest(trial) for trial in ("a", "b", "c", "d")]
    assert configs[:3] == [{"number": 0, "__trial_index__": index} for index in range(3)]
    assert configs[3] == {"number": 1, "__trial_index__": 0}
    repeater.on_trial_complete("c", {"loss": 1.0})
    repeater.on_trial_complete("a", {"loss": 2.0})
    assert inner.told == []
    repeater.on_trial_complete("b", {"loss": 6.0})
    assert inner.told == [("a", {"loss": 3.0}, False)]


def test_failed_repetitions_leave_the_mean_to_the_others() -> None:
    inner = Counting()
    repeater = Repeater(inner, repeat=3, set_index=False)
    assert [repeater.suggest(trial) for trial in ("a", "b", "c")] == [{"number": 0}] * 3
    repeater.on_trial_complete("a", {"loss": 100.0}, error=True)
    repeater.on_trial_complete("b", {"loss": math.nan})
    repeater.on_trial_complete("c", {"loss": 4.0})
    assert inner.told == [("a", {"loss": 4.0}, False)]


def test_a_suggestion_fails_if_all_its_repetitions_do() -> None:
    inner = Counting()
    repeater = Repeater(inner, repeat=2)
    for trial in ("a", "b"):
        repeater.suggest(trial)
    repeater.on_trial_complete("a", None, error=True)
    repeater.on_trial_complete("b", {})
    assert inner.told == [("a", None, True)]


def test_a_repeater_goes_on_within_a_group_after_a_restore() -> None:
    inner = Counting()
    repeater = Repeater(inner, repeat=3)
    repeater.remember("a", {"number": 0, "__trial_index__": 0, "constant": 1})
    repeater.on_trial_complete("a", {"loss": 1.0})
    repeater.remember("b", {"number": 0, "__trial_index__": 1, "constant": 1})
    third = repeater.suggest("c")
    assert isinstance(third, dict)
    assert (third["number"], third["__trial_index__"]) == (0, 2)
    repeater.on_trial_complete("c", {"loss": 2.0})
    repeater.on_trial_complete("b", {"loss": 6.0})
    assert inner.told == [("a", {"loss": 3.0}, False)]


def test_repetitions_that_will_be_missing_are_told() -> None:
    repeater = Repeater(Counting(), repeat=3)
    assert repeater.set_search_properties(None, None, {}, num_samples=6)
    assert repeater.set_search_properties(None, None, {}, num_samples=-1)
    with pytest.warns(UserWarning, match=r"\b2 time.*num_samples=9") as warned:
        assert repeater.set_search_properties(None, None, {}, num_samples=8)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("space", "num_samples", "trials"),
    [({"x": uniform(0, 1)}, 6, 6), ({"x": grid_search([1, 2])}, 3, 6), ({"x": grid_search([1, 2])}, 1, 6)],
)
def test_num_samples_counts_repetitions_of_variants_too(space: dict[str, Any], num_samples: int, trials: int) -> None:
    repeater = Repeater(BasicVariantGenerator(random_state=1), repeat=3)
    assert repeater.set_search_properties("loss", "min", space, num_samples=num_samples)
    assert repeater.total_samples == trials
    suggestions = [repeater.suggest(str(number)) for number in range(trials + 1)]
    assert suggestions[-1] == Searcher.FINISHED
    values = [suggestion["x"] for suggestion in suggestions[:-1] if isinstance(suggestion, dict)]
    assert values == [values[0]] * 3 + [values[3]] * 3
    assert values[0] != values[3]


@pytest.mark.parametrize("arguments", [{"max_concurrent": 0}, {"max_concurrent": 1.5}, {"max_concurrent": "2"}])
def test_a_limit_must_be_a_number_of_trials(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="max_concurrent"):
        ConcurrencyLimiter(Counting(), **arguments)


def test_wrappers_want_a_searcher() -> None:
    with pytest.raises(ConfigError, match="Searcher"):
        ConcurrencyLimiter("optuna", 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="repeat"):
        Repeater(Counting(), repeat=0)


def test_a_search_is_saved_to_a_directory_and_restored_from_it(tmp_path: Path) -> None:
    def make() -> Searcher:
        searcher = ConcurrencyLimiter(OptunaSearch(seed=1, sampler="random"), max_concurrent=2)
        assert searcher.set_search_properties("loss", "min", {"x": uniform(0, 1)}, num_samples=9)
        return searcher

    first, second = make(), make()
    first.suggest("a")
    first.save_to_dir(str(tmp_path / "new"), session_str="older")
    first.suggest("b")
    first.save_to_dir(str(tmp_path / "new"), session_str="newer")
    second.restore_from_dir(str(tmp_path / "new"))
    assert second.suggest("c") is None  # both are unfinished
    for searcher in (first, second):
        searcher.on_trial_complete("a", {"loss": 1.0})
    assert first.suggest("c") == second.suggest("c")
    with pytest.raises(RestoreError, match=r"save_to_dir"):
        make().restore_from_dir(str(tmp_path))
