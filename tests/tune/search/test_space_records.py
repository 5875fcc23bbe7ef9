"""What is written down of a search space: its description, the records of configurations, and their tags."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError, RestoreError
from paceline.tune.search.domains import Categorical
from paceline.tune.search.sample import (
    choice,
    grid_search,
    loguniform,
    qrandint,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from paceline.tune.search.space import (
    config_with,
    describe,
    evaluated_from_record,
    evaluated_record,
    find,
    from_description,
    resolve,
    tag,
)


class Model:
    """Something that has no form as plain data."""


def through_json(record: Any) -> Any:
    return json.loads(json.dumps(record, allow_nan=False))


# Records


def test_a_plain_space_survives_being_written_down() -> None:
    space = {
        "domains": [uniform(0, 1), quniform(0, 1, 0.25), loguniform(1e-4, 1, 2), qrandint(0, 8, 2), randn(1, 2)],
        "choice": choice(["a", None, (1, 2), {"x": math.inf}, True]),
        "grid": grid_search([[1], {"y": 2}]),
        "odd": {1: "one", "$key": 2, "tuple": (1, (2, 3)), "marked": {"$tuple": [1]}},
        "scaling_config": ScalingConfig(num_workers=choice([1, 2]), resources_per_worker={"CPU": 2}),
        "number": np.float64(0.5),
    }
    again = from_description(through_json(describe(space)))
    assert again == space
    assert type(again["odd"]["tuple"]) is tuple
    assert again["scaling_config"].num_workers == choice([1, 2])


@pytest.mark.parametrize(
    "space",
    [
        {"a": Model()},
        {"a": choice([Model])},
        {"a": grid_search([len, 1])},
        {"a": sample_from(lambda spec: 1)},
        {"a": {"b": [object()]}},
        {"a": np.zeros(3)},
    ],
)
def test_a_space_with_other_objects_has_no_description(space: dict[str, Any]) -> None:
    assert describe(space) is None


def test_a_description_of_another_version_is_refused() -> None:
    with pytest.raises(RestoreError, match="'magic'"):
        from_description({"a": {"$domain": ["magic", 1]}})


def test_options_that_are_objects_are_recorded_by_their_position() -> None:
    models = [Model(), Model(), Model]
    space = {"model": choice(models), "loss": grid_search([len, "mse"]), "size": choice([(1, 2), (3, 4)])}
    evaluated = {"model": models[1], "loss": len, "size": (3, 4)}
    record = evaluated_record(space, evaluated)
    assert record["model"] == {"$index": 1}
    assert record["loss"] == {"$index": 0}
    again = evaluated_from_record(space, through_json(record))
    assert again == evaluated
    assert again["model"] is models[1]
    assert config_with(space, again) == evaluated


def test_a_record_that_does_not_fit_the_space_is_refused() -> None:
    record = evaluated_record({"model": choice([Model, len])}, {"model": len})
    with pytest.raises(RestoreError, match=r"1 of.*'model'"):
        evaluated_from_record({"model": choice([Model])}, record)
    with pytest.raises(RestoreError, match=r"'lr'.*search space"):
        config_with({"lr": uniform(0, 1)}, {})


def test_results_of_functions_are_recorded_or_worked_out_again() -> None:
    space = {
        "a": randint(0, 9),
        "number": sample_from(lambda spec: np.float64(0.25)),
        "model": sample_from(lambda spec: [Model, spec.config.a]),
    }
    config, evaluated = resolve(space, {}, 1)
    again = evaluated_from_record(space, through_json(evaluated_record(space, evaluated)))
    assert again == {"a": config["a"], "number": 0.25}
    assert config_with(space, again) == config


def test_other_values_that_could_not_be_written_down_are_an_error_on_reading() -> None:
    record = through_json(evaluated_record({}, {"own": Model}))
    with pytest.raises(RestoreError, match=r"'own'.*Model"):
        evaluated_from_record({}, record)


def random_space(rng: random.Random, depth: int = 0) -> Any:
    """A nested space of random shape."""
    kinds = ["uniform", "choice", "objects", "randint", "grid", "function", "constant", "shared"]
    kind = rng.choice([*kinds, "dict", "dict", "list", "tuple"] if depth < 4 else kinds)
    if depth == 0 or kind == "dict":
        keys = ["a", "b/c", "d", 4, "e f"]
        return {key: random_space(rng, depth + 1) for key in keys[: rng.randint(1, 5)] if depth or isinstance(key, str)}
    if kind in ("list", "tuple"):
        items = [random_space(rng, depth + 1) for _ in range(rng.randint(0, 4))]
        return items if kind == "list" else tuple(items)
    leaves: dict[str, Any] = {
        "uniform": uniform(0, 1),
        "choice": choice([{"deep": [1, 2]}, None, (1, 2), "text"]),
        "objects": choice([Model, len, print]),
        "randint": randint(0, 5),
        "grid": grid_search([[1], {"y": 2}, Model]),
        "function": sample_from(lambda spec: len(spec.config)),
        "constant": rng.choice([1, "text", None, [], {}, (1, {"x": 2})]),
        "shared": Model(),
    }
    return leaves[kind]


@pytest.mark.parametrize("seed", range(60))
def test_any_space_gives_the_same_configuration_again_from_its_records(seed: int) -> None:
    space = random_space(random.Random(seed))
    before = repr(space)
    found = find(space)
    grid = {text: found.grids[path][0] for path, text in found.texts.items() if path in found.grids}
    config, evaluated = resolve(space, grid, seed)

    assert list(evaluated) == list(found.texts.values())
    assert not find(config).texts
    assert repr(space) == before
    # The whole configuration is a suggestion too, and says the same.
    assert resolve(space, config, None) == (config, evaluated)
    again = evaluated_from_record(space, through_json(evaluated_record(space, evaluated)))
    assert again == evaluated
    assert config_with(space, again) == config
    description = describe(space)
    if description is not None:
        assert from_description(through_json(description)) == space


# Tags


def test_a_tag_is_short_and_says_what_was_chosen() -> None:
    assert tag(0, {}) == "0"
    assert tag(0, {"lr": 0.1}) == "0_lr=0.1"
    assert tag(12, {"model/lr": 0.123456789, "sizes/0": 64, "act": "re lu/x", "m": Model}) == (
        "12_lr=0.1235,sizes.0=64,act=re_lu_x,m=Model"
    )


def test_a_tag_leaves_out_whole_parameters_rather_than_cutting_values() -> None:
    text = tag(3, {"description": "x" * 80, "lr": 0.25, **{f"parameter_{n}": n for n in range(20)}})
    assert len(text) <= 60
    assert text.startswith("3_lr=0.25,parameter_0=0,")
    assert all(part.rpartition("=")[2].isdigit() for part in text.split(",")[1:])


@pytest.mark.parametrize("space", [{"a": {"x": uniform}}, {"a": [choice], "y": 1}, {"a": grid_search}])
def test_a_function_that_was_not_called_is_told(space: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'a.*'.*tune\.(uniform|choice|grid_search)\("):
        find(space)


def test_functions_of_the_users_own_are_values() -> None:
    assert not find({"activation": math.tanh, "draw": lambda spec: 3, "kind": Categorical}).texts
