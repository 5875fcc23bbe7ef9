"""with_parameters and with_resources; and that large objects are in memory once for all trials."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory
from paceline.run.attempt import pickled_task
from paceline.train import DataParallelTrainer
from paceline.tune import registry
from paceline.tune.trainable import with_parameters, with_resources
from paceline.tune.trainable.kinds import kind_of
from tests.tune.trainable.one_trial import run_trial
from tests.tune.trainable.small_trainables import Total, total

QUIET = RunConfig(verbose=0)


# -- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [total, Total])
def test_parameters_come_beside_the_configuration(trainable: Any) -> None:
    given = with_parameters(trainable, rows=[1, 2, 3], scale=10)
    assert kind_of(given).name == trainable.__name__
    assert run_trial(given, {"x": 5}).metrics["_metric"] == 65
    assert run_trial(given, {"x": 5}).config == {"x": 5}
    again = with_parameters(given, scale=1)
    assert run_trial(again).metrics["_metric"] == 6
    assert run_trial(given).metrics["_metric"] == 60  # the first one stays as it was


def test_misspelt_parameters_and_what_takes_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"with_parameters\(row=...\).*total"):
        with_parameters(total, row=[1])
    for trainable in (Total, with_parameters(Total, scale=2), with_resources(Total, {"CPU": 2})):
        with pytest.raises(ConfigError, match=r"with_parameters\(row=...\).*Total.setup\(.*rows"):
            with_parameters(trainable, row=[1])
    with pytest.raises(ConfigError, match=r"total.*rows.*tune\.with_parameters\(\)"):
        kind_of(total)  # its rows are missing
    trainer = DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(ConfigError, match=r"DataParallelTrainer.*datasets="):
        with_parameters(trainer, rows=[1])
    with pytest.raises(ConfigError, match=r"with_parameters\(\).*Trainable.*\bdict\b"):
        with_parameters(dict, rows=[1])


@pytest.mark.parametrize(
    "make",
    [
        np.ones,
        pytest.param(lambda size: pd.DataFrame({"a": np.ones(size)}), marks=pytest.mark.slow),
        pytest.param(bytes, marks=pytest.mark.slow),
    ],
)
def test_large_parameters_do_not_travel_with_each_trial(make: Any) -> None:
    def measure(config: dict[str, Any], rows: Any) -> dict[str, Any]:
        return {"length": len(rows)}

    kind = kind_of(with_parameters(measure, rows=make(1_000_000)))
    assert len(pickled_task(kind.run_spec({}, QUIET))) < 10_000
    assert run_trial(kind, engine="local").metrics["length"] == 1_000_000


def test_a_trial_that_writes_to_a_shared_array_changes_its_own_only() -> None:
    rows = np.zeros(100_000)

    def change(config: dict[str, Any], rows: Any) -> dict[str, Any]:
        before = float(rows.sum())
        rows += config["x"]
        return {"before": before, "after": float(rows.sum())}

    kind = kind_of(with_parameters(change, rows=rows))
    for x in (1, 2):
        metrics = run_trial(kind, {"x": x}, engine="local").metrics
        assert (metrics["before"], metrics["after"]) == (0, x * 100_000)
    assert not rows.any()


def test_arrays_of_a_trial_are_pages_of_the_file_that_all_map() -> None:
    def where(config: dict[str, Any], rows: Any) -> dict[str, Any]:
        address = rows.__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return {"mapped": line.split(maxsplit=5)[5]}
        raise AssertionError("not mapped at all")

    metrics = run_trial(with_parameters(where, rows=np.ones((500, 500)).T), engine="local").metrics
    assert "paceline-shipped" in metrics["mapped"]


# -- resources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [with_parameters(total, rows=[1]), Total])
@pytest.mark.parametrize(
    ("given", "bundles"),
    [
        ({"CPU": 2, "GPU": 0.5}, [{"CPU": 2, "GPU": 0.5}]),
        ({"cpu": 2, "gpu": 0}, [{"CPU": 2}]),
        (PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}]), [{"CPU": 1}, {"CPU": 2}]),
        (ScalingConfig(trainer_resources={"CPU": 3}), [{"CPU": 3}]),
        (lambda config: {"CPU": config["x"]}, [{"CPU": 4}]),
        (lambda config: PlacementGroupFactory([{"CPU": config["x"] + 1}]), [{"CPU": 5}]),
    ],
)
def test_resources_of_a_trial(trainable: Any, given: Any, bundles: list[dict[str, float]]) -> None:
    kind = kind_of(with_resources(trainable, given))
    assert kind.resources({"x": 4}).bundles == bundles
    scaling = kind.run_spec({"x": 4}, QUIET).scaling
    assert scaling.num_cpus_per_worker == bundles[0]["CPU"]
    assert scaling.num_gpus_per_worker == bundles[0].get("GPU", 0)


def test_resources_and_parameters_in_either_order() -> None:
    for given in (
        with_resources(with_parameters(total, rows=[4]), {"CPU": 2}),
        with_parameters(with_resources(total, {"CPU": 2}), rows=[4]),
        with_resources(with_parameters(Total, rows=[4]), {"CPU": 2}),
        with_parameters(with_resources(Total, {"CPU": 2}), rows=[4]),
    ):
        assert kind_of(given).resources({}).required_resources == {"CPU": 2}
        assert run_trial(given).metrics["_metric"] == 4


def test_resources_that_make_no_sense_are_refused() -> None:
    for wrong in (3, [{"CPU": 1}], {"CPU": -1}, {"CPU": "two"}):
        with pytest.raises(ConfigError):
            with_resources(total, wrong)
    trainer = DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(ConfigError, match=r"DataParallelTrainer.*scaling_config="):
        with_resources(trainer, {"CPU": 1})


@pytest.mark.parametrize(("wrong", "meant"), [("cpus", "CPU"), ("Cpu", "CPU"), ("num_gpus", "GPU"), ("GPUs", "GPU")])
def test_a_near_miss_of_cpu_and_gpu_is_refused(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"'{wrong}'.*'{meant}'"):
        with_resources(total, {wrong: 1})
    fine = with_resources(lambda config: 1, {"cpu": 1, "tpu": 2})
    assert kind_of(fine).resources({}).bundles == [{"CPU": 1, "tpu": 2}]


# -- names --------------------------------------------------------------------------------------


def test_a_name_where_none_is_registered() -> None:
    fresh = runpy.run_path(registry.__file__)  # as at the start of a program
    with pytest.raises(ConfigError, match=r"'total'.*none.*register_trainable\(\)"):
        fresh["get_trainable"]("total")


def test_trainables_by_name() -> None:
    registry.register_trainable("total", with_parameters(total, rows=[2]))
    assert run_trial("total").metrics["_metric"] == 2
    assert run_trial(with_parameters("total", scale=3)).metrics["_metric"] == 6
    with pytest.raises(ConfigError, match=r"'totl'.*total\?"):
        kind_of("totl")
    with pytest.raises(ConfigError, match=r"Trainable.*\b3\b"):
        registry.register_trainable("three", 3)


def test_environments_by_name() -> None:
    registry.register_env("maze", lambda config: ("maze", config["size"]))
    assert registry.get_env_creator("maze")({"size": 3}) == ("maze", 3)
    with pytest.raises(ConfigError, match=r"'cave'.*register_env\(\)"):
        registry.get_env_creator("cave")
