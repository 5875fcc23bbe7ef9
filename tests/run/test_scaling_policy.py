"""The number of workers of the next attempt, decided from what there is room for."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.run.scaling_policy import Occasion, ScalingSituation, decide_size, use_all_room


def size(room: int | None, occasion: Occasion = "start", current: int = 0) -> int | None:
    return decide_size(use_all_room, ScalingSituation(2, 4, room, current, occasion))


def test_all_the_room_there_is_within_the_limits() -> None:
    assert [size(room) for room in (0, 1, 2, 3, 4, 9)] == [None, None, 2, 3, 4, 4]
    assert size(None) == 4


@pytest.mark.parametrize("occasion", ["failed", "node_lost", "preempted", "resize"])
def test_between_attempts_the_size_follows_the_room(occasion: Occasion) -> None:
    assert size(3, occasion, current=4) == 3
    assert size(4, occasion, current=3) == 4
    assert size(1, occasion, current=4) is None


def test_a_group_at_work_only_grows() -> None:
    assert size(4, "look", current=3) == 4
    assert size(2, "look", current=3) is None  # There is no room for the three; nothing is to be done about it.
    assert size(3, "look", current=3) == 3


def test_what_a_policy_of_the_user_says_is_checked() -> None:
    situation = ScalingSituation(2, 4, 3, 2, "look")
    answers: list[Any] = [3, 2, None]
    assert [decide_size(lambda _, answer=answer: answer, situation) for answer in answers] == answers
    assert decide_size(lambda _: 4, situation) is None  # There is no room for it yet.
    for wrong in (1, 5, 2.5, True, "many"):
        with pytest.raises(ConfigError, match="from 2 to 4"):
            decide_size(lambda _, wrong=wrong: wrong, situation)  # type: ignore[misc]
