"""Room that is held for trials, on a cluster that a test plays: one that does not answer, or loses nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.air.errors import EngineError, EngineLost
from paceline.engine.base import Placement
from paceline.engine.ray.room import ClusterNode

pytest.importorskip("ray")

from paceline.engine.ray import held as held_module
from paceline.engine.ray.held import HeldRoom, HeldRooms, shape_of

ANY: Any = None


class Room:
    """A placement group on one node."""

    def __init__(self) -> None:
        self.node_ids = ["n1"]
        self.beside_ids: list[str] = []
        self.times_given_back = 0

    def is_placed(self, wait_s: float) -> bool:
        return True

    def give_back(self) -> None:
        self.times_given_back += 1


class Nodes:
    """What Ray says of its nodes."""

    def __init__(self, *names: str) -> None:
        self.answer = {name: ClusterNode(name, f"10.0.0.{name[1:]}", name, {"CPU": 4.0}) for name in names}
        self.left: dict[str, ClusterNode] = {}
        self.error: Exception | None = None
        self.silent_after: int | None = None
        """How many more questions are answered."""
        self.is_asked, self.answers = threading.Event(), threading.Event()

    def nodes(self) -> dict[str, ClusterNode]:
        if self.silent_after == 0:
            self.is_asked.set()
            self.answers.wait()
        elif self.silent_after is not None:
            self.silent_after -= 1
        if self.error is not None:
            raise self.error
        return self.answer

    def lost_at(self) -> dict[str, float]:
        return {}

    def suspects(self) -> set[str]:
        return set()

    def lose(self, name: str) -> None:
        self.left[name] = self.answer.pop(name)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes("n1", "n2")


@pytest.fixture
def rooms(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldRooms]:
    agents: Any = nodes
    monkeypatch.setattr(held_module, "UNUSED_S", 30.0)
    rooms = HeldRooms(ANY, agents)
    yield rooms
    rooms.close()


def one_of(rooms: HeldRooms, cpus: float = 1.0, **settings: Any) -> HeldRoom:
    room: Any = Room()
    return HeldRoom(rooms, shape_of(wanted(cpus, **settings), None), room)


def wanted(cpus: float, workers: int = 1, **settings: Any) -> Placement:
    return Placement.sketch(workers, {"CPU": cpus}, **settings)


def given_back(held: HeldRoom) -> int:
    room: Any = held.room
    return int(room.times_given_back)


@pytest.mark.parametrize("error", [EngineLost("the head is gone"), EngineError("no answer within 30 s")])
def test_room_is_released_though_the_cluster_does_not_answer(rooms: HeldRooms, nodes: Nodes, error: Exception) -> None:
    held = one_of(rooms)
    nodes.error = error
    held.release()
    nodes.error = None
    held.release()
    assert held.is_lost, "it belongs to somebody else by now"
    rooms.close()
    assert given_back(held) == 1


def test_a_release_does_not_wait_for_whoever_asks_the_cluster(rooms: HeldRooms, nodes: Nodes) -> None:
    first, second = one_of(rooms), one_of(rooms)
    first.release()
    nodes.silent_after = 1
    reserved: list[HeldRoom | None] = []
    reserving = threading.Thread(target=lambda: reserved.append(rooms.reserve(wanted(1.0))))
    reserving.start()
    try:
        assert nodes.is_asked.wait(10)
        releasing = threading.Thread(target=second.release, daemon=True)
        releasing.start()
        releasing.join(5)
        assert not releasing.is_alive()
    finally:
        nodes.answers.set()
        reserving.join()
    assert reserved[0] is not None
    assert reserved[0].room is first.room
    rooms.close()


def test_the_next_trial_does_not_get_room_on_a_node_that_is_gone(rooms: HeldRooms, nodes: Nodes) -> None:
    held = one_of(rooms)
    held.release()
    nodes.lose("n1")
    assert rooms._unused_of(held.shape) is None
    assert given_back(held) == 1


def test_room_is_lost_with_a_node_that_has_what_is_beside_the_workers(rooms: HeldRooms, nodes: Nodes) -> None:
    """What workers start there would wait until Ray finds another place for it."""
    held = one_of(rooms, beside=({"CPU": 1},))
    room: Any = held.room
    room.beside_ids = ["n2"]
    assert not held.is_lost
    nodes.lose("n2")
    assert held.is_lost
    held.release()
    rooms.close()


def test_room_is_compared_with_what_a_group_needs(rooms: HeldRooms) -> None:
    held = one_of(rooms, 2.0, workers=2, beside=({"CPU": 1},))
    assert held.covers(wanted(2.0, workers=2, beside=({"CPU": 1},)))
    assert held.covers(wanted(1.0, workers=2))
    assert not held.covers(wanted(2.5, workers=2))
    assert not held.covers(wanted(1.0, workers=3))
    assert not held.covers(wanted(1.0, workers=2, beside=({"GPU": 1},)))
    assert not held.covers(wanted(1.0, workers=2, beside=({"CPU": 1}, {"CPU": 1})))


def test_the_nodes_that_are_missed_are_named(rooms: HeldRooms, nodes: Nodes) -> None:
    assert rooms.what_is_gone(wanted(4.0, workers=2)) == ""
    nodes.lose("n2")
    assert rooms.what_is_gone(wanted(4.0, workers=2)) == "n2 (10.0.0.2)"
    assert rooms.what_is_gone(wanted(4.0)) == ""
