"""Variants: the order of a grid, and what is drawn beside it."""

from __future__ import annotations

import itertools
import random

from paceline.tune.search.sample import choice, grid_search, sample_from, uniform
from paceline.tune.search.variants import count_variants, generate_variants, variant

SPACE = {
    "a": grid_search([1, 2]),
    "model": {"b": grid_search(["x", "y", "z"]), "lr": uniform(0, 1)},
    "double": sample_from(lambda spec: spec.config.a * 2),
}


def test_the_size_of_a_grid_is_the_product_of_its_parts() -> None:
    assert count_variants({}) == 1
    assert count_variants({"lr": uniform(0, 1)}) == 1
    assert count_variants(SPACE) == 6
    assert count_variants(SPACE, fixed={("a",): 2}) == 3


def test_grid_points_come_as_nested_loops_would_visit_them() -> None:
    points = [variant(SPACE, number, 0)[0] for number in range(6)]
    assert [(point["a"], point["model"]["b"]) for point in points] == list(itertools.product([1, 2], "xyz"))
    assert [point["double"] for point in points] == [2, 2, 2, 4, 4, 4]


def test_what_was_chosen_is_told_by_name_in_the_order_of_the_space() -> None:
    config, evaluated = variant(SPACE, 4, 0)
    assert list(evaluated.items()) == [("a", 2), ("model/b", "y"), ("model/lr", config["model"]["lr"]), ("double", 4)]


def test_fixed_parameters_are_left_out_of_the_grid_and_of_the_draw() -> None:
    fixed = {("a",): 7, ("model", "lr"): 5.0}
    configs = [variant(SPACE, number, 0, fixed)[0] for number in range(3)]
    assert [config["model"] for config in configs] == [{"b": b, "lr": 5.0} for b in "xyz"]
    assert {config["a"] for config in configs} == {7}
    assert {config["double"] for config in configs} == {14}


def test_the_random_part_depends_on_the_random_state_alone() -> None:
    space = {"g": grid_search([1, 2]), "x": uniform(0, 1), "y": choice(range(1000))}
    first, second = variant(space, 0, 5)[0], variant(space, 1, 5)[0]
    assert (first["x"], first["y"]) == (second["x"], second["y"])
    rng = random.Random(5)
    moving = [variant(space, 0, rng)[0]["x"] for _ in range(3)]
    assert moving[0] == first["x"]
    assert len(set(moving)) == 3


def test_a_specification_of_old_code_has_its_space_as_config() -> None:
    space = {"config": {"x": grid_search([1, 2]), "y": sample_from(lambda spec: spec.config.x * 10)}}
    variants = list(generate_variants(space))
    assert [spec["config"] for _, spec in variants] == [{"x": 1, "y": 10}, {"x": 2, "y": 20}]
    assert variants[0][0] == {("config", "x"): 1, ("config", "y"): 10}


def test_variants_without_a_search() -> None:
    space = {"a": {"x": grid_search([1, 2])}, "y": uniform(0, 1), "z": 3}
    variants = list(generate_variants(space, random_state=1))
    assert [config["a"]["x"] for _, config in variants] == [1, 2]
    assert all(config["z"] == 3 for _, config in variants)
    assert [chosen for chosen, _ in variants] == [
        {("a", "x"): config["a"]["x"], ("y",): config["y"]} for _, config in variants
    ]
    assert variants[0][1]["y"] != variants[1][1]["y"]
    assert list(generate_variants(space, random_state=1)) == variants
    (_, first), (_, second) = generate_variants(space, constant_grid_search=True)
    assert first["y"] == second["y"]
