"""The functions that write a search space: what comes out of them, and what they refuse."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.air.checks import is_search_space
from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Integer,
    LogUniform,
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)

DRAWS = 4000


def drawn(domain: Domain, size: int = DRAWS) -> list[Any]:
    values = domain.sample(size=size, random_state=7)
    assert isinstance(values, list)
    assert len(values) == size
    return values


def share_below(values: list[float], limit: float) -> float:
    return sum(value < limit for value in values) / len(values)


# What comes out


def test_uniform_fills_its_range_evenly() -> None:
    values = drawn(uniform(-2, 6))
    assert all(-2 <= value <= 6 for value in values)
    assert all(isinstance(value, float) for value in values)
    for part in (0.1, 0.25, 0.5, 0.9):
        assert share_below(values, -2 + 8 * part) == pytest.approx(part, abs=0.03)


def test_uniform_reaches_over_the_whole_range_of_floats() -> None:
    values = drawn(uniform(-1.7e308, 1.7e308), 100)
    assert all(math.isfinite(value) for value in values)
    assert min(values) < 0 < max(values)


@pytest.mark.parametrize("base", [2, 10])
def test_loguniform_gives_each_order_of_magnitude_the_same_share(base: float) -> None:
    values = drawn(loguniform(1e-5, 1e-1, base))
    assert all(1e-5 <= value <= 1e-1 for value in values)
    for exponent, share in ((-4, 0.25), (-3, 0.5), (-2, 0.75)):
        assert share_below(values, 10.0**exponent) == pytest.approx(share, abs=0.03)


def test_the_upper_bound_of_randint_does_not_come_out() -> None:
    counts = Counter(drawn(randint(3, 7)))
    assert sorted(counts) == [3, 4, 5, 6]
    assert all(count == pytest.approx(DRAWS / 4, rel=0.15) for count in counts.values())


def test_randint_is_exact_for_numbers_beyond_the_precision_of_floats() -> None:
    assert {value - 2**60 for value in drawn(randint(2**60, 2**60 + 3), 100)} == {0, 1, 2}


def test_lograndint_spans_orders_of_magnitude_and_stays_below_upper() -> None:
    values = drawn(lograndint(1, 1000))
    assert all(isinstance(value, int) and 1 <= value < 1000 for value in values)
    assert share_below(values, 10) == pytest.approx(1 / 3, abs=0.03)
    assert share_below(values, 100) == pytest.approx(2 / 3, abs=0.03)


def test_all_multiples_between_the_bounds_are_equally_likely_when_quantised() -> None:
    counts = Counter(drawn(quniform(0.2, 1.0, 0.2)))
    assert sorted(counts) == [0.2, 0.4, 0.6, 0.8, 1.0]  # exactly: no 0.6000000000000001
    assert all(count == pytest.approx(DRAWS / 5, rel=0.15) for count in counts.values())
    whole = Counter(drawn(qrandint(-21, 12, 3)))
    assert sorted(whole) == list(range(-21, 13, 3))
    assert max(whole.values()) < 1.5 * min(whole.values())


def test_qrandint_has_both_bounds_and_a_step_of_one_by_default() -> None:
    assert set(drawn(qrandint(1, 4))) == {1, 2, 3, 4}


def test_quantised_logarithmic_ranges_have_multiples_and_prefer_small_ones() -> None:
    values = drawn(qloguniform(0.05, 10, 0.05))
    assert all(0.05 <= value <= 10 and round(value / 0.05) * 0.05 == pytest.approx(value) for value in values)
    assert share_below(values, math.sqrt(0.05 * 10)) == pytest.approx(0.5, abs=0.07)
    whole = drawn(qlograndint(1, 10, 2))  # multiples of two inside the bounds
    assert set(whole) == {2, 4, 6, 8, 10}
    assert all(isinstance(value, int) for value in whole)
    counts = Counter(whole)
    assert counts[2] > counts[6] > counts[10]


def test_normal_distribution_and_its_quantised_form() -> None:
    values = drawn(randn(10, 2))
    assert statistics.mean(values) == pytest.approx(10, abs=0.1)
    assert statistics.stdev(values) == pytest.approx(2, abs=0.1)
    rounded = drawn(qrandn(10, 2, 0.5))
    assert all(value * 2 == int(value * 2) for value in rounded)
    assert statistics.stdev(rounded) == pytest.approx(2, abs=0.15)


def test_choice_returns_the_objects_themselves() -> None:
    options: list[Any] = [{"a": 1}, [1, 2], None, print]
    values = drawn(choice(options), 400)
    assert all(any(value is option for option in options) for value in values)
    assert all(any(value is option for value in values) for option in options)


def test_arrays_become_plain_numbers() -> None:
    assert grid_search(np.arange(3)) == {"grid_search": [0, 1, 2]}
    assert [type(value) for value in choice(np.linspace(0, 1, 3)).categories] == [float] * 3
    assert grid_search(range(2)) == {"grid_search": [0, 1]}


def test_sample_from_passes_the_parameters_only_to_functions_that_take_them() -> None:
    assert sample_from(lambda spec: spec["a"] + 1).sample({"a": 1}) == 2
    assert sample_from(lambda: 5).sample() == 5
    assert sample_from(lambda own=3: own).sample({"a": 1}) == 3
    assert sample_from(lambda *arguments: arguments).sample("spec") == ("spec",)


def test_a_function_may_return_a_domain_to_draw_from() -> None:
    values = drawn(sample_from(lambda spec: randint(5, 7)), 50)
    assert set(values) == {5, 6}


# Random states


@pytest.mark.parametrize(
    "state", [lambda: 3, lambda: random.Random(3), lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)]
)
def test_equal_random_states_give_equal_values(state: Callable[[], Any]) -> None:
    first = [domain.sample(random_state=state()) for domain in (uniform(0, 1), randint(0, 100), randn())]
    assert first == [domain.sample(random_state=state()) for domain in (uniform(0, 1), randint(0, 100), randn())]


@pytest.mark.parametrize("state", [random.Random(3), np.random.default_rng(3), np.random.RandomState(3)])
def test_a_generator_is_moved_on(state: Any) -> None:
    assert uniform(0, 1).sample(random_state=state) != uniform(0, 1).sample(random_state=state)


@pytest.mark.usefixtures("unseeded")
def test_without_a_random_state_the_global_generator_decides() -> None:
    random.seed(5)
    first = [uniform(0, 1).sample(), uniform(0, 1).sample()]
    random.seed(5)
    assert [uniform(0, 1).sample(), uniform(0, 1).sample()] == first
    assert first[0] != first[1]


def test_a_random_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="random_state"):
        uniform(0, 1).sample(random_state="seed")


# Domains as values


DOMAINS = [
    uniform(0, 1),
    quniform(0, 1, 0.25),
    loguniform(1e-4, 1, 2),
    qloguniform(0.1, 1, 0.1),
    randint(0, 5),
    qrandint(0, 10, 5),
    lograndint(1, 100),
    qlograndint(2, 64, 2),
    randn(1, 2),
    qrandn(1, 2, 0.5),
    choice(["a", None, 3]),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_what_is_drawn_is_valid_and_stays_as_it_is_when_cast(domain: Domain) -> None:
    for value in drawn(domain, 200):
        assert domain.is_valid(value)
        assert domain.cast(value) == value


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_a_domain_shows_as_the_call_that_makes_an_equal_one(domain: Domain) -> None:
    import paceline.tune.search.sample as functions

    again = eval(repr(domain), vars(functions))
    assert again == domain
    assert hash(again) == hash(domain)
    assert domain.domain_str == repr(domain)


def test_domains_differ_by_bounds_and_sampler() -> None:
    assert uniform(0.5, 1) != loguniform(0.5, 1)
    assert randint(1, 5) != randint(1, 6)
    assert choice([1, 2]) != choice([2, 1])


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (uniform(0, 1), 1.5),
        (uniform(0, 1), "0.5"),
        (uniform(0, 1), True),
        (uniform(0, 1), math.nan),
        (quniform(0, 1, 0.25), 0.3),
        (randint(0, 5), 5),
        (randint(0, 5), 1.5),
        (qrandint(0, 10, 5), 4),
        (qrandint(0, 10, 5), 15),
        (choice([1, 2]), 3),
        (choice([1, 2]), True),
    ],
)
def test_values_outside_of_a_domain_are_not_valid(domain: Domain, value: Any) -> None:
    assert not domain.is_valid(value)


def test_numpy_numbers_and_arrays_can_be_checked() -> None:
    assert uniform(0, 1).is_valid(np.float32(0.5))
    assert randint(0, 5).is_valid(np.int64(3))
    array = np.zeros(3)
    options = choice([array, "other"])
    assert options.is_valid(array)
    assert not options.is_valid(np.ones(3))


def test_cast_puts_a_number_back_into_the_domain() -> None:
    assert quniform(0, 1, 0.25).cast(0.6) == 0.5
    assert qrandint(0, 10, 5).cast(13) == 10
    assert randint(0, 10).cast(3.7) == 3
    assert uniform(0, 1).cast(1) == 1.0


def test_the_chained_form_makes_the_same_domains() -> None:
    assert Float(1, 8).loguniform(2).quantized(0.5) == qloguniform(1, 8, 0.5, 2)
    assert Integer(1, 8).uniform().quantized(2) == qrandint(1, 8, 2)
    assert Integer(1, 8).loguniform().sampler == LogUniform(10)
    assert Categorical((1, 2)).grid() != choice([1, 2])
    assert len(choice([1, 2])) == 2


@pytest.mark.parametrize("domain", [*DOMAINS, sample_from(len), grid_search([1])], ids=repr)
def test_configs_take_a_search_space_in_the_place_of_a_value(domain: Any) -> None:
    assert is_search_space(domain)
    config = ScalingConfig(num_workers=domain, resources_per_worker={"CPU": domain})
    assert config.num_workers is domain
    with pytest.raises(ConfigError, match="sampled"):
        config.as_placement_group_factory()


# What is refused


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: uniform(1, 0), "swap"),
        (lambda: uniform(1, 1), "write the value itself"),
        (lambda: uniform("1e-4", 1), r"float\(\)"),
        (lambda: uniform(0, math.inf), "finite"),
        (lambda: uniform(True, 3), "give a number"),
        (lambda: randint(5, 2), "swap"),
        (lambda: randint(0.5, 2), "whole number"),
        (lambda: randint(2, 2), "write the value itself"),
        (lambda: loguniform(0, 1), "above 0"),
        (lambda: loguniform(-1, 1), "above 0"),
        (lambda: loguniform(1, 2, base=1), "base"),
        (lambda: lograndint(0, 10), "above 0"),
        (lambda: qlograndint(-4, 10, 2), "above 0"),
        (lambda: quniform(0, 1, 0.3), "nearest multiple is 0.9"),
        (lambda: quniform(0, 1, 0), "above 0"),
        (lambda: quniform(0, 1, -0.1), "above 0"),
        (lambda: qrandint(5, 7, 4), "no multiple"),
        (lambda: qrandint(7, 5, 1), "swap"),
        (lambda: qrandint(0, 4, 0.5), "whole number"),
        (lambda: randn(0, 0), "above 0"),
        (lambda: randn("a"), "mean"),
        (lambda: qrandn(0, 1, 0), "above 0"),
        (lambda: Float(0, 1).normal(), "randn"),
        (lambda: choice([]), "empty"),
        (lambda: choice("adam"), r"Write \['adam'\]"),
        (lambda: choice({"a": 1}), "list"),
        (lambda: choice({1, 2}), "sorted"),
        (lambda: choice(3), "list"),
        (lambda: grid_search("abc"), "list"),
        (lambda: grid_search(5), "list"),
        (lambda: grid_search([]), "empty"),
        (lambda: grid_search(x for x in [1]), "list"),
        (lambda: sample_from(5), "function"),
        (lambda: sample_from(lambda a, b: 1), "needs a, b"),
    ],
)
def test_what_cannot_work_is_refused_with_advice(make: Callable[[], Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        make()


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert randint(1, 1e3) == randint(1, 1000)
    assert all(type(value) is int for value in drawn(qrandint(0, 10, 2.0), 20))
