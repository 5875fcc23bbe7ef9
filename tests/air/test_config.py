"""Settings that cannot work are refused where they are written, with advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, SyncConfig
from paceline.air.errors import ConfigError, PacelineError
from paceline.air.resources import PlacementGroupFactory
from paceline.engine.inline import InlineEngine


class Domain:
    """Stands for a search space."""

    def sample(self) -> int:
        return 2


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True, 10**6])
def test_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(ValueError, match="num_workers") as caught:
        ScalingConfig(num_workers=workers)
    assert isinstance(caught.value, PacelineError)


@pytest.mark.parametrize("workers", [None, 1, 64, np.int64(3), 256])
def test_number_of_workers_is_accepted(workers: Any) -> None:
    scaling = ScalingConfig(num_workers=workers)
    assert scaling.num_workers == workers
    assert scaling.num_workers is None or type(scaling.num_workers) is int


def test_how_many_workers_there_can_be_is_for_the_engine_to_say() -> None:
    ScalingConfig(num_workers=100_000)
    with pytest.raises(ConfigError, match="100001"):
        ScalingConfig(num_workers=100_001)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resources_per_worker": {"GPU": 1}}, "use_gpu is False"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "0 GPU"),
        ({"use_gpu": 1}, "use_gpu"),
        ({"resources_per_worker": {"CPU": -1}}, "CPU"),
        ({"resources_per_worker": {"CPU": float("nan")}}, "CPU"),
        ({"resources_per_worker": {"CPU": "2"}}, "CPU"),
        ({"resources_per_worker": {1: 2}}, "resources_per_worker.*names"),
        ({"trainer_resources": 3}, "trainer_resources"),
        ({"placement_strategy": "pack"}, "PACK"),
        ({"_max_cpu_fraction_per_node": 2.0}, "_max_cpu_fraction_per_node"),
    ],
)
def test_scaling_that_contradicts_itself_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScalingConfig(num_workers=2, **settings)


@pytest.mark.parametrize(
    ("settings", "cpus", "gpus", "more"),
    [
        ({}, 1.0, 0.0, {}),
        ({"use_gpu": True}, 0.0, 1.0, {}),
        ({"use_gpu": True, "resources_per_worker": {"CPU": 2}}, 2.0, 1.0, {}),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, 0.0, 0.5, {}),
        ({"resources_per_worker": {"CPU": 2, "tpu": 4}}, 2.0, 0.0, {"tpu": 4.0}),
    ],
)
def test_resources_of_a_worker(settings: dict[str, Any], cpus: float, gpus: float, more: dict[str, float]) -> None:
    scaling = ScalingConfig(num_workers=2, **settings)
    assert scaling.num_cpus_per_worker == cpus
    assert scaling.num_gpus_per_worker == gpus
    assert scaling.additional_resources_per_worker == more


def test_resources_add_up() -> None:
    scaling = ScalingConfig(num_workers=3, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 1})
    assert scaling.total_resources == {"CPU": 7.0, "GPU": 3.0}
    assert ScalingConfig(trainer_resources={"CPU": 0}, num_workers=2).total_resources == {"CPU": 2.0}
    assert ScalingConfig().total_resources == {"CPU": 1.0}


@pytest.mark.parametrize(
    "scaling",
    [
        ScalingConfig(num_workers=2),
        ScalingConfig(num_workers=2, use_gpu=True),
        ScalingConfig(trainer_resources={}, num_workers=1, placement_strategy="SPREAD"),
        ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0.5, "disk": 1}),
        ScalingConfig(),
    ],
)
def test_scaling_and_bundles_say_the_same(scaling: ScalingConfig) -> None:
    bundles = scaling.as_placement_group_factory()
    assert ScalingConfig.from_placement_group_factory(bundles).as_placement_group_factory() == bundles


def test_bundles_of_unequal_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="differ"):
        ScalingConfig.from_placement_group_factory(PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 2}]))


def test_scaling_is_equal_if_the_bundles_are() -> None:
    assert ScalingConfig(num_workers=2) == ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1.0})
    assert ScalingConfig(num_workers=2) != ScalingConfig(num_workers=3)
    assert ScalingConfig(num_workers=2) != "two"
    domain = Domain()
    assert ScalingConfig(num_workers=domain) == ScalingConfig(num_workers=domain)  # type: ignore[arg-type]
    assert ScalingConfig(num_workers=domain) != ScalingConfig(num_workers=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", [Domain(), {"grid_search": [1, 2]}])
@pytest.mark.parametrize(
    "name", ["trainer_resources", "num_workers", "use_gpu", "resources_per_worker", "placement_strategy"]
)
def test_every_field_may_hold_a_search_space(name: str, space: Any) -> None:
    scaling = ScalingConfig(**{name: space})
    with pytest.raises(ConfigError, match="search space"):
        scaling.as_placement_group_factory()


def test_a_resource_may_hold_a_search_space() -> None:
    scaling: Any = ScalingConfig(num_workers=2, resources_per_worker={"CPU": Domain(), "GPU": Domain()})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="search space"):
        _ = scaling.total_resources
    with pytest.raises(ConfigError, match="disk"):
        ScalingConfig(resources_per_worker={"CPU": Domain(), "disk": -1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_failures": -2}, "max_failures"),
        ({"max_failures": True}, "max_failures"),
        ({"max_failures": 1.0}, "max_failures"),
        ({"fail_fast": "now"}, "fail_fast"),
        ({"fail_fast": True, "max_failures": 1}, "max_failures=0"),
        ({"fail_fast": "raise", "max_failures": -1}, "max_failures=0"),
        ({"hang_timeout_s": 0}, "hang_timeout_s"),
        ({"heartbeat_timeout_s": -1}, "heartbeat_timeout_s"),
        ({"start_timeout_s": None}, "start_timeout_s"),
        ({"stop_grace_s": "5"}, "stop_grace_s"),
        ({"max_attempts_without_progress": 0}, "max_attempts_without_progress"),
        ({"max_attempts_without_progress": "never"}, "max_attempts_without_progress"),
        ({"retry_on": [ConnectionError]}, "max_failures=0 allows no retry"),
        ({"retry_on": [3], "max_failures": 1}, "retry_on contains 3"),
        ({"never_retry": 3}, "never_retry is 3"),
        ({"never_retry": ["ValuError"]}, "did you mean 'ValueError'"),
        ({"never_retry": [int]}, "never_retry contains <class 'int'>"),
    ],
)
def test_failure_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FailureConfig(**settings)


def test_failure_settings_are_accepted() -> None:
    assert FailureConfig(max_failures=-1).max_failures == -1
    assert FailureConfig(fail_fast="raise").fail_fast == "raise"
    assert FailureConfig(3, False, heartbeat_timeout_s=None, stop_grace_s=0).max_failures == 3


def test_failures_are_named_by_class_name_or_kind() -> None:
    config = FailureConfig(max_failures=1, retry_on=[ConnectionError, "a.b.Error", "oom"], never_retry="ValueError")
    assert config.retry_on == ("builtins.ConnectionError", "a.b.Error", "oom")
    assert config.never_retry == ("builtins.ValueError",)


@pytest.mark.parametrize(
    ("limit", "retries", "most"), [("auto", -1, 3), ("auto", 9, None), (None, -1, None), (2, 9, 2)]
)
def test_the_limit_on_attempts_without_progress(limit: Any, retries: int, most: int | None) -> None:
    config = FailureConfig(max_failures=retries, max_attempts_without_progress=limit)
    assert config.most_attempts_without_progress == most


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_to_keep": -1}, "num_to_keep"),
        ({"num_to_keep": True}, "num_to_keep"),
        ({"num_to_keep": 1.5}, "num_to_keep"),
        ({"checkpoint_score_order": "best"}, "'max', 'min'"),
        ({"checkpoint_score_attribute": ""}, "checkpoint_score_attribute"),
        ({"checkpoint_score_attribute": 3}, "checkpoint_score_attribute"),
        ({"checkpoint_frequency": -1}, "checkpoint_frequency"),
        ({"checkpoint_frequency": False}, "checkpoint_frequency"),
        ({"checkpoint_at_end": "yes"}, "checkpoint_at_end"),
        ({"async_save": 1}, "async_save"),
        ({"max_overhead": 0}, "max_overhead is 0: give a number between 0 and 1"),
        ({"max_overhead": 3}, "max_overhead"),
        ({"max_overhead": "3 %"}, "max_overhead"),
        ({"num_to_keep": 0, "keep_all_ranks": True}, "keep_all_ranks"),
    ],
)
def test_checkpoint_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CheckpointConfig(**settings)


def test_checkpoint_settings_are_accepted() -> None:
    assert CheckpointConfig(num_to_keep=0).num_to_keep == 0
    assert CheckpointConfig(max_overhead=0.03).async_save
    assert CheckpointConfig(2, "loss", "min").checkpoint_score_order == "min"
    assert CheckpointConfig(_checkpoint_keep_all_ranks=True).keep_all_ranks
    assert replace(CheckpointConfig(_checkpoint_keep_all_ranks=True), keep_all_ranks=False).keep_all_ranks is False


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "../x",
        "/abs",
        "",
        ".",
        "..",
        "x" * 300,
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a\u2028b",
        "a\udc80b",
        ".hidden",
        "é" * 65,
        5,
    ],
)
def test_unsafe_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="RunConfig name"):
        RunConfig(name=name)


@pytest.mark.parametrize(
    "name",
    [
        "run-1",
        "Run_2.0",
        "x" * 128,
        "été",
        "实验",
        "प्रयोग",
        "lr=0.1, layers=(2, 3)",
        "a+b:c@d#e?f%20*[x]~'\"",
        "a\\b",
        "con",
        "-rf",
        " ",
        "🚀",
    ],
)
def test_safe_names_are_accepted(name: str) -> None:
    assert RunConfig(name=name).name == name


def test_names_are_composed() -> None:
    assert RunConfig(name="e\u0301te").name == "éte"


def test_run_config_fills_in_what_is_missing() -> None:
    run = RunConfig()
    assert run.failure_config == FailureConfig()
    assert run.checkpoint_config == CheckpointConfig()
    assert run.sync_config == SyncConfig()
    assert run.callbacks == []
    run = RunConfig(failure_config=None, checkpoint_config=None, sync_config=None, callbacks=None)  # type: ignore[arg-type]
    assert run == RunConfig()


def test_the_place_of_results_has_three_spellings(tmp_path: Path) -> None:
    for run in (
        RunConfig("a", str(tmp_path)),
        RunConfig(storage_path=tmp_path),  # type: ignore[arg-type]
        RunConfig(local_dir=str(tmp_path)),
        RunConfig(storage_path=str(tmp_path), local_dir=str(tmp_path)),
        RunConfig(sync_config=SyncConfig(upload_dir=str(tmp_path))),
    ):
        assert run.storage_path == str(tmp_path)
    assert replace(RunConfig(local_dir="a"), storage_path="b").storage_path == "b"
    with pytest.raises(ConfigError, match="upload_dir"):
        RunConfig(storage_path="b", sync_config=SyncConfig(upload_dir="s3://bucket/x"))


@pytest.mark.parametrize("place", ["/a", "s3://bucket/x"])
def test_storage_path_wins_over_its_old_name(place: str) -> None:
    with pytest.warns(UserWarning, match=r"local_dir='/b' is ignored.*storage_path"):
        run = RunConfig(storage_path=place, local_dir="/b")
    assert run.storage_path == place
    with pytest.warns(UserWarning, match=r"local_dir='/b' is ignored.*upload_dir"):
        run = RunConfig(local_dir="/b", sync_config=SyncConfig(upload_dir=place))
    assert run.storage_path == place


@pytest.mark.parametrize(
    ("given", "files"),
    [
        (False, None),
        (True, ("stdout", "stderr")),
        ("output.log", ("output.log", "output.log")),
        (("out", "err"), ("out", "err")),
    ],
)
def test_the_files_that_output_is_copied_to(given: Any, files: tuple[str, str] | None) -> None:
    assert RunConfig(log_to_file=given).output_files == files


class Stopping:
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


@pytest.mark.parametrize(
    "stop",
    [
        {"training_iteration": 3, "a/b": 0.5, "done": True},
        lambda trial_id, result: False,
        Stopping(),
        np.add,
    ],
)
def test_ways_to_stop(stop: Any) -> None:
    assert RunConfig(stop=stop).stop is stop


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": {"loss": "low"}},
        {"stop": {"loss": float("nan")}},
        {"stop": {3: 3}},
        {"stop": [{"loss": 1}]},
        {"stop": 5},
        {"stop": Stopping},
        {"stop": lambda result: True},
        {"callbacks": Stopping()},
        {"callbacks": [Stopping]},
        {"verbose": 4},
        {"verbose": True},
        {"verbose": "high"},
        {"failure_config": 3},
        {"checkpoint_config": FailureConfig()},
        {"storage_path": ""},
        {"storage_path": 3},
        {"storage_path": "a\0b"},
        {"log_to_file": "logs/out.txt"},
        {"log_to_file": ("out", "err", "more")},
        {"log_to_file": ("out", "journal.jsonl")},
        {"log_to_file": "checkpoint_000000"},
        {"log_to_file": ("rank_0", "err")},
        {"log_to_file": ".lock"},
        {"stop": {"valid": {"loss": "low"}}},
        {"engine": "slurm"},
        {"engine": 3},
    ],
)
def test_run_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RunConfig(**settings)


def test_custom_syncers_are_refused_with_the_replacement() -> None:
    with pytest.raises(ConfigError, match="storage_filesystem"):
        SyncConfig(syncer=object())
    with pytest.raises(ConfigError, match="sync_period"):
        SyncConfig(sync_period=-1)


@pytest.mark.parametrize(
    ("config", "misspelt", "meant"),
    [
        (ScalingConfig, "num_worker", "num_workers"),
        (RunConfig, "nam", "name"),
        (FailureConfig, "max_failure", "max_failures"),
        (CheckpointConfig, "num_keep", "num_to_keep"),
    ],
)
def test_a_misspelt_setting_is_answered_with_the_right_one(config: Any, misspelt: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"'{misspelt}'.*{meant}"):
        config(**{misspelt: 2})


def test_a_setting_like_no_other_is_answered_with_the_list() -> None:
    with pytest.raises(TypeError, match=r"'xyzzy'.*max_failures, .*max_attempts_without_progress"):
        FailureConfig(xyzzy=1)  # type: ignore[call-arg]


def test_the_class_of_an_engine_is_not_an_engine() -> None:
    with pytest.raises(ConfigError, match=r"engine is the class InlineEngine: pass an object, engine=InlineEngine\(\)"):
        RunConfig(engine=InlineEngine)


def test_refusals_name_only_what_works() -> None:
    with pytest.raises(ConfigError, match=r"engine.*'lokal'.*'local', 'inline', 'ray'\.$"):
        RunConfig(engine="lokal")
    with pytest.raises(ConfigError, match=r"num_workers.*'2'.*whole number.*\b1\b"):
        ScalingConfig(num_workers="2")  # type: ignore[arg-type]


def test_an_accelerator_type_is_a_wish_to_a_cluster() -> None:
    config = ScalingConfig(num_workers=2, use_gpu=True, accelerator_type="A100")
    assert "accelerator_type='A100' has no effect" in config.accelerator_warning()
    assert ScalingConfig(num_workers=2).accelerator_warning() == ""
    assert config == ScalingConfig(num_workers=2, use_gpu=True)
    with pytest.raises(ConfigError, match=r"accelerator_type.*'A100'"):
        ScalingConfig(accelerator_type=100)  # type: ignore[arg-type]


def test_reprs_show_what_was_set() -> None:
    assert repr(ScalingConfig(num_workers=2)) == "ScalingConfig(num_workers=2)"
    assert repr(RunConfig()) == "RunConfig()"
    run = RunConfig(name="x", failure_config=FailureConfig(max_failures=3))
    assert repr(run) == "RunConfig(name='x', failure_config=FailureConfig(max_failures=3))"
    assert repr(CheckpointConfig(2, "loss", "min")) == (
        "CheckpointConfig(num_to_keep=2, checkpoint_score_attribute='loss', checkpoint_score_order='min')"
    )
