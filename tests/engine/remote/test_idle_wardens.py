"""Nodes do not keep frameworks in memory for ever when nobody trains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from paceline.engine.remote import idle_wardens
from paceline.engine.remote.idle_wardens import SURPLUS_S, WARM_S, IdleWardens
from paceline.testing.engine_tools import placement_in
from paceline.testing.processes import Process, process, wait_for
from tests.engine.remote.engine import AgentsEngine

IMPATIENT_AGENT = """
from paceline.engine.remote import agent, idle_wardens
idle_wardens.WARM_S = idle_wardens.SURPLUS_S = 0.2
agent.main()
"""


class Warden:
    idle = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(idle_wardens, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def test_the_warden_that_was_used_last_is_kept_longest(now: list[float]) -> None:
    idle, wardens = IdleWardens(), {"older": Warden(), "newer": Warden()}
    for key in wardens:
        idle.used(key)
    assert idle.overdue(wardens, now[0]) == []
    now[0] += SURPLUS_S + 1
    assert idle.overdue(wardens, now[0]) == ["older"]
    del wardens["older"]
    assert idle.overdue(wardens, now[0]) == []
    now[0] += WARM_S
    assert idle.overdue(wardens, now[0]) == ["newer"]


def test_a_warden_at_work_is_kept_and_its_time_begins_afterwards(now: list[float]) -> None:
    idle, warden = IdleWardens(), Warden()
    idle.used("only")
    warden.idle = False
    now[0] += 10 * WARM_S
    assert idle.overdue({"only": warden}, now[0]) == []
    warden.idle = True
    now[0] += WARM_S - 1
    assert idle.overdue({"only": warden}, now[0]) == []
    idle.used("only")  # by a trainer that has just been made
    now[0] += WARM_S - 1
    assert idle.overdue({"only": warden}, now[0]) == []
    now[0] += 2
    assert idle.overdue({"only": warden}, now[0]) == ["only"]


def has_ended(warden: Process | None) -> bool:
    return warden is None or not warden.alive


class ImpatientEngine(AgentsEngine):
    agent_arguments = ("-c", IMPATIENT_AGENT)


def test_an_agent_ends_a_warden_without_workers_and_starts_another(tmp_path: Path) -> None:
    engine = ImpatientEngine(nodes=1)
    try:
        for number in range(2):
            group = engine.start_group(placement_in(tmp_path / str(number), 1))
            parent = psutil.Process(group.processes()[0]).parent()
            assert parent is not None
            assert parent.pid != engine.nodes[0].agent
            group.shutdown()
            wait_for(partial(has_ended, process(parent.pid)), "the end of the warden")
    finally:
        engine.close()
