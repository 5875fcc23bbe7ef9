from __future__ import annotations

from pathlib import Path

import pytest

from paceline.air.errors import ConfigError
from paceline.engine.devices import assign_gpus, usable_gpus, visible_gpus


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
