"""PB2: a model picks the parameters, within bounds, better than chance does."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.tune.schedulers import PB2, PopulationBasedTraining
from paceline.tune.schedulers.pb2_model import Gain, next_point
from paceline.tune.search.sample import uniform
from tests.tune.schedulers.population import Population, Replay, new_trial

BOUNDS = {"lr": [0.0, 1.0], "momentum": [0.0, 1.0]}


def pb2(**arguments: Any) -> PB2:
    settings: dict[str, Any] = {
        "time_attr": "training_iteration",
        "perturbation_interval": 1,
        "hyperparam_bounds": BOUNDS,
        "quantile_fraction": 0.5,
        "log_config": False,
    }
    return PB2(**{**settings, **arguments})


def gain(config: dict[str, Any]) -> float:
    """A hill whose top is far from where the population starts."""
    return math.exp(-8 * ((config["lr"] - 0.8) ** 2 + (config["momentum"] - 0.3) ** 2))


START = [{"lr": lr, "momentum": momentum} for lr, momentum in ((0.1, 0.9), (0.2, 0.7), (0.05, 0.8), (0.3, 0.95))]


def proposals(population: Population) -> list[dict[str, Any]]:
    return [restart.config or {} for call in population.calls for restart in call.restarts.values()]


@pytest.mark.slow  # many populations
def test_the_model_finds_the_hill_better_than_chance() -> None:
    def by_chance() -> PopulationBasedTraining:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=1,
            hyperparam_mutations={"lr": uniform(0, 1), "momentum": uniform(0, 1)},
            quantile_fraction=0.5,
            resample_probability=1.0,
            log_config=False,
            synch=True,
        )

    seeds = range(2)
    with_model = [Population(pb2(synch=True), START, gain, steps=12, seed=seed).run() for seed in seeds]
    with_chance = [Population(by_chance(), START, gain, steps=12, seed=seed).run() for seed in seeds]

    def later(populations: list[Population]) -> float:
        gains = [gain(config) for population in populations for config in proposals(population)[10:]]
        return sum(gains) / len(gains)

    assert later(with_model) > 0.8
    assert later(with_chance) < 0.5
    assert sum(max(each.weights) for each in with_model) > sum(max(each.weights) for each in with_chance)


def test_one_population_ends_up_on_the_hill() -> None:
    population = Population(pb2(synch=True), START, gain, steps=12, seed=0).run()
    gains = [gain(config) for config in proposals(population)[10:]]
    assert sum(gains) / len(gains) > 0.7


def observed(*points: float, time: float = 1.0, top: float = 0.6) -> list[Gain]:
    return [Gain(time, 0.0, (point,), -((point - top) ** 2)) for point in points]


def test_the_model_goes_where_gains_were_greatest_of_late() -> None:
    everywhere = [place / 10 for place in range(11)]
    early, late = observed(*everywhere, time=1, top=0.2), observed(*everywhere, time=50, top=0.8)
    [found] = next_point([*early, *late], time=51, before=0.0, pending=[], rng=random.Random(0))
    assert abs(found - 0.8) < 0.15


def test_of_two_equal_hills_the_one_that_nobody_tries_is_chosen() -> None:
    hills = {0.1: 0.0, 0.3: 1.0, 0.5: 0.0, 0.7: 1.0, 0.9: 0.0}
    seen = [Gain(1.0, 0.0, (point,), gained) for point, gained in hills.items()]
    for tried, other in ((0.3, 0.7), (0.7, 0.3)):
        [found] = next_point(seen, time=1, before=0.0, pending=[(tried,)], rng=random.Random(0))
        assert abs(found - other) < 0.05


def test_the_loss_goes_down_with_mode_min_alike() -> None:
    up = Population(pb2(), START, gain, steps=8).run()
    down = Population(pb2(), START, gain, steps=8, mode="min").run()
    assert proposals(up)
    assert proposals(up) == proposals(down)


def test_proposals_stay_within_bounds_nested_and_whole_numbers_stay_whole() -> None:
    bounds = {"opt": {"lr": [1e-4, 1e-1]}, "layers": [1, 8]}
    configs = [{"layers": layers, "kept": "x"} for layers in (1, 2, 4, 8)]
    population = Population(
        pb2(hyperparam_bounds=bounds, synch=True), configs, lambda config: config["layers"] - config["opt"]["lr"]
    ).run()

    found = proposals(population)
    assert len(found) >= 8
    assert all(1e-4 <= config["opt"]["lr"] <= 1e-1 for config in found)
    assert all(type(config["layers"]) is int and 1 <= config["layers"] <= 8 for config in found)
    assert all(config["kept"] == "x" for config in found)
    assert len({config["opt"]["lr"] for config in found}) > 2
    assert configs[0] == {"layers": 1, "kept": "x"}


def test_a_member_that_diverges_does_no_harm() -> None:
    def sometimes_nan(config: dict[str, Any]) -> float:
        return math.nan if config["lr"] < 0.15 else gain(config)

    population = Population(pb2(), START, sometimes_nan, steps=8).run()
    assert population.iterations == [8] * 4
    assert not any(math.isnan(value) for config in proposals(population) for value in config.values())


def test_the_seed_decides_and_a_replay_goes_on_alike() -> None:
    runs = [Population(pb2(), START, gain, steps=5, seed=seed).run() for seed in (1, 1, 2)]
    assert proposals(runs[0]) == proposals(runs[1]) != proposals(runs[2])

    half = len(runs[0].calls) // 2
    expected = [(n, call.restarts[n].config) for call in runs[0].calls[half:] for n in call.restarts]
    said = Replay(pb2(), runs[0], half, seed=1).said
    assert expected
    assert [(number, restart.config) for number, restart in said] == expected


def test_a_function_of_the_user_has_the_last_word() -> None:
    scheduler = pb2(custom_explore_fn=lambda config: {**config, "lr": 0.5})
    assert {config["lr"] for config in proposals(Population(scheduler, START, gain, steps=3).run())} == {0.5}


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (None, "hyperparam_bounds"),
        ({"lr": 0.1}, r"hyperparam_bounds\['lr'\] is 0.1"),
        ({"lr": [1, 1]}, r"hyperparam_bounds\['lr'\]"),
        ({"opt": {"lr": [0, 1, 2]}}, r"\['opt'\]\['lr'\]"),
        ({"lr": ["a", "b"]}, r"hyperparam_bounds\['lr'\]"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pb2(hyperparam_bounds=bounds)


def test_a_configuration_that_has_text_where_a_number_is_chosen_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"'high'.*'lr'"):
        pb2().on_trial_add(Population(pb2(), []), new_trial(0, {"lr": "high"}))


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"paceline\[sklearn\]"):
        pb2()


def test_making_one_loads_no_heavy_library() -> None:
    program = (
        "import sys; from paceline.tune.schedulers import PB2; PB2(hyperparam_bounds={'lr': [0, 1]}); "
        "print([name for name in ('numpy', 'scipy', 'sklearn', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
