"""Searches on a Ray cluster of three hosts with two CPUs each, which share no files."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.engine.choose import choose_engine
from paceline.train import DataParallelTrainer
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.experiment import rooms
from paceline.tune.experiment.audience import Audience
from paceline.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from tests.cluster.driver import tell, wait_for_word
from tests.cluster.ray_hosts import RESULTS, RayHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def until_stopped(config: Mapping[str, Any]) -> None:
    """Says where it runs, again and again."""
    while True:
        session.report({"host": socket.gethostname()})
        time.sleep(0.05)


class Together:
    """A stopper: ends every trial at the first report after `number` of them have been at work side by side."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._at_work: dict[str, str] = {}
        self.most: list[str] = []
        """The hosts of those that were at work at the same time."""

    def __call__(self, trial_id: str, row: dict[str, Any]) -> bool:
        self._at_work[trial_id] = row["host"]
        if len(self._at_work) > len(self.most):
            self.most = sorted(self._at_work.values())
        if len(self.most) < self._number:
            return False
        del self._at_work[trial_id]
        return True

    def stop_all(self) -> bool:
        return False


def run_search(trainable: Any, samples: int, **settings: Any) -> ResultGrid:
    grid = Tuner(
        trainable, tune_config=TuneConfig(num_samples=samples), run_config=RunConfig(verbose=0, **settings)
    ).fit()
    assert not grid.errors, grid.errors
    return grid


# As many at a time as fit


def search_side_by_side(cpus: float, at_once: int, samples: int) -> dict[str, Any]:
    together = Together(at_once)
    grid = run_search(tune.with_resources(until_stopped, {"CPU": cpus}), samples, stop=together)
    return {"hosts": together.most, "trials": len(grid)}


@pytest.mark.parametrize(
    ("cpus", "hosts"), [(2, ["h1", "h2", "h3"]), (1, ["h1", "h1", "h2", "h2", "h3", "h3"])], ids=["whole", "half"]
)
def test_as_many_trials_run_at_a_time_as_fit_on_the_nodes(ray_hosts: RayHosts, cpus: int, hosts: list[str]) -> None:
    seen = ray_hosts.run_driver("h1", search_side_by_side, cpus=cpus, at_once=len(hosts), samples=len(hosts) + 2)
    assert seen == {"hosts": hosts, "trials": len(hosts) + 2}


def search_with_trainers() -> dict[str, Any]:
    together = Together(3)
    trainer = DataParallelTrainer(
        until_stopped,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    )
    grid = run_search(trainer, 4, stop=together)
    return {"hosts": together.most, "trials": len(grid)}


