"""Which wardens are kept, and for how long: each holds a framework in memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.engine.local import wardens as wardens_module
from paceline.engine.local.wardens import SURPLUS_S, WARM_S, Wardens
from paceline.engine.reactor import Reactor


class Warden:
    idle = True
    lost = False
    load_error = None

    def __init__(self, preload: tuple[str, ...], reactor: Reactor) -> None:
        self.preload = preload

    def look(self) -> None:
        pass


@pytest.fixture
def wardens(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wardens]:
    monkeypatch.setattr(wardens_module, "WardenClient", Warden)
    reactor = Reactor()
    yield Wardens(reactor)
    reactor.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(wardens_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def test_the_warden_that_was_used_last_is_kept_longest(wardens: Wardens, now: list[float]) -> None:
    older, newer = wardens.get(("older",)), wardens.get(("newer",))
    assert wardens.take_overdue() == []
    now[0] += SURPLUS_S + 1
    assert wardens.take_overdue() == [older]
    assert wardens.take_overdue() == []
    now[0] += WARM_S
    assert wardens.take_overdue() == [newer]
    assert wardens.running() == ()


def test_a_warden_at_work_is_kept_and_its_time_begins_afterwards(wardens: Wardens, now: list[float]) -> None:
    warden: Any = wardens.get(())
    warden.idle = False
    now[0] += 10 * WARM_S
    assert wardens.take_overdue() == []
    warden.idle = True
    now[0] += WARM_S - 1
    assert wardens.take_overdue() == []
    assert wardens.get(()) is warden  # for a trainer that has just been made
    now[0] += WARM_S - 1
    assert wardens.take_overdue() == []
    now[0] += 2
    assert wardens.take_overdue() == [warden]


def test_a_warden_that_cannot_be_used_is_replaced_and_must_be_ended(wardens: Wardens) -> None:
    broken: Any = wardens.get(())
    broken.load_error = "no such module"
    replacement = wardens.get(())
    assert replacement is not broken
    assert wardens.take_surplus() == [broken]
    assert wardens.take_all() == [replacement]
