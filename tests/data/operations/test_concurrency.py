"""How many processes run a function: concurrency= and compute=."""

from __future__ import annotations

import pytest

from paceline.air.errors import ConfigError
from paceline.data.operations.user_operation import ActorPoolStrategy, processes_wanted


def test_old_and_new_spellings_of_concurrency() -> None:
    assert processes_wanted(None, None) is None
    assert processes_wanted(None, "tasks") is None
    assert processes_wanted(3, None) == (3, 3)
    assert processes_wanted((1, 4), None) == (1, 4)
    assert processes_wanted(None, ActorPoolStrategy(size=2)) == (2, 2)
    assert processes_wanted(None, ActorPoolStrategy(min_size=2, max_size=5)) == (2, 5)
    assert processes_wanted(None, ActorPoolStrategy(2, 4, max_tasks_in_flight_per_actor=8)) == (2, 4)
    least, most = processes_wanted(None, "actors") or (0, 0)
    assert 1 <= least <= most
    for concurrency, compute in ((0, None), ((3, 1), None), ("two", None), (True, None), (2, "actors"), (None, "gpu")):
        with pytest.raises(ConfigError, match="concurrency"):
            processes_wanted(concurrency, compute)
    with pytest.raises(ConfigError, match="not both"):
        ActorPoolStrategy(size=2, max_size=3)
