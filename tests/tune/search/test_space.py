"""Nested search spaces: what is found in them, configurations made of them, and their records."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import Categorical
from paceline.tune.search.sample import (
    choice,
    grid_search,
    randint,
    sample_from,
    uniform,
)
from paceline.tune.search.space import (
    assigned,
    config_with,
    find,
    path_text,
    resolve,
)

Pair = namedtuple("Pair", "left right")


# Finding


def test_everything_searched_is_found_wherever_it_is_nested() -> None:
    space = {
        "lr": uniform(0, 1),
        "model": {"layers": [choice([1, 2]), {"width": grid_search([8, 16])}], "pair": (3, randint(0, 3))},
        "double": sample_from(lambda spec: spec.config.lr * 2),
        "constant": {"a": [1, 2]},
        "scaling_config": ScalingConfig(num_workers=grid_search([1, 2]), resources_per_worker={"CPU": choice([1, 2])}),
    }
    found = find(space)
    assert [path_text(path) for path in found.texts] == [
        "lr",
        "model/layers/0",
        "model/layers/1/width",
        "model/pair/1",
        "double",
        "scaling_config/num_workers",
        "scaling_config/resources_per_worker/CPU",
    ]
    assert found.grids == {("model", "layers", 1, "width"): [8, 16], ("scaling_config", "num_workers"): [1, 2]}
    assert set(found.functions) == {("double",)}
    assert found.domains[("model", "pair", 1)] == randint(0, 3)


def test_a_space_may_be_empty_or_absent() -> None:
    assert not find({}).texts
    assert not find(None).texts


def test_a_categorical_domain_can_be_a_grid() -> None:
    assert find({"a": Categorical((1, 2)).grid()}).grids == {("a",): [1, 2]}


def test_objects_that_contain_themselves_are_constants_like_any_other() -> None:
    @dataclass
    class Node:
        next: Any = None
        value: Any = field(default_factory=lambda: uniform(0, 1))

    node = Node()
    node.next = node
    assert [path_text(path) for path in find({"node": node}).texts] == ["node/value"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([uniform(0, 1)], "dict of parameters"),
        (grid_search([1, 2]), "dict of parameters"),
        ({"a": {"b": {"grid_search": 5}}}, "'a/b'"),
        ({"a": {"grid_search": []}}, "'a'"),
        ({"a/b": uniform(0, 1), "a": {"b": uniform(0, 1)}}, "both.*'a/b'"),
        ({"a": choice([1, uniform(0, 1)])}, "'a'.*sample_from"),
        ({"a": grid_search([{"b": [uniform(0, 1)]}])}, "'a'.*sample_from"),
    ],
)
def test_spaces_that_cannot_be_searched_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find(space)


# Assigning


def test_assigning_changes_the_leaves_and_shares_the_rest() -> None:
    constant = {"deep": [1]}
    space = {"a": {"b": uniform(0, 1), "c": constant}, "other": constant}
    config = assigned(space, {("a", "b"): 0.5})
    assert config == {"a": {"b": 0.5, "c": constant}, "other": constant}
    assert config["other"] is constant
    assert config["a"]["c"] is constant
    assert space["a"]["b"] == uniform(0, 1)


def test_containers_keep_their_kind() -> None:
    space = {
        "tuple": (1, uniform(0, 1)),
        "named": Pair(uniform(0, 1), 2),
        "ordered": OrderedDict(a=uniform(0, 1)),
        "list": [uniform(0, 1), 2],
    }
    config = assigned(space, dict.fromkeys(find(space).texts, 5))
    assert config == {"tuple": (1, 5), "named": Pair(5, 2), "ordered": OrderedDict(a=5), "list": [5, 2]}
    assert type(config["named"]) is Pair
    assert type(config["ordered"]) is OrderedDict


def test_a_dataclass_is_checked_once_its_fields_are_drawn() -> None:
    space = {"scaling_config": ScalingConfig(num_workers=choice([-1]))}
    with pytest.raises(ConfigError, match=r"num_workers.*-1"):
        resolve(space, {}, 0)
    config, evaluated = resolve({"scaling_config": ScalingConfig(num_workers=choice([3]))}, {}, 0)
    assert config["scaling_config"] == ScalingConfig(num_workers=3)
    assert evaluated == {"scaling_config/num_workers": 3}


# Resolving


NESTED = {"n": 7, "model": {"lr": uniform(0, 1), "act": choice(["relu", "tanh"]), "sizes": [randint(0, 9), 64]}}


@pytest.mark.parametrize(
    "suggestion",
    [
        {"model": {"lr": 0.5, "act": "relu", "sizes": [4, 64]}},
        {"model/lr": 0.5, "model/act": "relu", "model/sizes/0": 4},
        {"model": {"lr": 0.5, "act": "relu", "sizes/0": 4}},
        {"model": {"lr": 0.5, "act": "relu", "sizes": {"0": 4}}},
        {"n": 7, "model": {"lr": 0.5, "act": "relu", "sizes": (4, 64)}},
    ],
)
def test_a_suggestion_may_be_nested_or_flat(suggestion: dict[str, Any]) -> None:
    config, evaluated = resolve(NESTED, suggestion, None)
    assert config == {"n": 7, "model": {"lr": 0.5, "act": "relu", "sizes": [4, 64]}}
    assert evaluated == {"model/lr": 0.5, "model/act": "relu", "model/sizes/0": 4}


def test_what_a_suggestion_adds_or_changes_counts_as_chosen() -> None:
    config, evaluated = resolve({"a": 1, "b": 2, "c": {"d": 3}}, {"a": 5, "new": {"x": 1, "y": 2}, "c/e": 4, "b": 2}, 0)
    assert config == {"a": 5, "b": 2, "c": {"d": 3, "e": 4}, "new": {"x": 1, "y": 2}}
    assert evaluated == {"a": 5, "new/x": 1, "new/y": 2, "c/e": 4}
    assert config_with({"a": 1, "b": 2, "c": {"d": 3}}, evaluated) == config


def test_flat_names_of_new_nested_values_are_nested() -> None:
    assert resolve({}, {"a/b": 1, "a/c/d": 2}, 0)[0] == {"a": {"b": 1, "c": {"d": 2}}}


def test_what_a_suggestion_leaves_out_is_drawn_from_the_seed() -> None:
    first, _ = resolve(NESTED, {"model/lr": 0.5}, 3)
    assert first == resolve(NESTED, {"model/lr": 0.5}, 3)[0]
    assert first["model"]["lr"] == 0.5
    others = {repr(resolve(NESTED, {"model/lr": 0.5}, seed)[0]) for seed in range(20)}
    assert len(others) > 5


def test_a_category_that_is_a_dict_is_not_merged() -> None:
    space = {"optimizer": choice([{"name": "sgd", "momentum": 0.9}, {"name": "adam"}])}
    config, evaluated = resolve(space, {"optimizer": {"name": "adam"}}, 0)
    assert config == {"optimizer": {"name": "adam"}}
    assert evaluated == {"optimizer": {"name": "adam"}}


def test_a_grid_value_that_is_a_dict_is_not_merged() -> None:
    space = {"model": {"optimizer": grid_search([{"name": "sgd"}, {"name": "adam"}])}}
    config, evaluated = resolve(space, {"model": {"optimizer": {"name": "adam"}}}, 0)
    assert config == {"model": {"optimizer": {"name": "adam"}}}
    assert evaluated == {"model/optimizer": {"name": "adam"}}


def test_constants_that_come_back_equal_were_not_chosen() -> None:
    space = {"rate": 0.1 + 0.2, "names": ["a", "b"], **NESTED}
    copied = {"rate": 0.1 + 0.2, "names": ["a", "b"], "model/lr": 0.5}
    assert set(resolve(space, copied, 0)[1]) == {"model/lr", "model/act", "model/sizes/0"}
    assert resolve(space, json.loads(json.dumps(copied)), 0) == resolve(space, copied, 0)


def test_keys_that_are_numbers_are_found_by_their_text() -> None:
    space = {"rates": {1: uniform(0, 1), 2: 0.1}}
    assert resolve(space, {"rates/1": 0.5}, 0) == ({"rates": {1: 0.5, 2: 0.1}}, {"rates/1": 0.5})


def test_a_grid_that_a_searcher_left_open_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'g'.*choice"):
        resolve({"g": grid_search([1, 2])}, {}, 0)


# Functions of other parameters


def test_functions_see_the_other_parameters_in_every_spelling() -> None:
    space = {
        "lr": uniform(0, 1),
        "model": {"width": randint(1, 9)},
        "spellings": sample_from(
            lambda spec: [
                spec.config.lr,
                spec.config["lr"],
                spec.lr,
                spec["lr"],
                spec["config"]["lr"],
                spec.config.get("lr"),
            ]
        ),
        "area": sample_from(lambda spec: spec.config.model.width * spec.config["model"]["width"]),
        "names": sample_from(lambda spec: sorted(spec.config)),
        "whole": sample_from(lambda spec: spec.config.model),
    }
    config, evaluated = resolve(space, {}, 1)
    assert config["spellings"] == [config["lr"]] * 6
    assert config["area"] == config["model"]["width"] ** 2
    assert config["names"] == sorted(space)
    assert config["whole"] == config["model"]
    assert type(config["whole"]) is dict
    assert evaluated["area"] == config["area"]


def test_functions_of_functions_are_called_in_the_order_of_their_needs() -> None:
    space = {
        "d": sample_from(lambda spec: spec.config.c[0] + 1),
        "c": [sample_from(lambda spec: spec.config.b.x + 1)],
        "b": {"x": sample_from(lambda spec: spec.config.a + 1)},
        "a": choice([1]),
    }
    assert resolve(space, {}, 0)[0] == {"d": 4, "c": [3], "b": {"x": 2}, "a": 1}


def test_functions_that_wait_for_each_other_are_named() -> None:
    space = {"a": {"x": sample_from(lambda spec: spec.config.b)}, "b": sample_from(lambda spec: spec.config.a.x)}
    with pytest.raises(ConfigError, match=r"sample_from\(\).*'a/x', 'b'"):
        resolve(space, {}, 0)


def test_an_error_in_a_function_says_which_parameter_it_was_for() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        resolve({"m": {"bad": sample_from(lambda spec: 1 / 0)}}, {}, 0)
    assert "'m/bad'" in "".join(caught.value.__notes__)
    with pytest.raises(AttributeError, match=r"lr\?"):
        resolve({"lr": 1, "bad": sample_from(lambda spec: spec.config.lrr)}, {}, 0)


def test_a_suggested_value_stands_in_for_the_function() -> None:
    assert resolve({"a": sample_from(lambda spec: 1 / 0)}, {"a": 3}, 0) == ({"a": 3}, {"a": 3})


def test_a_range_can_depend_on_another_parameter() -> None:
    space = {"low": randint(0, 50), "value": sample_from(lambda spec: randint(spec.config.low, spec.config.low + 2))}
    for seed in range(20):
        config, _ = resolve(space, {}, seed)
        assert 0 <= config["value"] - config["low"] <= 1
        assert config == resolve(space, {}, seed)[0]
