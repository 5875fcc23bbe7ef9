"""What trials of a search ask for, on a cluster whose third host has more than the others."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from paceline import tune
from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, StartupTimeoutError
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from tests.cluster.conftest import left_clean, make_ray_hosts
from tests.cluster.driver import tell, wait_for_word
from tests.cluster.ray_hosts import RayHosts
from tests.cluster.test_search import Together, report_attempts, run_search, until_stopped

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
MORE = {"h3": ["--num-gpus=2", '--resources={"special": 1}']}


@pytest.fixture(scope="module")
def special_hosts() -> Iterator[RayHosts]:
    """Three hosts with two CPUs each; h3 also has two GPUs that do not exist, and one of what is called special."""
    ray_hosts = make_ray_hosts(more=MORE)
    yield ray_hosts
    ray_hosts.down()


@pytest.fixture
def hosts(special_hosts: RayHosts) -> Iterator[RayHosts]:
    with left_clean(special_hosts):
        yield special_hosts


# Resources of functions


def search_for_the_special_one() -> dict[str, Any]:
    """Trials that ask for it run one after the other, on its host; the others beside them."""
    together = Together(4)
    wanted = {"special": {"CPU": 0.5, "special": 1}, "usual": {"CPU": 1.5}}
    grid = Tuner(
        tune.with_resources(until_stopped, lambda config: wanted[config["kind"]]),
        param_space={"kind": tune.grid_search(["special", "usual", "usual", "usual", "special"])},
        run_config=RunConfig(verbose=0, stop=together),
    ).fit()
    assert not grid.errors, grid.errors
    by_kind: dict[str, list[str]] = {}
    for result in grid:
        by_kind.setdefault((result.config or {})["kind"], []).append(result.metrics["host"])
    return {"most": together.most, "special": by_kind["special"], "usual": sorted(by_kind["usual"])}


def test_a_custom_resource_chooses_the_host(hosts: RayHosts) -> None:
    seen = hosts.run_driver("h1", search_for_the_special_one)
    assert seen == {"most": ["h1", "h2", "h3", "h3"], "special": ["h3", "h3"], "usual": ["h1", "h2", "h3"]}


def show_cards(config: Mapping[str, Any]) -> None:
    while True:
        session.report({"host": f"{socket.gethostname()} {os.environ['CUDA_VISIBLE_DEVICES']}"})
        time.sleep(0.05)


def search_with_cards() -> dict[str, Any]:
    alone = Together(2)
    run_search(tune.with_resources(show_cards, {"CPU": 0.5, "GPU": 1}), 4, stop=alone)
    shared = Together(4)
    run_search(tune.with_resources(show_cards, {"CPU": 0.5, "GPU": 0.5}), 4, stop=shared)
    pair = Together(1)
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 0.5})
    grid = run_search(DataParallelTrainer(show_cards, train_loop_config={}, scaling_config=scaling), 2, stop=pair)
    ranks = [sorted(metrics["host"] for metrics in result.rank_metrics.values()) for result in grid]
    return {"alone": alone.most, "shared": shared.most, "ranks": ranks}


def test_trials_side_by_side_have_cards_of_their_own(hosts: RayHosts) -> None:
    seen = hosts.run_driver("h1", search_with_cards)
    assert seen["alone"] == ["h3 0", "h3 1"]
    assert seen["shared"] == ["h3 0", "h3 0", "h3 1", "h3 1"]
    assert seen["ranks"] == [["h3 0", "h3 1"]] * 2


# Of trainers


def report_place(config: Mapping[str, Any]) -> None:
    session.report({"host": socket.gethostname()})


def hosts_of_trials(samples: int, **scaling: Any) -> list[list[str]]:
    trainer = DataParallelTrainer(report_place, scaling_config=ScalingConfig(num_workers=2, **scaling))
    grid = run_search(trainer, samples)
    return [sorted(metrics["host"] for metrics in result.rank_metrics.values()) for result in grid]


def search_with_trainers() -> dict[str, Any]:
    apart = hosts_of_trials(3, placement_strategy="STRICT_SPREAD")
    packed = hosts_of_trials(3, placement_strategy="STRICT_PACK")
    with_own = hosts_of_trials(2, placement_strategy="STRICT_PACK", trainer_resources={"special": 1})
    together = Together(2)
    tuner = Tuner(
        until_stopped,
        tune_config=TuneConfig(num_samples=6, max_concurrent_trials=2),
        run_config=RunConfig(verbose=0, stop=together),
    )
    assert not tuner.fit().errors
    return {"apart": apart, "packed": packed, "with own": with_own, "at once": len(together.most)}


def test_strategies_and_limits_hold_for_each_trial(hosts: RayHosts) -> None:
    seen = hosts.run_driver("h1", search_with_trainers)
    assert [len(set(trial)) for trial in seen["apart"]] == [2, 2, 2]
    assert [len(set(trial)) for trial in seen["packed"]] == [1, 1, 1]
    assert seen["with own"] == [["h3", "h3"]] * 2, "what the trainer asks for is on the same host"
    assert seen["at once"] == 2


def search_in_vain() -> dict[str, Any]:
    texts = {}
    for name, amounts in {"special": {"special": 2}, "GPU": {"GPU": 3}, "none": {"unheard_of": 1}}.items():
        began = time.monotonic()
        with pytest.raises(ConfigError) as refused:
            run_search(tune.with_resources(until_stopped, amounts), 2)
        texts[name] = str(refused.value)
        assert time.monotonic() - began < 30
    with pytest.raises(ConfigError) as refused:
        hosts_of_trials(1, placement_strategy="STRICT_SPREAD", resources_per_worker={"special": 0.5})
    return {**texts, "apart": str(refused.value)}


def test_a_refused_trial_says_what_exists_and_what_is_missing(hosts: RayHosts) -> None:
    """J4."""
    texts = hosts.run_driver("h1", search_in_vain)
    assert "No node has special 2." in texts["special"]
    assert "h3 (10.231.0.3): special 1" in texts["special"]
    assert "h1 (10.231.0.1): GPU 0" in texts["GPU"]
    assert "No node has unheard_of 1." in texts["none"]
    assert "each on another node" in texts["apart"]


# A node that has left


class UntilTold:
    """Ends trials when the test has told so; before that, tells where the first two are."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}

    def __call__(self, trial_id: str, row: dict[str, Any]) -> bool:
        if len(self.hosts) < 2 and trial_id not in self.hosts:
            self.hosts[trial_id] = row["host"]
            if len(self.hosts) == 2:
                tell("at work", hosts=self.hosts)
                wait_for_word()
        return row["host"] == "h1" and row["done"] > 100

    def stop_all(self) -> bool:
        return False


