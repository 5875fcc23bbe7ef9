"""Population-based training: who takes over from whom, what is changed, and that the same calls lead to the same."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.tune.schedulers import PopulationBasedTraining
from paceline.tune.schedulers.pbt_explore import explored, filled
from paceline.tune.schedulers.trial_scheduler import Restart
from paceline.tune.search.sample import choice, loguniform, qrandint, quniform, randint, uniform
from tests.tune.schedulers.population import Population, Replay, new_trial

LR = {"lr": uniform(0.0, 10.0)}


def pbt(**arguments: Any) -> PopulationBasedTraining:
    settings: dict[str, Any] = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_mutations": LR,
        "log_config": False,
    }
    return PopulationBasedTraining(**{**settings, **arguments})


def rates(*values: float) -> list[dict[str, Any]]:
    return [{"lr": value} for value in values]


def changed(value: Any, mutation: Any, *, seeds: int = 40, resample: float = 0.0) -> set[Any]:
    """What becomes of a value, over many draws."""
    return {
        explored({"x": value}, {"x": mutation}, random.Random(seed), resample_probability=resample, factors=(1.2, 0.8))[
            "x"
        ]
        for seed in range(seeds)
    }


# Who takes over from whom


def test_the_worst_go_on_from_the_weights_of_the_best_and_everyone_profits() -> None:
    population = Population(pbt(), rates(0.1, 0.2, 0.3, 5.0), steps=12).run()

    assert population.parents
    alone = [12 * rate for rate in (0.1, 0.2, 0.3, 5.0)]
    assert population.weights[0] > 5 * alone[0]
    assert population.weights[3] >= alone[3]
    assert all(config["lr"] >= 0.1 for config in (trial.config for trial in population.trials))


def test_a_takeover_has_the_donors_configuration_changed_by_a_factor_and_keeps_its_own_count() -> None:
    population = Population(pbt(resample_probability=0, synch=True), rates(1.0, 2.0, 3.0, 4.0), steps=3).run()

    for call in population.calls:
        for number, restart in call.restarts.items():
            assert restart.donor is not None
            assert restart.config is not None
            assert any(math.isclose(restart.config["lr"], restart.donor.config["lr"] * f) for f in (1.2, 0.8))
            assert population.trials[number].config == restart.config
    assert population.parents
    assert population.iterations == [3, 3, 3, 3]


@pytest.mark.parametrize(("fraction", "count"), [(0.25, 2), (0.5, 4), (0.0, 0), (0.1, 1)])
def test_so_many_take_over_as_the_quantile_says(fraction: float, count: int) -> None:
    scheduler = pbt(synch=True, quantile_fraction=fraction)
    population = Population(scheduler, rates(*range(1, 9)), steps=3, slots=3).run()

    losers = {number for number, _, _ in population.parents}
    donors = {donor for _, _, donor in population.parents}
    assert losers == set(range(count))
    assert donors <= set(range(8 - count, 8))


def test_of_three_trials_the_middle_one_is_left_alone_even_with_half_of_them_in_each_quantile() -> None:
    population = Population(pbt(synch=True, quantile_fraction=0.5), rates(1, 2, 3), steps=3).run()
    assert [(number, donor) for number, _, donor in population.parents] == [(0, 2)]


def test_the_smallest_is_the_best_with_mode_min() -> None:
    population = Population(pbt(synch=True), rates(1, 2, 3, 4), steps=3, mode="min", gain=lambda config: -config["lr"])
    population.run()
    assert [(number, donor) for number, _, donor in population.parents] == [(3, 0)]


def test_a_trial_whose_metric_is_nan_is_the_worst() -> None:
    def gain(config: dict[str, Any]) -> float:
        return math.nan if config["lr"] == 3 else float(config["lr"])

    population = Population(pbt(synch=True), rates(1, 2, 3, 4), gain, steps=3).run()
    assert [(number, donor) for number, _, donor in population.parents] == [(2, 3)]


def test_nobody_takes_over_during_the_burn_in_period_and_alone_nobody_ever_does() -> None:
    population = Population(pbt(burn_in_period=6), rates(1, 2, 3, 4), steps=12).run()
    assert min(iteration for _, iteration, _ in population.parents) == 6
    assert not Population(pbt(), rates(1), steps=12).run().parents


def test_a_trial_that_has_ended_is_no_donor() -> None:
    population = Population(pbt(), rates(1, 2, 3, 50), steps=12, failing={3: 4}).run()
    after = [donor for number, iteration, donor in population.parents if iteration >= 10]
    assert after
    assert 3 not in after


def test_without_checkpoints_nothing_is_taken_over_and_that_is_said_once() -> None:
    population = Population(pbt(), rates(1, 2, 3, 4), checkpoints=False)
    with pytest.warns(UserWarning, match=r"checkpoint.*report\(") as warned:
        population.run()
    assert len(warned) == 1
    assert not population.parents


# Turns


@pytest.mark.parametrize(("slots", "ahead"), [(1, 2), (2, 4), (3, 4)])
def test_more_trials_than_fit_take_turns_of_an_interval(slots: int, ahead: int) -> None:
    without_takeovers = Population(pbt(quantile_fraction=0), rates(*range(1, 7)), slots=slots).run()
    assert without_takeovers.iterations == [8] * 6
    assert without_takeovers.spread <= ahead

    population = Population(pbt(), rates(*range(1, 7)), slots=slots).run()
    assert population.iterations == [8] * 6
    assert population.spread < 8
    assert population.parents


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
def test_a_search_that_holds_trials_back_is_not_waited_for_in_vain(synch: bool, slots: int) -> None:
    population = Population(pbt(synch=synch), rates(*range(1, 7)), slots=slots, open_trials=2).run()
    assert population.iterations == [8] * 6


def test_with_synch_nobody_goes_on_before_all_have_arrived() -> None:
    population = Population(pbt(synch=True), rates(*range(1, 7)), steps=8, slots=2).run()
    assert population.spread <= 2
    assert {iteration for _, iteration, _ in population.parents} == {2, 4, 6, 8}


def test_with_synch_a_trial_that_fails_is_not_waited_for() -> None:
    population = Population(pbt(synch=True), rates(1, 2, 3, 4), failing={1: 3}).run()
    assert [population.iterations[number] for number in (0, 2, 3)] == [8, 8, 8]
    assert {iteration for _, iteration, _ in population.parents} == {2, 4, 6, 8}


# What is changed


def test_a_value_of_a_list_moves_to_a_neighbour() -> None:
    assert changed(16, [8, 16, 32]) == {8, 32}
    assert changed(8, [8, 16, 32]) == {16}
    assert changed("b", choice(["a", "b", "c"])) == {"a", "c"}
    assert changed(99, [8, 16]) == {8, 16}
    assert changed("only", ["only"]) == {"only"}


def test_a_number_is_multiplied_and_stays_within_its_domain() -> None:
    assert changed(0.5, uniform(0, 1)) == {0.5 * 1.2, 0.5 * 0.8}
    assert changed(0.9, uniform(0, 1)) == {1.0, 0.9 * 0.8}
    assert changed(1e-4, loguniform(1e-4, 1e-1)) == {1e-4 * 1.2, 1e-4}
    assert changed(2.0, lambda: 0.0) == {2.0 * 1.2, 2.0 * 0.8}


def test_whole_numbers_and_multiples_stay_such_and_move() -> None:
    assert changed(10, randint(1, 100)) == {12, 8}
    assert changed(2, randint(1, 100)) == {3, 1}
    assert changed(9, randint(1, 10)) == {9, 7}
    assert changed(64, qrandint(16, 128, 16)) == {80, 48}
    assert changed(0.3, quniform(0.1, 0.4, 0.1)) == {0.4, 0.2}
    assert changed(1, lambda: 0) == {2, 1}
    assert all(type(each) is int for each in changed(10, randint(1, 100)))


def test_drawing_anew() -> None:
    draws = changed(5.0, uniform(0, 1), resample=1.0)
    assert len(draws) == 40
    assert all(0 <= each <= 1 for each in draws)
    assert changed("relu", lambda: "tanh", resample=1.0) == {"tanh"}
    assert changed("relu", lambda: "tanh") == {"relu"}  # text is not scaled
    assert changed(True, lambda: False) == {True}
    some = sum(value not in (6.0, 4.0) for value in changed(5.0, uniform(0, 10), resample=0.25, seeds=200))
    assert 25 <= some <= 75


def test_parameters_are_nested_and_what_trials_share_is_not_touched() -> None:
    model = object()
    shared = {"train_loop_config": {"momentum": 0.9, "model": model}}
    mutations = {"train_loop_config": {"lr": uniform(1, 2), "opt": {"beta": [1, 2, 3]}}}
    scheduler = pbt(hyperparam_mutations=mutations, synch=True)

    population = Population(scheduler, [shared] * 4, lambda config: config["train_loop_config"]["lr"], steps=3).run()

    assert shared == {"train_loop_config": {"momentum": 0.9, "model": model}}
    assert population.parents
    loops = [trial.config["train_loop_config"] for trial in population.trials]
    assert all(1 <= loop["lr"] <= 2 and loop["opt"]["beta"] in (1, 2, 3) for loop in loops)
    assert all(loop["model"] is model and loop["momentum"] == 0.9 for loop in loops)
    assert len({loop["lr"] for loop in loops}) == 4


def test_a_value_that_the_search_chose_is_kept_at_the_start() -> None:
    trial = new_trial(0, {"lr": 7.0})
    pbt(hyperparam_mutations={"lr": uniform(0, 1), "new": [5]}).on_trial_add(Population(pbt(), []), trial)
    assert trial.config == {"lr": 7.0, "new": 5}


def test_a_function_of_the_user_has_the_last_word_and_cannot_harm_the_donor() -> None:
    def explore(config: dict[str, Any]) -> dict[str, Any]:
        config["inner"]["lr"] = -1.0
        return config

    scheduler = pbt(hyperparam_mutations=None, custom_explore_fn=explore, synch=True)
    configs = [{"inner": {"lr": float(rate)}} for rate in (1, 2, 3, 4)]
    population = Population(scheduler, configs, lambda config: config["inner"]["lr"], steps=2).run()

    assert [trial.config["inner"]["lr"] for trial in population.trials] == [-1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ConfigError, match=r"custom_explore_fn.*dict"):
        Population(pbt(custom_explore_fn=lambda config: None), rates(1, 2, 3, 4)).run()


# The same calls lead to the same decisions


def takeovers(population: Population) -> list[Any]:
    return [
        (call.trial, call.restarts[n].config, population.parents) for call in population.calls for n in call.restarts
    ]


def test_the_seed_decides() -> None:
    configs: list[dict[str, Any]] = [{} for _ in range(6)]
    runs = [Population(pbt(), configs, seed=seed).run() for seed in (3, 3, 4)]
    assert takeovers(runs[0]) == takeovers(runs[1])
    assert runs[0].weights == runs[1].weights
    assert runs[0].weights != runs[2].weights


@pytest.mark.parametrize("synch", [False, True])
def test_after_a_replay_of_any_length_the_scheduler_decides_as_if_nothing_had_happened(synch: bool) -> None:
    earlier = Population(pbt(synch=synch), rates(*range(1, 7)), slots=3, seed=5).run()
    decided = [(place, n, call.restarts[n]) for place, call in enumerate(earlier.calls) for n in call.restarts]
    assert len(decided) >= 4

    for cut in range(0, len(earlier.calls) + 1, 3):
        replay = Replay(pbt(synch=synch), earlier, cut, seed=5)
        expected = [(n, restart) for place, n, restart in decided if place >= cut]
        assert [described(*each) for each in replay.said] == [described(*each) for each in expected]


def described(number: int, restart: Restart) -> tuple[int, Any, str]:
    assert restart.donor is not None
    return number, restart.config, restart.donor.trial_id


# The record


def test_the_record_says_who_took_over_from_whom(tmp_path: Path) -> None:
    population = Population(pbt(log_config=True), rates(1, 2, 3, 9), path=tmp_path).run()

    lines = [json.loads(line) for line in (tmp_path / "pbt_global.txt").read_text().splitlines()]
    ids = [trial.trial_id for trial in population.trials]
    # What was decided at a trial's last row did not come about.
    went_on = sorted(parents for parents in population.parents if parents[1] < population.steps)
    assert sorted((ids.index(line[0]), line[2], ids.index(line[1])) for line in lines) == went_on
    restarts = [(n, call.restarts[n].config) for call in population.calls for n in call.restarts]
    assert all((ids.index(line[0]), line[5]) in restarts for line in lines)
    policies = sorted(path.name for path in tmp_path.iterdir() if path.name != "pbt_global.txt")
    assert policies == sorted({f"pbt_policy_{line[0]}.txt" for line in lines})


def test_a_takeover_that_the_experiment_does_not_carry_out_is_not_recorded(tmp_path: Path) -> None:
    class Refusing(Population):
        def _restart(self, trial: Trial, restart: Restart) -> None:
            self.parents.append((0, 0, 0))

    population = Refusing(pbt(log_config=True), rates(1.0, 2.1, 3.3, 9.7), path=tmp_path).run()
    assert population.parents
    assert not list(tmp_path.iterdir())


def test_a_replay_and_log_config_false_write_nothing(tmp_path: Path) -> None:
    earlier = Population(pbt(), rates(1, 2, 3, 9), path=tmp_path).run()
    Replay(pbt(log_config=True), earlier, len(earlier.calls), path=tmp_path)
    assert earlier.parents
    assert not list(tmp_path.iterdir())


def test_objects_in_configurations_are_left_out_of_the_record(tmp_path: Path) -> None:
    configs = [{"lr": float(rate), "model": object()} for rate in (1, 2, 3, 4)]
    Population(pbt(log_config=True), configs, path=tmp_path).run()
    first = json.loads((tmp_path / "pbt_global.txt").read_text().splitlines()[0])
    assert set(first[4]) == set(first[5]) == {"lr"}


def test_secrets_in_configurations_are_masked_in_the_record(tmp_path: Path) -> None:
    configs = [{"lr": float(rate), "api_key": "hunter2"} for rate in (1, 2, 3, 4)]
    Population(pbt(log_config=True), configs, path=tmp_path).run()
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert written
    assert not any("hunter2" in text for text in written)


# Arguments


def test_rows_without_the_metric_are_an_error_or_are_left_out() -> None:
    trial, controller = new_trial(0, {"lr": 1.0}), Population(pbt(), [])
    for scheduler in (strict := pbt(metric="score", mode="max"), lenient := pbt(metric="score", require_attrs=False)):
        scheduler.on_trial_add(controller, trial)
    with pytest.raises(ConfigError, match=r"'score'.*require_attrs=False"):
        strict.on_trial_result(controller, trial, {"training_iteration": 2})
    with pytest.raises(ConfigError, match=r"'training_iteration'"):
        strict.on_trial_result(controller, trial, {"score": 2})
    with pytest.warns(UserWarning, match="'score'"):
        assert lenient.on_trial_result(controller, trial, {"training_iteration": 2}) == "CONTINUE"
    assert lenient.on_trial_result(controller, trial, {"training_iteration": 3}) == "CONTINUE"  # said once


def test_class_trainables_checkpoint_once_per_interval() -> None:
    assert pbt(perturbation_interval=5).checkpoint_every() == 5
    assert pbt(time_attr="time_total_s").checkpoint_every() == 1


def test_a_metric_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"PopulationBasedTraining.*TuneConfig\(metric="):
        pbt().set_search_properties(None, "max")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hyperparam_mutations": None}, "hyperparam_mutations"),
        ({"hyperparam_mutations": {}}, "hyperparam_mutations.*dict"),
        ({"hyperparam_mutations": {"lr": 0.1}}, r"hyperparam_mutations\['lr'\] is 0.1"),
        ({"hyperparam_mutations": {"a": {"lr": []}}}, r"\['a'\]\['lr'\] is empty"),
        ({"hyperparam_mutations": {"lr": {"grid_search": [1, 2]}}}, "grid_search"),
        ({"perturbation_interval": 0}, "perturbation_interval"),
        ({"burn_in_period": -1}, "burn_in_period"),
        ({"quantile_fraction": 0.6}, "quantile_fraction"),
        ({"resample_probability": 2}, "resample_probability"),
        ({"perturbation_factors": ()}, "perturbation_factors"),
        ({"custom_explore_fn": 3}, "custom_explore_fn"),
        ({"synch": "yes"}, "synch"),
        ({"mode": "best"}, "mode"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pbt(**arguments)


def test_mutations_that_are_nested_differently_from_the_configuration_are_named() -> None:
    scheduler: Callable[..., Any] = pbt(hyperparam_mutations={"opt": {"lr": [1]}}).on_trial_add
    with pytest.raises(ConfigError, match=r"'opt'.*param_space"):
        scheduler(Population(pbt(), []), new_trial(0, {"opt": "adam"}))


def test_mutations_that_cannot_work_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"function.*lambda: "):
        pbt(hyperparam_mutations={"lr": lambda spec: 0.1})
    with pytest.raises(ConfigError, match=r"/.*param_space"):
        filled({"opt": {"lr": 0.5}}, {"opt/lr": uniform(0.0, 1.0)}, random.Random(1))
