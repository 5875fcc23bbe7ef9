"""Validations share the room that the training leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.air import ScalingConfig
from paceline.engine.base import Engine
from paceline.run.phases import Phase
from paceline.run.validation_room import ValidationRoom


class Machine:
    """An engine that counts workers once they are up."""

    capabilities = SimpleNamespace(chooses_nodes=False)

    def __init__(self, room: int | None, gpus: tuple[str, ...] = ()) -> None:
        self.left = room
        self._gpus = gpus

    def room(self, bundle: Any) -> int | None:
        return self.left

    def gpu_names(self) -> tuple[str, ...]:
        return self._gpus


def room_on(
    machine: Machine, workers: int = 1, *, use_gpu: bool = False, phase: Phase = Phase.RUNNING
) -> ValidationRoom:
    scaling = ScalingConfig(num_workers=workers, use_gpu=use_gpu)
    room = ValidationRoom(cast(Any, SimpleNamespace(devices=None)), scaling, cast(Engine, machine))
    room.training = (phase, None)
    return room


def test_each_gpu_is_given_once() -> None:
    room = room_on(Machine(3, ("0", "1", "2")), use_gpu=True)
    training = SimpleNamespace(places=[SimpleNamespace(gpus=("2",))])
    room.training = (Phase.RUNNING, cast(Any, training))
    first, second, third = room.wait(), room.wait(), room.wait()
    assert room.enter(second)  # in whatever order they look
    assert room.enter(first)
    assert {first.devices, second.devices} == {("0",), ("1",)}
    assert not room.enter(third)
    room.leave(first)
    assert room.enter(third)
    assert third.devices == first.devices


def test_the_one_that_waits_longest_gets_the_training_s_room() -> None:
    """Room that never suffices: after its retry, the first one waits behind the second."""
    room = room_on(Machine(2), workers=3, phase=Phase.VALIDATING)
    first, second = room.wait(), room.wait()
    assert not room.enter(second)
    assert room.enter(first)
    assert first.has_training_room
    assert not room.enter(second)
    room.leave(first)
    retried = room.wait()
    assert not room.enter(retried)
    assert room.enter(second)
    room.leave(second)
    assert room.enter(retried)


def test_workers_that_come_up_are_counted() -> None:
    machine = Machine(3)
    room = room_on(machine, workers=2)
    first, second = room.wait(), room.wait()
    assert room.enter(first)
    assert not room.enter(second)
    machine.left, first.has_workers = 2, True
    assert room.enter(second)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LAUNCHING, Phase.ENDING])
def test_training_that_needs_room_goes_first(phase: Phase) -> None:
    """Also when an attempt dies: its retry needs the room that it leaves."""
    room = room_on(Machine(None), phase=phase)
    place = room.wait()
    assert not room.enter(place)
    room.training = (Phase.RUNNING, None)
    assert room.enter(place)
    assert not place.has_training_room


def test_one_that_gives_way_is_the_next() -> None:
    room = room_on(Machine(0), phase=Phase.VALIDATING)
    first, second = room.wait(), room.wait()
    assert room.enter(first)
    room.give_way(first)
    assert not room.enter(second)
    assert room.enter(first)
