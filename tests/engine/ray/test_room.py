"""Whether a group fits on nodes, and what is said if not; needs no Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.base import Placement
from paceline.engine.ray.room import ClusterNode, bundles_of, fits, infeasible_text, room_for, wanted_in_words
from paceline.testing.engine_tools import placement_in

SMALL = {"CPU": 2.0}
LARGE = {"CPU": 4.0, "GPU": 2.0, "licence": 1.0, "accelerator_type:A100": 1.0}


def wanted(workers: int, resources: dict[str, float], **settings: Any) -> Placement:
    return placement_in(Path("/nowhere"), workers, resources=resources, **settings)


@pytest.mark.parametrize(
    ("workers", "resources", "settings", "expected"),
    [
        (6, {"CPU": 1}, {}, True),
        (7, {"CPU": 1}, {}, False),
        (3, {"CPU": 2, "GPU": 0}, {}, True),
        (2, {"CPU": 3}, {}, False),  # enough in all, but on no second node
        (5, {"CPU": 1}, {"strategy": "STRICT_PACK"}, False),
        (4, {"CPU": 1}, {"strategy": "STRICT_PACK"}, True),
        (2, {"CPU": 1}, {"strategy": "STRICT_SPREAD"}, True),
        (3, {"CPU": 1}, {"strategy": "STRICT_SPREAD"}, False),
        (4, {"GPU": 0.5}, {}, True),
        (5, {"GPU": 0.5}, {}, False),
        (1, {"licence": 1}, {}, True),
        (2, {"licence": 1}, {}, False),
        (2, {"CPU": 1}, {"accelerator_type": "A100"}, True),
        (1, {"CPU": 1}, {"accelerator_type": "H100"}, False),
        (6, {"CPU": 1}, {"driver_resources": {"CPU": 1}}, False),
        (5, {"CPU": 1}, {"driver_resources": {"CPU": 1}}, True),
        (6, {"CPU": 1}, {"driver_resources": {"CPU": 0}}, True),
        (2, {"CPU": 2}, {"driver_resources": {"CPU": 2}, "strategy": "STRICT_SPREAD"}, True),
        (2, {"CPU": 2}, {"driver_resources": {"CPU": 3}, "strategy": "STRICT_SPREAD"}, False),
        (1, {"CPU": 1}, {"beside": ({"CPU": 1},), "strategy": "STRICT_SPREAD"}, True),
        (1, {"CPU": 1}, {"beside": ({"CPU": 1},) * 2, "strategy": "STRICT_SPREAD"}, False),
        (1, {"GPU": 1}, {"beside": ({"CPU": 4},), "strategy": "STRICT_SPREAD"}, False),  # both on the large one
        (1, {"CPU": 1}, {"beside": ({"CPU": 4},)}, True),
        (1, {"CPU": 3}, {"beside": ({"CPU": 3},)}, False),
        (1, {"CPU": 3}, {"beside": ({"CPU": 4},)}, False),
    ],
)
def test_a_group_fits_or_not(
    workers: int, resources: dict[str, float], settings: dict[str, Any], expected: bool
) -> None:
    assert fits(wanted(workers, resources, **settings), [SMALL, LARGE]) is expected


def test_only_what_is_impossible_is_refused() -> None:
    """What is found by trying, but not by placing the largest first."""
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0}]
    assert fits(wanted(2, {"CPU": 1, "GPU": 1}, beside=({"CPU": 4},) * 3), nodes)
    assert not fits(wanted(2, {"CPU": 1, "GPU": 1}, beside=({"CPU": 4},) * 4), nodes)
    assert not fits(wanted(2, {"CPU": 3, "GPU": 1}, beside=({"CPU": 5},) * 2), nodes)


def test_a_puzzle_is_not_solved_but_left_to_ray() -> None:
    """Nobody waits for it, and what may be possible is not refused."""
    nodes = [{"CPU": 10.0 + number / 7} for number in range(20)]
    beside = tuple({"CPU": 3.3 + number / 97} for number in range(59))
    began = time.monotonic()
    fits(wanted(1, {"CPU": 3.1}, beside=beside), nodes)
    assert time.monotonic() - began < 5


def test_the_driver_has_a_bundle_if_it_needs_something() -> None:
    assert bundles_of(wanted(2, {"CPU": 1, "GPU": 0})) == [{"CPU": 1}] * 2
    assert bundles_of(wanted(2, {"CPU": 1}, driver_resources={"CPU": 2})) == [{"CPU": 1}, {"CPU": 1}, {"CPU": 2}]
    spread = wanted(2, {"CPU": 1}, driver_resources={"CPU": 2}, strategy="STRICT_SPREAD")
    assert bundles_of(spread) == [{"CPU": 3}, {"CPU": 1}]
    assert bundles_of(wanted(1, {"CPU": 0})) != [{}], "Ray takes no empty bundle"
    assert bundles_of(wanted(1, {"GPU": 1}, accelerator_type="A100")) == [{"GPU": 1, "accelerator_type:A100": 0.001}]


def test_a_refusal_says_what_exists_and_what_is_missing() -> None:
    nodes = [ClusterNode("a", "10.0.0.1", "head", SMALL), ClusterNode("b", "10.0.0.2", "big", LARGE)]
    text = infeasible_text(wanted(3, {"CPU": 1, "GPU": 4}), nodes)
    assert "3 workers with CPU 1, GPU 4 each" in text
    assert "head (10.0.0.1): CPU 2, GPU 0" in text
    assert "big (10.0.0.2): CPU 4, GPU 2" in text
    assert "No node has GPU 4." in text
    assert "Missing in all: CPU 2." in infeasible_text(wanted(8, {"CPU": 1}), nodes)
    strict = infeasible_text(wanted(3, {"CPU": 1}, strategy="STRICT_SPREAD"), nodes)
    assert "each on another node" in strict
    assert "there is room for 6" in strict
    loose = infeasible_text(wanted(5, {"CPU": 3}), [ClusterNode("a", "10.0.0.1", "head", {"CPU": 8.0})] * 2)
    assert "2 on head (10.0.0.1), 2 on head (10.0.0.1); 4 in all." in loose
    assert "strategy" not in loose
    beside = infeasible_text(wanted(1, {"CPU": 3}, beside=({"GPU": 1}, {"GPU": 1}, {"CPU": 0})), nodes[:1])
    assert "1 worker with CPU 3, beside it 2 times GPU 1. " in beside
    assert "No node has CPU 3, GPU 1." in beside
    assert "head (10.0.0.1): CPU 2, GPU 0" in beside
    memory = wanted_in_words(wanted(1, {"memory": 3 * 2**30}, driver_resources={"CPU": 1}))
    assert memory == "1 worker with memory 3 GiB, and CPU 1 for the trainer"


def test_how_many_workers_fit() -> None:
    nodes = [SMALL, LARGE, {}]
    assert room_for({"CPU": 1}, nodes) == 6
    assert room_for({"CPU": 3}, nodes) == 1
    assert room_for({"CPU": 1, "GPU": 1}, nodes) == 2
    assert room_for({"GPU": 0, "licence": 2}, nodes) == 0
    assert room_for({"CPU": 1}, []) == 0
