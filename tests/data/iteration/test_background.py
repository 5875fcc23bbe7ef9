"""One thread that makes batches ahead of the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import paceline.data
from paceline.data.execution import Background
from paceline.testing.processes import wait_for


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("paceline-data")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    wait_for(lambda: not reader_threads(), "the reading threads to end")


def drain(items: Iterable[Any], into: list[Any]) -> None:
    for item in items:
        into.append(item)


def test_background_makes_no_more_than_its_depth_ahead() -> None:
    made = 0

    def items() -> Iterator[int]:
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    background = Background(items(), depth=3)
    seen = []
    for number in background:
        seen.append(number)
        most = min(number + 1 + 3 + 1, 20)  # one is taken, three are kept, one waits to be kept
        wait_for(lambda most=most: made >= most, "the items ahead")
        assert made == most
    assert seen == list(range(20))


def test_background_raises_where_the_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    seen: list[int] = []
    with pytest.raises(ValueError, match="no second one"):
        drain(Background(items(), depth=5), seen)
    assert seen == [1]


def test_an_error_of_collate_fn_reaches_the_loop_and_ends_the_threads() -> None:
    def collate(batch: dict[str, np.ndarray]) -> Any:
        if batch["id"][0] >= 20:
            raise RuntimeError("cannot collate")
        return int(batch["id"][0])

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="cannot collate"):
        drain(paceline.data.range(100).iter_torch_batches(batch_size=10, collate_fn=collate), seen)
    assert seen == [0, 10]
