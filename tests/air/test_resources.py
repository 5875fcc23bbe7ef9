"""Bundles: what a run asks for."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory


def test_zeros_do_not_matter() -> None:
    a = PlacementGroupFactory([{"CPU": 1, "GPU": 0}, {"CPU": 2}])
    assert a == PlacementGroupFactory([{"CPU": 1.0}, {"CPU": 2.0}])
    assert a != PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}], strategy="SPREAD")


def test_facts() -> None:
    factory = PlacementGroupFactory([{}, {"CPU": 2, "GPU": 1}, {"CPU": 2}])
    assert factory.head_bundle_is_empty
    assert factory.head_cpus == 0
    assert factory.required_resources == {"CPU": 4.0, "GPU": 1.0}
    assert PlacementGroupFactory([{"CPU": 3}]).head_cpus == 3


def test_it_is_plain_data() -> None:
    factory = PlacementGroupFactory([{"CPU": 1}, {"tpu": 0.5}], "SPREAD")
    assert PlacementGroupFactory(**json.loads(json.dumps(asdict(factory)))) == factory


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        PlacementGroupFactory([])
    with pytest.raises(ConfigError, match="STRICT_PACK"):
        PlacementGroupFactory([{}], strategy="HEAP")
    with pytest.raises(ConfigError, match=r"bundles\[1\]\['CPU'\]"):
        PlacementGroupFactory([{}, {"CPU": -1}])
