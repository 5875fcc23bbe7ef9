"""HyperOptSearch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hyperopt import hp

from paceline.air.errors import ConfigError
from paceline.testing.searcher_contract import METRIC, SPACE, Conversation, SearcherContract
from paceline.tune.search import HyperOptSearch, Searcher
from paceline.tune.search.sample import choice, grid_search, qrandn, randint, randn, sample_from, uniform


class TestHyperOpt(SearcherContract):
    def make(self, metric: str, mode: str, space: dict[str, Any], seed: int | None) -> Searcher:
        searcher = HyperOptSearch(random_state_seed=seed, n_initial_points=10)
        assert searcher.set_search_properties(metric, mode, space, num_samples=1000)
        return searcher


def ready(space: dict[str, Any], **settings: Any) -> HyperOptSearch:
    """A searcher for that param_space."""
    searcher = HyperOptSearch(**{"random_state_seed": 1, **settings})
    assert searcher.set_search_properties("loss", "min", space, num_samples=10)
    return searcher


def suggested(searcher: Searcher, trial_id: str) -> dict[str, Any]:
    suggestion = searcher.suggest(trial_id)
    assert isinstance(suggestion, dict)
    return suggestion


def nested_choice() -> dict[str, Any]:
    """A space in which parameters depend on a choice; every configuration can come about in one way only."""
    return {
        "model": hp.choice(
            "model",
            [
                {"kind": "tree", "depth": hp.randint("depth", 1, 9)},
                {
                    "kind": "net",
                    "rate": hp.loguniform("rate", math.log(1e-3), 0),
                    "layers": [hp.uniform("first", 0, 1), 7],
                },
            ],
        ),
        "x": hp.uniform("x", -10, 10),
        "option": hp.pchoice("option", [(0.3, "a"), (0.7, None)]),
        "whole": hp.uniformint("whole", 1, 5),
    }


def twofold_choice() -> dict[str, Any]:
    """A space in which a value does not show which option it is from."""
    return {"x": hp.choice("side", [hp.uniform("left", -10, 1), hp.uniform("right", -1, 10)])}


def test_parameters_depend_on_a_choice() -> None:
    searcher = HyperOptSearch(nested_choice(), "loss", "min", random_state_seed=1)
    suggestions = [suggested(searcher, str(number)) for number in range(30)]
    assert {each["model"]["kind"] for each in suggestions} == {"tree", "net"}
    assert {each["option"] for each in suggestions} == {"a", None}
    for each in suggestions:
        if each["model"]["kind"] == "tree":
            assert each["model"]["depth"] in range(1, 9)
        else:
            assert each["model"]["layers"][1] == 7
        assert type(each["x"]) is float
        assert type(each["whole"]) is int


@pytest.mark.parametrize("space", [nested_choice, twofold_choice])
def test_expressions_of_hyperopt_are_replayed(space: Any) -> None:
    def make() -> HyperOptSearch:
        return HyperOptSearch(space(), METRIC, "min", n_initial_points=5, random_state_seed=1)

    talk = Conversation(make(), {})
    talk.advance(15, failing=4)
    assert talk.repeated_to(make()).advance(4) == talk.advance(4)


def test_expressions_of_hyperopt_are_saved(tmp_path: Path) -> None:
    def make() -> HyperOptSearch:
        return HyperOptSearch(twofold_choice(), METRIC, "min", n_initial_points=5)  # unseeded: the file has the seed

    talk = Conversation(make(), {})
    talk.advance(12)
    talk.searcher.save(str(tmp_path / "search"))
    restored = make()
    restored.restore(str(tmp_path / "search"))
    assert talk.continued_by(restored).advance(4) == talk.advance(4)


def test_a_long_search_is_replayed_without_searching(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = ready(SPACE)
    config = Conversation(ready(SPACE), SPACE).advance(1)[0]

    def unexpected(*_: Any, **__: Any) -> None:
        raise AssertionError("a remembered trial was sampled")

    with monkeypatch.context() as patched:
        patched.setattr("hyperopt.tpe.suggest", unexpected)
        for number in range(500):
            searcher.remember(str(number), config)
            searcher.on_trial_complete(str(number), {"loss": 1.0})
    assert isinstance(searcher.suggest("next"), dict)


def test_normal_distributions_are_searched() -> None:
    searcher = ready({"a": randn(100, 1), "b": qrandn(0, 2, 0.5)})
    suggestions = [suggested(searcher, str(number)) for number in range(25)]
    assert all(90 < each["a"] < 110 and each["b"] * 2 == int(each["b"] * 2) for each in suggestions)
    assert len({each["b"] for each in suggestions}) > 5


def test_the_bounds_of_whole_numbers_are_as_likely_as_the_rest() -> None:
    searcher = ready({"x": randint(0, 4)}, n_initial_points=1000)
    values = [suggested(searcher, str(number))["x"] for number in range(400)]
    assert all(60 < values.count(each) < 140 for each in range(4)), [values.count(each) for each in range(4)]


@pytest.mark.parametrize(
    ("domain", "advice"), [(grid_search([1]), r"tune\.choice"), (sample_from(lambda: 1), "sample_from")]
)
def test_what_cannot_be_searched_is_refused(domain: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        HyperOptSearch().set_search_properties("loss", "min", {"a": domain})


def test_points_come_first() -> None:
    searcher = ready(
        {"x": uniform(0, 1), "f": choice([min, max])}, points_to_evaluate=[{"f": max}, {"x": 0.5, "f": min}]
    )
    first = suggested(searcher, "a")
    assert first["f"] is max
    assert 0 <= first["x"] <= 1
    assert suggested(searcher, "b") == {"x": 0.5, "f": min}
    with pytest.raises(ConfigError, match=r"points_to_evaluate.*'y'"):
        ready({"x": uniform(0, 1)}, points_to_evaluate=[{"y": 1}]).suggest("a")


def test_points_of_an_expression_are_labels() -> None:
    point = {"model": 0, "depth": 3, "x": 1.5, "option": 1, "whole": 2}
    searcher = HyperOptSearch(nested_choice(), "loss", "min", points_to_evaluate=[point])
    assert suggested(searcher, "a") == {"model": {"kind": "tree", "depth": 3}, "x": 1.5, "option": None, "whole": 2}
    for wrong, problem in (({"deep": 3}, "did you mean depth"), ({"model": 0}, "every label that is in use")):
        with pytest.raises(ConfigError, match=problem):
            HyperOptSearch(nested_choice(), "loss", "min", points_to_evaluate=[wrong]).suggest("a")


def test_points_that_were_evaluated_elsewhere_are_learnt_from() -> None:
    space = {"x": uniform(-10, 10)}
    searcher = ready(space, n_initial_points=20)
    for number in range(40):
        x = -10 + number / 2
        searcher.add_evaluated_point({"x": x}, (x - 3) ** 2)
    values = [suggested(searcher, str(number))["x"] for number in range(10)]
    assert sum(abs(value - 3) for value in values) / 10 < 4.5, "by chance it is 6"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": "0.3"}, "gamma"),
        ({"n_initial_points": 0}, "n_initial_points"),
        ({"metric": ["a", "b"], "mode": "min"}, "OptunaSearch"),
        ({"points_to_evaluate": {"x": 1}}, "points_to_evaluate"),
        ({"random_state_seed": "one"}, "seed"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        HyperOptSearch(**settings)


def test_two_spaces_are_refused() -> None:
    assert not HyperOptSearch(nested_choice()).set_search_properties("loss", "min", {"x": uniform(0, 1)})


def test_an_expression_must_have_labels_and_be_a_dictionary() -> None:
    with pytest.raises(ConfigError, match=r"HyperOptSearch.*param_space.*tune\.uniform"):
        HyperOptSearch({"x": 1}, "loss", "min").suggest("a")
    with pytest.raises(ConfigError, match=r"HyperOptSearch.*dictionary"):
        HyperOptSearch(hp.uniform("x", 0, 1), "loss", "min").suggest("a")


def test_hyperopt_itself_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hyperopt", None)
    with pytest.raises(ImportError, match=r"paceline\[hyperopt\]"):
        HyperOptSearch()
