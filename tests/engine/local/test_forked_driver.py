"""A forked child of the driver that unwinds through the parent's code must not touch the parent's workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.air.errors import EngineError
from paceline.engine.base import WorkerGroup
from paceline.engine.frames import FrameSocket, socket_pair
from paceline.engine.inline import InlineEngine
from paceline.engine.local.engine import LocalEngine
from paceline.testing.engine_tools import placement_in


def in_a_forked_child(action: Callable[[], str]) -> str:
    """What `action` returns, or the error it raises, in a child of this process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = action()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write_end, answer.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.fixture(scope="module", params=[LocalEngine, InlineEngine])
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine | InlineEngine]:
    engine = request.param()
    yield engine
    engine.close()


def test_what_a_child_ends_lives_on_in_the_parent(engine: LocalEngine | InlineEngine, tmp_path: Path) -> None:
    group = engine.start_group(placement_in(tmp_path, 1))

    def end_everything() -> str:
        group.shutdown(grace=1.0)
        engine.warm(["json"])
        engine.close()
        return "ended"

    assert in_a_forked_child(end_everything) == "ended"
    assert group.execute(os.path.basename, "a/b") == ["b"]
    assert group.shutdown(grace=5.0) == []


USES: list[Callable[[WorkerGroup], object]] = [
    lambda group: group.poll(None),
    lambda group: group.reply(0, b"for nobody"),
    lambda group: group.execute(os.getpid),
]


@pytest.mark.parametrize("use", USES)
def test_a_child_cannot_use_the_group(
    engine: LocalEngine | InlineEngine, tmp_path: Path, use: Callable[[WorkerGroup], object]
) -> None:
    group = engine.start_group(placement_in(tmp_path, 1))
    assert in_a_forked_child(lambda: str(use(group))).startswith("EngineError: ")
    assert group.execute(os.path.basename, "a/b") == ["b"]
    group.shutdown(grace=5.0)


def test_a_child_neither_reads_nor_writes_its_parents_frames() -> None:
    left, right = map(FrameSocket, socket_pair())
    left.post(4, b"for the parent")
    for action in (right.read, lambda: right.send(4, b"x"), lambda: right.post(4, b"x")):
        assert in_a_forked_child(lambda action=action: str(action())).startswith("EngineError: ")  # type: ignore[misc]
    assert right.read() == [(4, b"for the parent", ())]
    assert left.read() == []
    left.close()
    right.close()


def test_a_started_engine_is_refused_in_a_child(tmp_path: Path) -> None:
    engine = InlineEngine()
    answer = in_a_forked_child(lambda: str(engine.start_group(placement_in(tmp_path, 1))))
    assert answer.startswith(EngineError.__name__)
    engine.close()
