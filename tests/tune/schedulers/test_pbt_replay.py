"""The schedule of one trial of a population, trained once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay
from paceline.tune.schedulers.pbt_replay import changes, read_policy
from paceline.tune.search.sample import uniform
from tests.tune.schedulers.population import Population, Replay


def gain(config: dict[str, Any]) -> float:
    """Best at 3, so that the schedule matters."""
    return 10.0 - (float(config["lr"]) - 3.0) ** 2


def trained(path: Path, *, synch: bool = False, seed: int = 0) -> Population:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": uniform(0, 6)},
        quantile_fraction=0.5,
        synch=synch,
    )
    configs: list[dict[str, Any]] = [{"lr": rate, "model": object()} for rate in (0.2, 1.0, 4.5, 5.9)]
    return Population(scheduler, configs, gain, steps=15, slots=2, seed=seed, path=path).run()


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_replay_arrives_at_the_weights_of_the_trial_it_repeats(tmp_path: Path, synch: bool, seed: int) -> None:
    population = trained(tmp_path, synch=synch, seed=seed)
    policies = sorted(tmp_path.glob("pbt_policy_*.txt"))
    assert len(policies) >= 2
    assert any(len(read_policy(path)) > 1 for path in policies)

    for path in policies:
        policy = read_policy(path)
        number = int(policy[-1].trial_id.split("_")[1])
        steps = changes(policy)[-1][0] + population.iterations[number] - policy[-1].iteration
        model = object()
        again = Population(PopulationBasedTrainingReplay(path), [{"model": model}], gain, steps=steps).run()

        assert again.weights[0] == population.weights[number]
        assert again.trials[0].config == {**population.trials[number].config, "model": model}
        assert {donor for _, _, donor in again.parents} == {0}


def test_a_restored_replay_goes_on_with_the_next_change(tmp_path: Path) -> None:
    trained(tmp_path)
    path = max(tmp_path.glob("pbt_policy_*.txt"), key=lambda each: len(read_policy(each)))
    earlier = Population(PopulationBasedTrainingReplay(path), [{}], gain, steps=40).run()
    decided = [(place, call.restarts[0].config) for place, call in enumerate(earlier.calls) if call.restarts]
    assert len(decided) >= 2

    for cut in range(len(earlier.calls)):
        replay = Replay(PopulationBasedTrainingReplay(path), earlier, cut)
        assert [restart.config for _, restart in replay.said] == [config for place, config in decided if place >= cut]


def policy_file(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_one_trial_with_checkpoints_is_needed(tmp_path: Path) -> None:
    path = policy_file(tmp_path / "policy", ["b", "a", 4, 4, {"lr": 1}, {"lr": 2}])
    with pytest.raises(ConfigError, match="num_samples=1"):
        Population(PopulationBasedTrainingReplay(path), [{}, {}], gain).run()
    with pytest.raises(ConfigError, match=r"iteration 4.*checkpoint"):
        Population(PopulationBasedTrainingReplay(path), [{}], gain, checkpoints=False).run()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        ([{"lr": 1}], r"line 1\b"),
        ([["b", "a", 4, 4, {"lr": 1}]], r"line 1\b"),
        ([["b", "a", 4, 4, "lr", {"lr": 1}]], r"line 1\b"),
        ([["b", "a", 4, 4, {}, {}], ["c", "a", 4, 4, {}, {}]], "one trial"),
    ],
)
def test_files_that_are_no_policy_are_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PopulationBasedTrainingReplay(policy_file(tmp_path / "policy", *lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt"):
        PopulationBasedTrainingReplay(tmp_path / "nowhere.txt")
