"""Grid and random search: order, totals, points to evaluate, seeds, and going on after an interruption."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.air.errors import ConfigError, RestoreError
from paceline.tune.search.basic_variant import BasicVariantGenerator
from paceline.tune.search.sample import choice, grid_search, randint, sample_from, uniform
from paceline.tune.search.space import resolve

LR = {"lr": uniform(0, 1)}


def searcher(space: dict[str, Any], num_samples: int = 1, **arguments: Any) -> BasicVariantGenerator:
    made = BasicVariantGenerator(**{"random_state": 1, **arguments})
    assert made.set_search_properties("loss", "min", space, num_samples=num_samples)
    return made


def suggestions(made: BasicVariantGenerator, at_most: int = 1000) -> list[dict[str, Any]]:
    """Everything it suggests, each trial ending before the next one starts."""
    configs = []
    for number in range(at_most):
        suggestion = made.suggest(f"trial_{number}")
        if suggestion == made.FINISHED:
            break
        assert isinstance(suggestion, dict)
        configs.append(suggestion)
        made.on_trial_complete(f"trial_{number}")
    return configs


# Order and totals


def test_each_sample_runs_the_whole_grid_in_order() -> None:
    made = searcher({"train_loop_config": {"num_epochs": 2, "input": grid_search([1, 2, 3])}}, num_samples=5)
    assert made.total_samples == 15
    configs = suggestions(made)
    assert configs == [{"train_loop_config": {"num_epochs": 2, "input": n}} for _ in range(5) for n in (1, 2, 3)]


def test_an_empty_space_gives_as_many_configurations_as_samples() -> None:
    assert suggestions(searcher({}, num_samples=3)) == [{}, {}, {}]
    assert suggestions(BasicVariantGenerator()) == [{}]


def test_random_parameters_are_drawn_anew_for_every_point_of_the_grid() -> None:
    configs = suggestions(searcher({"g": grid_search([1, 2]), **LR}, num_samples=4))
    assert len({config["lr"] for config in configs}) == 8


def test_constant_grid_search_draws_once_for_each_pass() -> None:
    configs = suggestions(searcher({"g": grid_search([1, 2, 3]), **LR}, num_samples=4, constant_grid_search=True))
    passes = [{config["lr"] for config in configs[start : start + 3]} for start in range(0, 12, 3)]
    assert [len(values) for values in passes] == [1, 1, 1, 1]
    assert len(set.union(*passes)) == 4


def test_constant_grid_search_draws_other_values_for_the_passes_after_those_of_points() -> None:
    space = {"g": grid_search([1, 2]), "x": uniform(0, 1), "y": uniform(0, 1)}
    points = [{"y": 0.5}, {"y": 0.25}]
    configs = suggestions(searcher(space, num_samples=4, constant_grid_search=True, points_to_evaluate=points))
    assert [config["y"] for config in configs[:4]] == [0.5, 0.5, 0.25, 0.25]
    assert [config["x"] for config in configs[::2]] == [config["x"] for config in configs[1::2]]
    assert len({config["x"] for config in configs}) == 4


def test_minus_one_samples_are_without_end() -> None:
    made = searcher({"g": grid_search([1, 2]), **LR}, num_samples=-1)
    assert made.total_samples is None
    assert len(suggestions(made, at_most=501)) == 501


def test_a_finished_search_stays_finished() -> None:
    made = searcher(LR, num_samples=1)
    assert isinstance(made.suggest("a"), dict)
    assert [made.suggest("b"), made.suggest("b")] == ["FINISHED", "FINISHED"]


# Points to evaluate


GRIDS = {
    "one": grid_search(["a", "b", "c", "d"]),
    "two": grid_search(["x", "y", "z"]),
    "nested": {"random": uniform(2.0, 10.0), "dependent": sample_from(lambda spec: -spec.config.nested.random)},
}


@pytest.mark.parametrize(
    ("point", "trials"),
    [
        ({"one": "b"}, 3),
        ({"two": "z"}, 4),
        ({"one": "a", "two": "y"}, 1),
        ({"nested": {"random": 8.0}}, 12),
        ({"nested/random": 8.0}, 12),
    ],
)
def test_a_point_takes_the_place_of_one_sample(point: dict[str, Any], trials: int) -> None:
    made = searcher(GRIDS, num_samples=6, points_to_evaluate=[point])
    configs = suggestions(made)
    assert made.total_samples == len(configs) == trials + 5 * 12
    for config in configs[:trials]:
        assert resolve(config, point)[0] == config  # nothing of the point is missing
    assert all(config["nested"]["dependent"] == -config["nested"]["random"] for config in configs)
    grid = [(config["one"], config["two"]) for config in configs[trials:]]
    assert grid == list(itertools.product("abcd", "xyz")) * 5


def test_points_come_first_in_their_order() -> None:
    points = [{"lr": 0.25}, {"lr": 0.5}, {"lr": 0.75}]
    configs = suggestions(searcher({**LR, "n": 3}, num_samples=5, points_to_evaluate=points))
    assert [config["lr"] for config in configs[:3]] == [0.25, 0.5, 0.75]
    assert all(config["n"] == 3 for config in configs)
    assert len({config["lr"] for config in configs}) == 5


def test_a_whole_configuration_can_be_a_point() -> None:
    config = suggestions(searcher({**LR, "n": {"deep": 3}}))[0]
    again = suggestions(searcher({**LR, "n": {"deep": 3}}, points_to_evaluate=[config], random_state=99))
    assert again == [config]


def test_more_points_than_samples_are_announced() -> None:
    with pytest.warns(UserWarning, match=r"points_to_evaluate.*\b2\b"):
        made = searcher(LR, num_samples=1, points_to_evaluate=[{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}])
    assert [config["lr"] for config in suggestions(made)] == [0.1]


def test_a_point_outside_of_the_space_is_run_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"5 for 'lr'.*uniform\(0\.0, 1\.0\)"):
        made = searcher(LR, points_to_evaluate=[{"lr": 5}])
    assert suggestions(made) == [{"lr": 5}]
    with pytest.warns(UserWarning, match=r"9 for 'g'"):
        searcher({"g": grid_search([1, 2])}, points_to_evaluate=[{"g": 9}])


@pytest.mark.parametrize(
    ("point", "message"),
    [({"lrr": 0.1}, "did you mean lr"), ({"n": 4}, "'n'"), ({"deep/x": 1}, "'deep/x'")],
)
def test_a_point_can_only_fix_what_is_searched(point: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        searcher({**LR, "n": 3}, points_to_evaluate=[point])


# Seeds


def test_the_same_seed_gives_the_same_search() -> None:
    space = {**LR, "layers": choice([1, 2, 3]), "width": randint(1, 100)}
    first = suggestions(searcher(space, num_samples=20, random_state=5))
    assert first == suggestions(searcher(space, num_samples=20, random_state=5))
    assert first != suggestions(searcher(space, num_samples=20, random_state=6))
    assert suggestions(searcher(space, num_samples=20, random_state=np.random.default_rng(5))) == suggestions(
        searcher(space, num_samples=20, random_state=np.random.default_rng(5))
    )


def test_negative_and_neighbouring_seeds_are_seeds_of_their_own() -> None:
    firsts = {suggestions(searcher(LR, random_state=seed))[0]["lr"] for seed in range(-50, 50)}
    assert len(firsts) == 100


def test_the_experiments_seed_counts_only_where_the_user_gave_none() -> None:
    def first(seed: int, random_state: int | None) -> float:
        made = searcher(LR, random_state=random_state)
        made.set_seed(seed)
        return float(suggestions(made)[0]["lr"])

    assert first(3, None) == first(3, None)
    assert first(3, None) != first(4, None)
    assert first(3, 1) == first(4, 1)


# Concurrency


def test_max_concurrent_holds_suggestions_back_until_a_trial_has_ended() -> None:
    made = searcher(LR, num_samples=4, max_concurrent=2)
    assert isinstance(made.suggest("a"), dict)
    assert isinstance(made.suggest("b"), dict)
    assert made.suggest("c") is None
    made.on_trial_complete("a", error=True)
    assert isinstance(made.suggest("c"), dict)
    assert made.suggest("d") is None


def test_holding_back_does_not_change_what_is_suggested() -> None:
    free, held = searcher(LR, num_samples=3), searcher(LR, num_samples=3, max_concurrent=1)
    expected = [free.suggest(name) for name in "abc"]
    got = []
    for name in "abc":
        got.append(held.suggest(name))
        assert held.suggest("other") is None or name == "c"
        held.on_trial_complete(name)
    assert got == expected


def test_the_experiment_may_lower_the_limit() -> None:
    made = searcher(LR, num_samples=9, max_concurrent=3)
    assert made.set_max_concurrency(1)
    assert isinstance(made.suggest("a"), dict)
    assert made.suggest("b") is None


# Going on


@pytest.mark.parametrize("constant", [False, True])
def test_a_replayed_search_goes_on_where_it_was(constant: bool) -> None:
    space = {"g": grid_search([1, 2, 3]), **LR}
    arguments = {"points_to_evaluate": [{"g": 2}, {"lr": 0.5}], "constant_grid_search": constant}
    uninterrupted = suggestions(searcher(space, num_samples=6, **arguments))
    for interrupted_after in range(len(uninterrupted) + 1):
        made = searcher(space, num_samples=6, **arguments)
        for number in range(interrupted_after):
            made.remember(f"trial_{number}", uninterrupted[number])
        assert suggestions(made) == uninterrupted[interrupted_after:]


def test_num_samples_can_be_raised_later() -> None:
    space = {"g": grid_search([1, 2]), **LR}
    all_at_once = suggestions(searcher(space, num_samples=5))
    made = searcher(space, num_samples=2)
    first = suggestions(made)
    assert made.set_search_properties("loss", "min", space, num_samples=5)
    assert first + suggestions(made) == all_at_once


def test_state_can_be_saved_and_restored(tmp_path: Path) -> None:
    made = searcher(LR, num_samples=6, random_state=None, max_concurrent=2)
    expected = [made.suggest("a"), made.suggest("b")]
    made.save(str(tmp_path / "state.json"))
    again = searcher(LR, num_samples=6, random_state=None, max_concurrent=2)
    again.restore(str(tmp_path / "state.json"))
    for each in (made, again):
        assert each.suggest("c") is None
        each.on_trial_complete("a")
    third = made.suggest("c")
    assert again.suggest("c") == third
    assert third not in expected
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(RestoreError, match=r"state\.json"):
        again.restore(str(tmp_path / "state.json"))


# Refusals


@pytest.mark.parametrize(
    "arguments",
    [
        {"points_to_evaluate": {"lr": 1}},
        {"points_to_evaluate": [1]},
        {"max_concurrent": -1},
        {"max_concurrent": 1.5},
        {"constant_grid_search": 1},
        {"random_state": "seed"},
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        BasicVariantGenerator(**arguments)


def test_num_samples_must_be_a_whole_number() -> None:
    with pytest.raises(ConfigError, match="num_samples"):
        searcher(LR, num_samples=-2)