def test_the_workers_of_a_trial_share_a_node_where_they_fit(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", search_with_trainers)
    assert seen == {"hosts": ["h1", "h2", "h3"], "trials": 4}


def search_of_what_never_fits() -> str:
    with pytest.raises(ConfigError) as refused:
        run_search(tune.with_resources(until_stopped, {"CPU": 3}), 2)
    return str(refused.value)


def test_a_trial_that_never_fits_is_refused_at_once(ray_hosts: RayHosts) -> None:
    text = ray_hosts.run_driver("h1", search_of_what_never_fits)
    assert "CPU 3" in text
    assert "h2 (10.231.0.2): CPU 2" in text


def search_beside_another_program() -> dict[str, Any]:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    choose_engine("ray")
    taken = [placement_group([{"CPU": 2}]) for _ in range(3)]
    assert all(group.wait(30) for group in taken)
    texts: list[str] = []

    def note(_audience: Audience, text: str) -> None:
        if not texts:
            threading.Thread(target=lambda: remove_placement_group(taken.pop())).start()
        texts.append(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "ANNOUNCED_AFTER_S", 0.5)
        patch.setattr(Audience, "warn_once", note)
        together = Together(1)
        grid = run_search(tune.with_resources(until_stopped, {"CPU": 2}), 3, stop=together)
    for group in taken:
        remove_placement_group(group)
    assert ray.is_initialized()
    return {"text": texts[0], "most": len(together.most), "trials": len(grid)}


def test_a_search_waits_for_room_that_others_hold_and_says_so(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", search_beside_another_program)
    assert "CPU 2" in seen["text"]
    assert (seen["most"], seen["trials"]) == (1, 3)


# A dead node


def report_attempts(config: Mapping[str, Any]) -> None:
    start = session.get_checkpoint()
    done = 0 if start is None else start.to_dict()["done"]
    while True:
        done += 1
        session.report({"host": socket.gethostname(), "done": done}, checkpoint=Checkpoint.from_dict({"done": done}))
        time.sleep(0.05)


class Watch:
    """Tells the test where each trial is; after the test has killed a host, ends a trial when all are at work."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[str]] = {}
        self.told = False
        self.killed = ""

    def __call__(self, trial_id: str, row: dict[str, Any]) -> bool:
        hosts = self.hosts.setdefault(trial_id, [])
        if not hosts or hosts[-1] != row["host"]:
            hosts.append(row["host"])
        if len(self.hosts) == 3 and not self.told:
            self.told = True
            tell("at work", hosts={name: seen[-1] for name, seen in self.hosts.items()})
            self.killed = wait_for_word()
        if not self.killed:
            return False
        # One that was not hit makes room for the one that was; then that ends too, then the last.
        hit = next(name for name, seen in self.hosts.items() if seen[0] == self.killed)
        if trial_id == next(name for name in sorted(self.hosts) if name != hit):
            return True
        return len(self.hosts[hit]) > 1

    def stop_all(self) -> bool:
        return False


def search_while_a_host_dies() -> dict[str, Any]:
    watch = Watch()
    grid = Tuner(
        tune.with_resources(report_attempts, {"CPU": 2}),
        tune_config=TuneConfig(num_samples=3),
        run_config=RunConfig(
            verbose=0, stop=watch, failure_config=FailureConfig(max_failures=1, heartbeat_timeout_s=3)
        ),
    ).fit()
    attempts = sorted(result.attempts for result in grid)
    return {"errors": [str(error) for error in grid.errors], "attempts": attempts, "hosts": list(watch.hosts.values())}


def test_a_dead_node_costs_only_its_own_trial_an_attempt(own_ray_hosts: Callable[..., RayHosts]) -> None:
    ray_hosts = own_ray_hosts()
    driver = ray_hosts.start_driver("h1", search_while_a_host_dies)
    hosts = driver.wait_for("at work")["hosts"]
    assert sorted(hosts.values()) == ["h1", "h2", "h3"]
    ray_hosts.kill("h3")
    driver.say("h3")
    seen = driver.result(120)
    assert seen["errors"] == []
    assert seen["attempts"] == [1, 1, 2]
    assert sorted(len(of_trial) for of_trial in seen["hosts"]) == [1, 1, 2]


# Schedulers, checkpoints, restore


def learn(config: Mapping[str, Any]) -> None:
    start = session.get_checkpoint()
    done, total = (0, 0.0) if start is None else (start.to_dict()["done"], start.to_dict()["total"])
    for step in range(done + 1, config.get("steps", 12) + 1):
        total += config["rate"]
        session.report(
            {"total": total, "step": step, "host": socket.gethostname()},
            checkpoint=Checkpoint.from_dict({"done": step, "total": total}),
        )


def search_with_a_scheduler(scheduling: str) -> dict[str, Any]:
    scheduler: Any = ASHAScheduler(max_t=12, grace_period=2)
    if scheduling == "pbt":
        scheduler = PopulationBasedTraining(
            time_attr="step", perturbation_interval=3, hyperparam_mutations={"rate": [0.1, 1.0]}
        )
    grid = Tuner(
        learn,
        param_space={"rate": tune.grid_search([0.1, 0.2, 0.5, 1.0, 0.3, 0.4])},
        tune_config=TuneConfig(scheduler=scheduler, metric="total", mode="max"),
        run_config=RunConfig(verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=2)),
    ).fit()
    assert not grid.errors, grid.errors
    best = grid.get_best_result()
    assert best.checkpoint is not None
    return {
        "total": best.checkpoint.to_dict()["total"],
        "steps": sorted(result.metrics["step"] for result in grid),
        "hosts": sorted({result.metrics["host"] for result in grid}),
    }


def test_population_based_training_hands_checkpoints_from_node_to_node(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", search_with_a_scheduler, scheduling="pbt")
    assert seen["steps"] == [12] * 6
    assert seen["hosts"] == ["h1", "h2", "h3"]


def test_bad_trials_stop_early(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", search_with_a_scheduler, scheduling="asha")
    assert seen["total"] == pytest.approx(12.0)
    assert seen["steps"][0] < 12


def search_until_interrupted() -> str:
    def at_work(trial_id: str, row: dict[str, Any]) -> bool:
        if row["step"] == 3:
            tell("at work")
        return False

    tuner = Tuner(
        slowly,
        param_space={"rate": tune.grid_search([0.5, 1.0])},
        run_config=RunConfig(name="interrupted", storage_path=RESULTS, verbose=0, stop=at_work),
    )
    with pytest.raises(KeyboardInterrupt) as interrupted:
        tuner.fit()
    return str(interrupted.value)


def slowly(config: Mapping[str, Any]) -> None:
    start = session.get_checkpoint()
    done = 0 if start is None else start.to_dict()["done"]
    for step in range(done + 1, 61):
        time.sleep(0.05)
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"done": step}))


def continue_search() -> dict[str, Any]:
    grid = Tuner.restore(f"{RESULTS}/interrupted", slowly).fit()
    assert not grid.errors, grid.errors
    rows = [list(result.metrics_dataframe["step"]) for result in grid if result.metrics_dataframe is not None]
    return {"engine": choose_engine().name, "rows": rows}


@pytest.mark.parametrize(("first", "then"), [("ray", "local"), ("local", "ray")])
def test_a_search_continues_on_another_engine(ray_hosts: RayHosts, first: str, then: str) -> None:
    driver = ray_hosts.start_driver("h2", search_until_interrupted, variables={"PACELINE_ENGINE": first})
    driver.wait_for("at work")
    driver.send(signal.SIGINT)
    assert f"{RESULTS}/interrupted" in driver.result()
    seen = ray_hosts.start_driver("h2", continue_search, variables={"PACELINE_ENGINE": then}).result()
    assert seen == {"engine": then, "rows": [list(range(1, 61))] * 2}