def search_while_the_special_host_dies() -> dict[str, Any]:
    wanted = {"special": {"CPU": 1, "special": 1}, "usual": {"CPU": 2}}
    grid = Tuner(
        tune.with_resources(report_attempts, lambda config: wanted[config["kind"]]),
        param_space={"kind": tune.grid_search(["special", "usual", "special", "usual"])},
        run_config=RunConfig(
            verbose=0,
            stop=UntilTold(),
            failure_config=FailureConfig(max_failures=2, heartbeat_timeout_s=2, start_timeout_s=5),
        ),
    ).fit()
    return {
        "kinds": [(result.config or {})["kind"] for result in grid],
        "errors": [type(result.error).__name__ for result in grid],
        "texts": [str(error) for error in grid.errors],
    }


def test_trials_that_need_a_node_that_left_fail_and_the_others_go_on(own_ray_hosts: Callable[..., RayHosts]) -> None:
    ray_hosts = own_ray_hosts(2, more={"h2": ['--resources={"special": 1}']})
    driver = ray_hosts.start_driver("h1", search_while_the_special_host_dies)
    assert set(driver.wait_for("at work")["hosts"].values()) == {"h1", "h2"}
    ray_hosts.kill("h2")
    driver.say("killed")
    seen = driver.result(150)
    name = StartupTimeoutError.__name__
    assert seen["kinds"] == ["special", "usual", "special", "usual"]
    assert seen["errors"] == [name, "NoneType", name, "NoneType"]
    assert all("the cluster lost h2 (10.231.0.2)" in text for text in seen["texts"])
