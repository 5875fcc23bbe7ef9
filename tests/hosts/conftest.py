"""Hosts for the tests of this folder; where they cannot be made, the session says so at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import NO_HOSTS
from tests.engine.remote.engine import AgentsEngine
from tools.hosts import Hosts, HostsError

PROJECT = Path(__file__).parents[2]


def make_hosts(count: int, *shared: Path, names: bool = False) -> Hosts:
    """Hosts that see this project and its environment, wherever they are, and `shared` directories. With `names` they
    know each other by name; without, tests notice who relies on that."""
    needed = [folder for folder in (str(PROJECT), sys.prefix) if folder.startswith(("/tmp/", "/var/tmp/"))]
    hosts = Hosts(count, shared=[*needed, *map(str, shared)], names=names)
    try:
        hosts.up()
    except (HostsError, OSError) as error:
        if os.environ.get("PACELINE_REQUIRE_HOSTS"):
            raise
        pytest.skip(f"{NO_HOSTS}: {error}")
    return hosts


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Two hosts for tests that leave them as they are."""
    hosts = make_hosts(2)
    yield hosts
    hosts.down()


@pytest.fixture(scope="session")
def hosts_engine(hosts: Hosts) -> Iterator[AgentsEngine]:
    engine = AgentsEngine(hosts=hosts)
    yield engine
    engine.close()


@pytest.fixture
def own_hosts() -> Iterator[Callable[..., Hosts]]:
    """For tests that cut or kill hosts, or share directories with them."""
    made: list[Hosts] = []

    def make(count: int, *shared: Path, names: bool = False) -> Hosts:
        made.append(make_hosts(count, *shared, names=names))
        return made[-1]

    yield make
    for hosts in made:
        hosts.down()
