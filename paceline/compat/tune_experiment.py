"""Experiment: a trainable and how to try it out, as older code writes it down."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from paceline.air.checks import names_what_was_meant, near_miss, warn_at_users_line
from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory

WITHOUT_MEANING = (
    "checkpoint_upload_from_workers",
    "export_formats",
    "global_checkpoint_period",
    "loggers",
    "queue_trials",
    "ray_auto_init",
    "return_trials",
    "server_port",
    "sync_on_checkpoint",
    "sync_to_cloud",
    "sync_to_driver",
    "trial_executor",
    "upload_dir",
    "with_server",
    "_experiment_checkpoint_dir",
    "_remote",
    "_remote_string_queue",
)
"""Settings of other machinery: there is nothing here that they could change."""


@names_what_was_meant()
@dataclass
class TuneExperiment:
    """A trainable, its space and its rules, for run_experiments() or tune.run()."""

    name: str | None
    run: Any
    """A function, a Trainable class, a trainer, or the name of a registered trainable."""
    stop: Any = None
    time_budget_s: float | datetime.timedelta | None = None
    config: Mapping[str, Any] | None = None
    """The space of configurations."""
    resources_per_trial: Mapping[str, float] | PlacementGroupFactory | Callable[..., Any] | None = None
    num_samples: int = 1
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    trial_name_creator: Callable[[Any], str] | None = None
    trial_dirname_creator: Callable[[Any], str] | None = None
    log_to_file: bool | str | tuple[str, str] = False
    max_failures: int = 0
    local_dir: str | os.PathLike[str] | None = None
    keep_checkpoints_num: int | None = None
    checkpoint_score_attr: str | None = None
    """The metric that says which checkpoints are best; with "min-" before it, low values are."""
    checkpoint_freq: int = 0
    checkpoint_at_end: bool | None = None
    checkpoint_keep_all_ranks: bool = False

    def __post_init__(self) -> None:
        self._one_checkpoint_config()  # what contradicts itself is refused at this line

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> TuneExperiment:
        """An experiment from a dict of its settings, "run" among them."""
        settings = dict(spec)
        if "run" not in settings:
            raise ConfigError(f"The experiment {name!r} does not say what to run: give it a 'run'.")
        sorted_out = with_meaning(settings, [item.name for item in fields(cls)], f"The experiment {name!r}")
        return cls(name, sorted_out.pop("run"), **sorted_out)

    @property
    def trainable(self) -> Any:
        """What is run, with the resources of a trial bound to it."""
        from paceline.tune.trainable.parameters import with_resources

        return self.run if self.resources_per_trial is None else with_resources(self.run, self.resources_per_trial)

    def run_config(self, *, fail_fast: Any = False, **settings: Any) -> RunConfig:
        """Where results go and who watches; `settings` are those that an experiment does not say itself."""
        return RunConfig(
            name=self.name,
            stop=self.stop,
            storage_path=None if self.storage_path is None else os.fspath(self.storage_path),
            local_dir=None if self.local_dir is None else os.fspath(self.local_dir),
            storage_filesystem=self.storage_filesystem,
            checkpoint_config=self._one_checkpoint_config(),
            sync_config=self.sync_config or SyncConfig(),
            failure_config=FailureConfig(max_failures=self.max_failures, fail_fast=fail_fast),
            log_to_file=self.log_to_file,
            **settings,
        )

    def _one_checkpoint_config(self) -> CheckpointConfig:
        """The settings of checkpoints, which older code gives one by one."""
        attribute, order = _score(self.checkpoint_score_attr)
        one_by_one = CheckpointConfig(
            num_to_keep=self.keep_checkpoints_num,
            checkpoint_score_attribute=attribute,
            checkpoint_score_order=order,
            checkpoint_frequency=self.checkpoint_freq,
            checkpoint_at_end=self.checkpoint_at_end,
            keep_all_ranks=self.checkpoint_keep_all_ranks,
        )
        if self.checkpoint_config is None:
            return one_by_one
        if one_by_one not in (CheckpointConfig(), self.checkpoint_config):
            raise ConfigError(
                "Checkpoints are described twice: by checkpoint_config and by keywords such as keep_checkpoints_num "
                "or checkpoint_freq. Put all of it into checkpoint_config=CheckpointConfig(...)."
            )
        return self.checkpoint_config


def with_meaning(settings: Mapping[str, Any], known: list[str], owner: str) -> dict[str, Any]:
    """The settings that do something here. Others of older code are left out with one warning; a name that is
    nobody's is refused."""
    for name, value in settings.items():
        if name == "restore" and value is not None:
            raise ConfigError(
                "restore= starts trials from a checkpoint, which is not done from outside here. Load it in the "
                "trainable, or give a trainer resume_from_checkpoint=; to continue an experiment use resume=True."
            )
        if name not in known and name not in WITHOUT_MEANING and name != "restore":
            raise TypeError(f"{owner} has no setting {name!r}{near_miss(name, known)}")
    ignored = [name for name, value in settings.items() if name in WITHOUT_MEANING and value is not None]
    if ignored:
        warn_at_users_line(f"{', '.join(ignored)}: nothing here that this would change; ignored.")
    return {name: value for name, value in settings.items() if name in known}


def _score(attribute: str | None) -> tuple[str | None, Any]:
    if attribute is not None and attribute.startswith("min-"):
        return attribute.removeprefix("min-"), "min"
    return attribute, "max"


Experiment = TuneExperiment
"""Its name in programs; that of paceline.tune.experiment is the search behind a Tuner."""
