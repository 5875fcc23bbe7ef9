"""Workers, hosts and Ray's own processes die, or lose the network, under runs on three hosts that share nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.testing.processes import wait_for
from tests.cluster import programs
from tests.cluster.driver import RESULT
from tests.cluster.programs import AT_WORK, HOLD, STEPS
from tests.cluster.ray_hosts import DriverProcess, RayHosts
from tests.cluster.slow_start import HELD, HOLDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]
HEARTBEAT_S = 5.0
MARGIN_S = 5.0
"""What a loaded machine may add to a limit."""
ROWS = list(range(1, STEPS + 1))


def check_end(outcome: dict[str, Any], *, attempts: int = 2, begun: int = HOLD) -> None:
    """The run has reached its end, and no row is missing or there twice."""
    assert outcome["error"] is None, outcome["error"]
    assert (outcome["attempts"], outcome["begun"]) == (attempts, begun)
    assert outcome["rows"] == ROWS
    assert outcome["checkpoint"] == STEPS


def other_host_at_work(ray_hosts: RayHosts) -> str:
    """One that has a worker and is not the head. Rank 0 may have reported before the others have begun."""

    def found() -> str:
        others = (name for name in ray_hosts.hosts.names if name != "h1" and ray_hosts.path(name, AT_WORK).exists())
        return next(others, "")

    return wait_for(found, "a worker on another host", 30.0)


def holding_run(ray_hosts: RayHosts, workers: int = 2, **settings: Any) -> tuple[DriverProcess, str]:
    """A driver on h1 whose workers stand still, and the host of one of them that is not h1."""
    settings = {"heartbeat_timeout_s": HEARTBEAT_S, **settings}
    driver = ray_hosts.start_driver("h1", programs.fit, workers=workers, **settings)
    while driver.wait_for("row")["done"] < HOLD:
        pass
    return driver, other_host_at_work(ray_hosts)


def next_attempt(driver: DriverProcess) -> dict[str, Any]:
    """The first row of the attempt that continues."""
    while not (row := driver.wait_for("row"))["begun"]:
        pass
    return row


def test_a_killed_worker_on_another_host_is_the_cause_and_the_run_continues(ray_hosts: RayHosts) -> None:
    """J1."""
    check_end(ray_hosts.run_driver("h1", programs.fit, workers=3, kills_itself=2))
    failed = ray_hosts.run_driver("h1", programs.fit, workers=3, kills_itself=2, max_failures=0)
    assert failed["cause"]["rank"] == 2
    assert failed["cause"]["kind"] == "signal"
    assert "SIGKILL" in failed["error"]
    assert failed["checkpoint"] == HOLD
    assert [text.strip() for text in failed["logs"]] == [f"output of {host}" for host in failed["hosts"]]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_first_failure_is_the_cause_whatever_the_clocks_say(ray_hosts: RayHosts, first: int) -> None:
    failed = ray_hosts.run_driver("h1", programs.fail_in_order, first=first)
    assert failed["cause"]["rank"] == first
    assert "LookupError: the cause" in failed["error"].splitlines()[0]


def test_a_killed_host_is_noticed_before_ray_does_and_the_run_continues_on_another(
    own_ray_hosts: Callable[..., RayHosts],
) -> None:
    """J2."""
    ray_hosts = own_ray_hosts()
    driver, victim = holding_run(ray_hosts)
    killed = time.monotonic()
    ray_hosts.kill(victim)
    row = next_attempt(driver)
    took = time.monotonic() - killed
    print(f"the next attempt had its first row {took:.1f} s after the host was killed, heartbeat {HEARTBEAT_S:g} s")
    assert row["alive"] == 3, "Ray had noticed by then"
    assert took < HEARTBEAT_S + MARGIN_S
    outcome = driver.result()
    check_end(outcome)
    assert victim not in outcome["hosts"]
    ray_hosts.wait_until_clean()


def test_a_host_that_was_killed_and_came_back_is_used_again(own_ray_hosts: Callable[..., RayHosts]) -> None:
    """The next attempt waits for it: there is no room elsewhere."""
    ray_hosts = own_ray_hosts()
    driver, _ = holding_run(ray_hosts, workers=3, start_timeout_s=120.0)
    ray_hosts.kill("h3")
    ray_hosts.revive("h3")
    outcome = driver.result()
    check_end(outcome)
    assert sorted(outcome["hosts"]) == ["h1", "h2", "h3"]
    ray_hosts.wait_until_clean()


@pytest.mark.parametrize("backend", ["slow import", "slow connection"])
def test_a_host_that_is_lost_while_workers_come_up_costs_an_attempt(
    own_ray_hosts: Callable[..., RayHosts], backend: str
) -> None:
    ray_hosts = own_ray_hosts()
    ray_hosts.path("h3", HOLDS).touch()
    driver = ray_hosts.start_driver("h1", programs.fit, workers=3, backend=backend, holds=False, start_timeout_s=120.0)
    held = ray_hosts.path("h3", HELD)
    wait_for(held.exists, "workers that come up", 60.0)
    ray_hosts.kill("h3")
    ray_hosts.revive("h3")
    check_end(driver.result(), begun=0)
    ray_hosts.wait_until_clean()


@pytest.mark.parametrize("long", [False, True], ids=["shorter than Ray notices", "longer"])
def test_a_host_that_is_cut_off_ends_what_it_runs_and_can_be_used_again(
    own_ray_hosts: Callable[..., RayHosts], long: bool
) -> None:
    ray_hosts = own_ray_hosts()
    driver = ray_hosts.start_driver(
        "h1", programs.fit_twice, workers=2, again=3, heartbeat_timeout_s=HEARTBEAT_S, start_timeout_s=120.0
    )
    while driver.wait_for("row")["done"] < HOLD:
        pass
    victim = other_host_at_work(ray_hosts)
    assert ray_hosts.left(victim)
    ray_hosts.cut(victim)
    took = ray_hosts.wait_until_clean(victim, timeout=2 * HEARTBEAT_S + MARGIN_S, actors_may_stay=True)
    print(f"a host that was cut off was clean after {took:.1f} s, heartbeat {HEARTBEAT_S:g} s")
    first = driver.wait_for("first")
    check_end(first)
    assert victim not in first["hosts"]
    if long:
        wait_until_ray_gives_up(ray_hosts, victim)
    ray_hosts.heal(victim)
    if long:
        ray_hosts.join(victim)
    driver.say("go on")
    second = driver.result()
    check_end(second, attempts=1, begun=0)
    assert sorted(second["hosts"]) == ["h1", "h2", "h3"]
    ray_hosts.wait_until_clean()


def wait_until_ray_gives_up(ray_hosts: RayHosts, name: str) -> None:
    """Its raylet ends when it cannot reach the head any more."""
    ray_hosts.run_driver("h1", wait_for_nodes, count=len(ray_hosts.hosts.names) - 1)


def wait_for_nodes(count: int) -> None:
    import ray

    ray.init(log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) != count:
        time.sleep(0.1)


def test_a_killed_raylet_costs_an_attempt(own_ray_hosts: Callable[..., RayHosts]) -> None:
    """J2."""
    ray_hosts = own_ray_hosts()
    driver, victim = holding_run(ray_hosts)
    ray_hosts.kill_raylet(victim)
    outcome = driver.result()
    check_end(outcome)
    assert victim not in outcome["hosts"]
    ray_hosts.wait_until_clean()


def test_without_the_head_the_driver_says_so_and_a_fresh_cluster_continues(
    own_ray_hosts: Callable[..., RayHosts],
) -> None:
    """J3."""
    ray_hosts = own_ray_hosts(3, driver_hosts=1)
    driver = ray_hosts.start_driver("h4", programs.fit, workers=2, heartbeat_timeout_s=HEARTBEAT_S)
    while driver.wait_for("row")["done"] < HOLD:
        pass
    killed = time.monotonic()
    ray_hosts.kill("h1")
    outcome = driver.wait_for(RESULT, 90.0)["value"]
    print(f"the driver gave up {time.monotonic() - killed:.1f} s after the head's host was killed: {outcome['error']}")
    assert "its head has not answered" in outcome["error"]
    assert ray_hosts.address in outcome["error"]
    assert outcome["checkpoint"] == HOLD
    assert outcome["attempts"] == 1, "the attempt that found no cluster started no workers"
    driver.wait()
    ray_hosts.restart()
    continued = ray_hosts.run_driver("h4", programs.restore, path=outcome["path"])
    check_end(continued)
    ray_hosts.wait_until_clean()


def test_a_killed_driver_leaves_nothing_on_any_host(ray_hosts: RayHosts) -> None:
    """J5."""
    driver, _ = holding_run(ray_hosts, workers=3)
    assert all(ray_hosts.left(name) for name in ray_hosts.hosts.names)
    driver.kill()
    took = ray_hosts.wait_until_clean(timeout=10.0 + MARGIN_S)
    print(f"nothing was left {took:.1f} s after the driver was killed")
    assert ray_hosts.run_driver("h2", reserved_resources) == {}


def reserved_resources() -> dict[str, float]:
    """What Ray believes to be in use."""
    import ray

    ray.init(log_to_driver=False)
    free = ray.available_resources()
    return {name: total for name, total in ray.cluster_resources().items() if name == "CPU" and free.get(name) != total}
