"""How many workers could start: what was declared, minus what groups hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.engine.local.engine import LocalEngine
from paceline.testing.engine_tools import placement_in


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine(num_cpus=4, num_gpus=2)
    yield engine
    engine.close()


def test_what_was_declared(engine: LocalEngine) -> None:
    assert engine.room({"CPU": 1}) == 4
    assert engine.room({"CPU": 1.5}) == 2
    assert engine.room({"CPU": 0.1}) == 40
    assert engine.room({"CPU": 1, "GPU": 1}) == 2
    assert engine.room({"CPU": 8}) == 0


def test_parts_of_gpus_do_not_span_two(engine: LocalEngine) -> None:
    assert engine.room({"GPU": 0.4}) == 4
    assert engine.room({"GPU": 0.7}) == 2


def test_groups_hold_room_until_they_end(engine: LocalEngine, tmp_path: Path) -> None:
    group = engine.start_group(placement_in(tmp_path, 3, resources={"CPU": 1.0}))
    assert engine.room({"CPU": 1}) == 1
    assert engine.room({"CPU": 2}) == 0
    group.shutdown()
    assert engine.room({"CPU": 1}) == 4


def test_without_a_declaration_only_gpus_limit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    engine = LocalEngine()
    try:
        assert engine.room({"CPU": 1}) is None
        assert engine.room({}) is None
        assert engine.room({"CPU": 1, "GPU": 1}) == 3
    finally:
        engine.close()
