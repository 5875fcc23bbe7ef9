"""The engine of workers on several hosts shares nothing with them, and passes the suite that every engine passes."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from paceline.engine.base import Engine
from paceline.testing.engine_contract import EngineContract
from paceline.testing.engine_tools import placement_in
from tests.engine.remote.engine import AgentsEngine


class TestAgentsOnHosts(EngineContract):
    """Other clocks, other files, other process ids than the driver's."""

    max_workers = 3

    @pytest.fixture
    def engine(self, hosts_engine: AgentsEngine) -> Engine:
        return hosts_engine


def namespaces() -> list[str]:
    return [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "ipc", "mnt", "uts", "time")]


def test_workers_are_in_no_namespace_of_the_driver(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    """Nor in one of the other host; and the clocks of hosts are wrong by 100 s or more."""
    group = hosts_engine.start_group(placement_in(tmp_path, 2))
    try:
        found = [*namespaces(), *itertools.chain(*group.execute(namespaces))]
        assert len(found) == len(set(found)) == 18
        for shown in group.execute(time.monotonic):
            assert abs(shown - time.monotonic()) > 90
        assert not group.shares_directory
    finally:
        group.shutdown()
