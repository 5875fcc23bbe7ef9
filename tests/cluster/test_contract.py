"""The engine of a Ray cluster passes the suite that every engine passes, also where machines share nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.testing.engine_contract import EngineContract
from tests.cluster.ray_hosts import PROJECT, RESULTS, RayHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SUITE = "tests/cluster/contract_suite.py"


def run_the_suite() -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{RESULTS}/pytest", SUITE]
    done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip().splitlines()[-1]


def test_the_engine_contract_on_three_hosts(ray_hosts: RayHosts) -> None:
    summary = ray_hosts.run_driver("h1", run_the_suite, timeout=500)
    tests = [name for name in dir(EngineContract) if name.startswith("test_")]
    passed = int(summary.split()[0])
    assert passed >= len(tests), summary
    assert "skipped" not in summary
