"""Where workers run: nodes, GPUs, threads, variables."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.air.resources import usable_cores
from paceline.engine.base import Placement, WorkerRequest
from paceline.engine.places import (
    FAIR_SHARE,
    LOOPBACK,
    Node,
    assign_gpus,
    drivers_node,
    lay_out,
    usable_gpus,
    variables,
    visible_gpus,
)

A = Node("a", "10.0.0.1", "alpha", cores=8, gpus=("0", "1"))
B = Node("b", "10.0.0.2", "beta", cores=3, gpus=("4", "5"))


def placement(workers: int, **settings: Any) -> Placement:
    return Placement("test", tuple(WorkerRequest(rank, "", "") for rank in range(workers)), **settings)


def test_ranks_are_counted_on_each_node() -> None:
    places = lay_out(placement(4), [A, A, B, A])
    assert [place.rank for place in places] == [0, 1, 2, 3]
    assert [place.node.address for place in places] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert [place.node_rank for place in places] == [0, 0, 1, 0]
    assert [place.local_rank for place in places] == [0, 1, 0, 2]
    assert [place.local_world_size for place in places] == [3, 3, 1, 3]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [None, None, None]),
        ({"hide_other_gpus": True}, [(), (), ()]),
        ({"resources": {"GPU": 1}}, [("0",), ("1",), ("4",)]),
        ({"resources": {"GPU": 1}, "hide_other_gpus": True}, [("0",), ("1",), ("4",)]),
        ({"resources": {"GPU": 1}, "share_gpus": True}, [("0", "1"), ("0", "1"), ("4",)]),
        ({"resources": {"GPU": 0.5}}, [("0",), ("0",), ("4",)]),
        ({"resources": {"GPU": 1}, "devices": ("7", "8")}, [("0",), ("1",), ("4",)]),  # names of the driver's machine
    ],
)
def test_gpus_are_dealt_out_on_each_node(settings: dict[str, Any], expected: list[Any]) -> None:
    assert [place.gpus for place in lay_out(placement(3, **settings), [A, A, B])] == expected


def test_on_the_drivers_machine_a_group_gets_the_gpus_that_were_named() -> None:
    here = replace(A, is_drivers=True)
    named = placement(2, resources={"GPU": 1}, devices=("7", "8"))
    assert [place.gpus for place in lay_out(named, [here, here])] == [("7",), ("8",)]
    with pytest.raises(ConfigError, match=r"\b2 GPU.*\b0\b"):
        lay_out(replace(named, devices=()), [here, here])


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"\b3 GPU.*\b2\b"):
        lay_out(placement(4, resources={"GPU": 1}), [A, A, A, B])


def test_cores_of_a_node_are_shared_by_its_workers() -> None:
    places = lay_out(placement(4, threads=FAIR_SHARE), [A, A, B, A])
    assert [place.threads for place in places] == [2, 2, 3, 2]
    assert [place.threads for place in lay_out(placement(5, threads=FAIR_SHARE), [B] * 5)] == [1] * 5


@pytest.mark.parametrize(
    ("settings", "environment", "threads"),
    [
        ({"threads": None}, {}, None),
        ({"threads": 6}, {"OMP_NUM_THREADS": "5"}, 6),
        ({"threads": FAIR_SHARE}, {"OMP_NUM_THREADS": "5"}, 5),
        ({"threads": FAIR_SHARE, "resources": {"CPU": 4}}, {"OMP_NUM_THREADS": "5"}, 5),
        ({"threads": FAIR_SHARE, "resources": {"CPU": 4}}, {"OMP_NUM_THREADS": "many"}, 4),
        ({"threads": FAIR_SHARE, "resources": {"CPU": 1}}, {"OMP_NUM_THREADS": "0"}, 8),
        ({"threads": FAIR_SHARE, "resources": {"CPU": 0.5}}, {}, 8),
    ],
)
def test_what_decides_the_number_of_threads(
    settings: dict[str, Any], environment: dict[str, str], threads: int | None
) -> None:
    (place,) = lay_out(placement(1, **settings), [A], environment)
    assert place.threads == threads


def test_defaults_give_way_to_the_environment_that_a_worker_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    request = WorkerRequest(0, "", "", env={"SET": "ours"}, defaults={"OPEN": "ours", "TAKEN": "ours"})
    asked = Placement("test", (request,), resources={"GPU": 1})
    (place,) = lay_out(asked, [A])
    wanted = {"SET": "ours", "OPEN": "ours", "CUDA_VISIBLE_DEVICES": "0", "PACELINE_NODE_ADDRESS": "10.0.0.1"}
    assert variables(asked, place, {"TAKEN": "theirs", "SET": "theirs"}) == wanted
    monkeypatch.setenv("TAKEN", "the driver's")
    monkeypatch.delenv("OPEN", raising=False)
    assert variables(asked, place) == wanted


def test_nothing_says_which_gpus_a_worker_sees_if_nobody_asked() -> None:
    asked = placement(1)
    (place,) = lay_out(asked, [drivers_node()])
    assert variables(asked, place, {}) == {}
    hiding = placement(1, hide_other_gpus=True)
    (place,) = lay_out(hiding, [drivers_node()])
    assert variables(hiding, place, {}) == {"CUDA_VISIBLE_DEVICES": ""}


def test_the_drivers_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    node = drivers_node(1.0)
    assert (node.address, node.gpus, node.is_drivers) == (LOOPBACK, ("5",), True)
    assert node.cores == usable_cores()
    assert drivers_node().gpus == ()


def test_cores_are_counted_where_processes_cannot_be_bound_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores() == 12


# Which GPUs there are, and who gets which


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("0,1,3", ["0", "1", "3"]),
        ("GPU-8f3a, GPU-77bc", ["GPU-8f3a", "GPU-77bc"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,-1,3", ["2"]),
    ],
)
def test_the_variable_decides_what_is_visible(variable: str, expected: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": variable}) == expected


def test_without_the_variable_the_cards_of_the_driver_count(tmp_path: Path) -> None:
    assert visible_gpus({}, str(tmp_path / "no driver")) == []
    for card in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / card).mkdir()
    assert visible_gpus({}, str(tmp_path)) == ["0", "1"]


def test_whole_gpus_are_not_shared() -> None:
    assert assign_gpus(2, 1, ["0", "1", "2"]) == [["0"], ["1"]]
    assert assign_gpus(2, 2, ["a", "b", "c", "d"]) == [["a", "b"], ["c", "d"]]
    assert assign_gpus(3, 0, []) == [[], [], []]


def test_fractions_share_a_gpu() -> None:
    assert assign_gpus(4, 0.5, ["5", "7"]) == [["5"], ["5"], ["7"], ["7"]]
    assert assign_gpus(3, 1 / 3, ["0"]) == [["0"], ["0"], ["0"]]
    assert assign_gpus(2, 0.7, ["0", "1"]) == [["0"], ["1"]]


@pytest.mark.parametrize(("workers", "each", "needed"), [(2, 1, 2), (2, 2, 4), (3, 0.5, 2)])
def test_too_few_gpus_are_refused_with_the_numbers(workers: int, each: float, needed: int) -> None:
    with pytest.raises(ConfigError, match=rf"\b{needed} GPU.*\b1\b"):
        assign_gpus(workers, each, ["0"])


def test_a_fraction_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1\.5 GPUs.*whole number"):
        assign_gpus(1, 1.5, ["0", "1"])


def test_no_more_cards_are_used_than_were_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert usable_gpus(2.0) == ["5", "6"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert usable_gpus(2.0) == ["0", "1"]
