"""Ray clusters on hosts made from namespaces; where they cannot be made, the session says so at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray_hosts import RayHosts
from tests.hosts.conftest import make_hosts


def make_ray_hosts(
    count: int = 3,
    *shared: Path,
    cpus: int = 2,
    driver_hosts: int = 0,
    driver_at_head: bool = False,
    more: Mapping[str, Sequence[str]] | None = None,
) -> RayHosts:
    """`count` hosts with so many CPUs each, then hosts that only drivers use, which have none.

    With `driver_at_head` the first host is one of these as well. `shared` directories are the same on all hosts;
    everything else that a run writes is not. `more` are arguments for the start of Ray on some hosts.
    """
    if find_spec("ray") is None:
        pytest.skip("needs Ray")
    hosts = make_hosts(count + driver_hosts, *shared, names=True)
    first = 1 if driver_at_head else 0
    of_each = {name: cpus if first <= number < count else 0 for number, name in enumerate(hosts.names)}
    ray_hosts = RayHosts(hosts, of_each, more)
    try:
        ray_hosts.start()
    except BaseException:
        ray_hosts.down()
        raise
    return ray_hosts


@pytest.fixture(scope="session")
def ray_hosts_of_the_session() -> Iterator[RayHosts]:
    ray_hosts = make_ray_hosts()
    yield ray_hosts
    ray_hosts.down()


@contextmanager
def left_clean(ray_hosts: RayHosts) -> Iterator[None]:
    """A test that leaves a process or a file on some host fails."""
    yield
    ray_hosts.end_drivers()
    ray_hosts.wait_until_clean()


@pytest.fixture
def ray_hosts(ray_hosts_of_the_session: RayHosts) -> Iterator[RayHosts]:
    """A cluster of three hosts for tests that leave it as it is: they leave no process and no file on any host."""
    with left_clean(ray_hosts_of_the_session):
        yield ray_hosts_of_the_session


@pytest.fixture
def own_ray_hosts() -> Iterator[Callable[..., RayHosts]]:
    """For tests that break a cluster, or share directories between its hosts. Takes what `make_ray_hosts` takes."""
    made: list[RayHosts] = []

    def make(count: int = 3, *shared: Path, **settings: Any) -> RayHosts:
        made.append(make_ray_hosts(count, *shared, **settings))
        return made[-1]

    yield make
    for ray_hosts in made:
        ray_hosts.down()
