"""Bundles: what a run asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory, ScalingConfig
from paceline.air.settings import restored, stored


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


class TestElasticScaling:
    def test_a_pair_is_the_least_and_the_most(self) -> None:
        scaling = ScalingConfig(num_workers=[2, 4])
        assert (scaling.num_workers, scaling.min_workers, scaling.max_workers) == ((2, 4), 2, 4)
        assert scaling.is_elastic
        assert not ScalingConfig(num_workers=4).is_elastic
        assert ScalingConfig(num_workers=4).min_workers == ScalingConfig(num_workers=4).max_workers == 4
        assert ScalingConfig().max_workers is None

    def test_bundles_are_those_of_the_most_workers(self) -> None:
        scaling = ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 2})
        assert scaling.total_resources == {"CPU": 7.0}
        assert scaling.with_workers(2).as_placement_group_factory().bundles == [
            {"CPU": 1.0},
            {"CPU": 2.0},
            {"CPU": 2.0},
        ]

    def test_equality(self) -> None:
        assert ScalingConfig(num_workers=(1, 3)) == ScalingConfig(num_workers=(1, 3))
        assert ScalingConfig(num_workers=(1, 3)) != ScalingConfig(num_workers=(2, 3))
        assert ScalingConfig(num_workers=(1, 3)) != ScalingConfig(num_workers=3)

    def test_it_survives_being_stored(self) -> None:
        scaling = ScalingConfig(num_workers=(1, 3), elastic_resize_monitor_interval_s=5, policy=lambda situation: 1)
        again = restored(ScalingConfig, json.loads(json.dumps(stored(scaling))))
        assert (again.num_workers, again.elastic_resize_monitor_interval_s, again.policy) == ((1, 3), 5, None)

    @pytest.mark.parametrize(
        ("settings", "advice"),
        [
            ({"num_workers": (4, 2)}, r"\(2, 4\)"),
            ({"num_workers": (0, 2)}, r"num_workers\[0\]"),
            ({"num_workers": (1, 2.5)}, r"num_workers\[1\]"),
            ({"num_workers": (1, 2, 3)}, "the pair"),
            ({"num_workers": "all"}, "the pair"),
            ({"num_workers": (1, 1_000_000)}, "100000"),
            ({"num_workers": (1, 2), "elastic_resize_monitor_interval_s": 0}, "elastic_resize_monitor_interval_s"),
            ({"num_workers": (1, 2), "policy": "greedy"}, "ScalingSituation"),
            ({"num_workers": 2, "policy": max}, r"num_workers=\(1, 2\)"),
        ],
    )
    def test_refusals(self, settings: dict[str, Any], advice: str) -> None:
        with pytest.raises(ConfigError, match=advice):
            ScalingConfig(**settings)
