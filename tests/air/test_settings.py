"""Every setting that is plain data comes back; a new field of a config cannot be forgotten."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.config import SyncConfig
from paceline.air.settings import NOT_STORED, restored, stored
from paceline.train import BackendConfig
from paceline.tune import TuneConfig

OTHER_VALUES: dict[type, dict[str, Any]] = {
    ScalingConfig: {
        "trainer_resources": {"CPU": 2.0},
        "num_workers": 3,
        "use_gpu": True,
        "resources_per_worker": {"CPU": 2.0, "GPU": 0.5},
        "placement_strategy": "SPREAD",
        "_max_cpu_fraction_per_node": 0.5,
        "accelerator_type": "A100",
        "elastic_resize_monitor_interval_s": 5.0,
    },
    FailureConfig: {
        "max_failures": 4,
        "fail_fast": "raise",
        "hang_timeout_s": 11.0,
        "heartbeat_timeout_s": None,
        "start_timeout_s": 12.0,
        "resource_timeout_s": 120.0,
        "stop_grace_s": 0.5,
        "preemption_grace_s": 120.0,
        "max_attempts_without_progress": 3,
        "retry_on": ("builtins.ValueError", "signal"),
        "never_retry": ("oom",),
    },
    CheckpointConfig: {
        "num_to_keep": 2,
        "checkpoint_score_attribute": "eval/loss",
        "checkpoint_score_order": "min",
        "checkpoint_frequency": 5,
        "checkpoint_at_end": False,
        "async_save": True,
        "max_overhead": 0.05,
        "keep_all_ranks": True,
    },
    SyncConfig: {
        "syncer": None,
        "sync_period": 10,
        "sync_timeout": 20,
        "sync_artifacts": False,
        "sync_on_checkpoint": False,
    },
    RunConfig: {
        "failure_config": FailureConfig(max_failures=-1),
        "checkpoint_config": CheckpointConfig(num_to_keep=0),
        "sync_config": SyncConfig(sync_period=1),
        "verbose": 1,
        "stop": {"training_iteration": 3, "eval/loss": 0.5},
        "log_to_file": ("out.txt", "err.txt"),
        "engine": "inline",
        "debug": "post_mortem",
        "max_log_bytes": None,
    },
    TuneConfig: {
        "mode": ["min", "max"],
        "metric": ["loss", "accuracy"],
        "num_samples": -1,
        "max_concurrent_trials": 3,
        "time_budget_s": 60.5,
        "chdir_to_trial_dir": False,
    },
}
NEEDED = {
    "retry_on": {"max_failures": 1},  # some fields mean something only beside others
    "resources_per_worker": {"use_gpu": True},
    "accelerator_type": {"use_gpu": True},
    "mode": {"metric": ["a", "b"]},
    "metric": {"mode": ["min", "min"]},
}
CASES = [(kind, name, value) for kind, values in OTHER_VALUES.items() for name, value in values.items()]


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name, _ in CASES])
def test_a_setting_comes_back(kind: type, name: str, value: Any) -> None:
    config = kind(**{**NEEDED.get(name, {}), name: value})
    assert getattr(config, name) != getattr(kind(), name), "this value would come back anyway"
    settings = json.loads(json.dumps(stored(config)))
    again = restored(kind, settings)
    for field in dataclasses.fields(kind):
        assert getattr(again, field.name) == getattr(config, field.name)


@pytest.mark.parametrize("kind", OTHER_VALUES, ids=lambda kind: kind.__name__)
def test_every_field_is_stored_or_there_is_a_reason(kind: type) -> None:
    left_out = NOT_STORED.get(kind.__name__, {})
    names = {field.name for field in dataclasses.fields(kind)} - {"callbacks"}  # by name only: see test_plugins.py
    assert names == {*OTHER_VALUES[kind], *left_out}
    assert not left_out.keys() & stored(kind()).keys()


def test_code_is_left_out() -> None:
    settings = stored(RunConfig(stop=lambda trial_id, row: True, engine=None))
    assert "stop" not in settings
    assert restored(RunConfig, settings).stop is None


@dataclasses.dataclass
class Topology:
    rings: int = 1


@dataclasses.dataclass
class ForeignConfig(BackendConfig):
    kind: type = Topology
    topology: Topology = dataclasses.field(default_factory=Topology)
    callbacks: Any = None


@pytest.mark.parametrize(
    ("callbacks", "described"), [(None, {"callbacks": None}), (["log"], {"callbacks": ["log"]}), ([print], {})]
)
def test_any_config_can_be_described(callbacks: Any, described: dict[str, Any]) -> None:
    """That of a backend from another package may hold classes, and callbacks of its own kind."""
    assert stored(ForeignConfig(callbacks=callbacks)) == {"topology": {"rings": 1}, **described}


def test_settings_of_another_version() -> None:
    settings = {"failure_config": {"max_failures": 1, "moon_phase": "full"}, "weather": "fair"}
    assert restored(RunConfig, settings) == RunConfig(failure_config=FailureConfig(max_failures=1))


def test_what_is_given_goes_first() -> None:
    assert restored(RunConfig, {"verbose": 1, "max_log_bytes": 5}, verbose=0) == RunConfig(verbose=0, max_log_bytes=5)
