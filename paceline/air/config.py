"""What the user may set: run, failures, checkpoints.

A setting that cannot work is refused here, at the line that wrote it, with advice.
ScalingConfig lives in `resources`, DatasetConfig and DataConfig in `data_config`; they
are part of this module's names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_choice,
    check_engine,
    check_kind,
    check_seconds,
    check_share,
    check_stop,
    names_what_was_meant,
    near_miss,
    output_files,
    safe_name,
    settings_of,
    warn_at_users_line,
    whole_number,
)
from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import ConfigError
from paceline.air.failure_names import FailureNames, failure_names
from paceline.air.plugins import made_by_name, plugin_names
from paceline.air.resources import ScalingConfig

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "DatasetConfig",
    "FailureConfig",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
]

ATTEMPTS_WITHOUT_PROGRESS = 3
"""After so many, a run that is retried without limit is in a crash loop."""
DEFAULT_MAX_LOG_BYTES = 256 * 1024 * 1024


@names_what_was_meant()
@dataclass(repr=False)
class FailureConfig(ShortRepr):
    """What happens when a worker fails or goes quiet."""

    max_failures: int = 0
    """How many times a failed run is started again from its newest checkpoint; -1: without limit."""
    fail_fast: bool | Literal["raise"] = False
    """In a search: stop all trials at the first failure ("raise": with the trial's own exception)."""
    hang_timeout_s: float | Literal["auto"] | None = "auto"
    """Fail when a rank that others wait for has not reported for so long. "auto" fails when a rank that is behind has
    stood still, idle and in one place, for at least 30 minutes; None only warns."""
    heartbeat_timeout_s: float | None = 30.0
    """Fail when a worker process gives no sign of life for so long; None switches the watch off."""
    start_timeout_s: float = 60.0
    """How long workers may take until the training function starts."""
    resource_timeout_s: float | None = None
    """How long a run waits for room for its workers; None: until there is room, or somebody stops it."""
    stop_grace_s: float = 5.0
    """How long a worker that was asked to stop may take before it is killed."""
    preemption_grace_s: float = 30.0
    """How long workers may take to save and stop after SIGTERM or SIGUSR1, before they are killed."""
    max_attempts_without_progress: int | Literal["auto"] | None = "auto"
    """Give up after so many attempts in a row that came no further than those before: no new checkpoint, and no report
    with a higher index. "auto": 3 if max_failures is -1, else no limit. None: no limit."""
    retry_on: FailureNames | None = None
    """Retry these failures only: exception classes, their qualified names, or kinds of failures; None: all. Lost nodes
    and preemptions are retried anyway."""
    never_retry: FailureNames = ()
    """Do not retry these failures, whatever else is said."""

    def __post_init__(self) -> None:
        self.max_failures = whole_number(
            self.max_failures, "max_failures", least=-1, advice="Use 0 for no retry, -1 for retries without limit."
        )
        if self.fail_fast not in (True, False, "raise"):
            raise ConfigError(f"fail_fast is {self.fail_fast!r}: use True, False or 'raise'.")
        if self.fail_fast and self.max_failures != 0:
            raise ConfigError(
                f"fail_fast={self.fail_fast!r} stops at the first failure, but max_failures={self.max_failures} asks "
                "for retries. Set max_failures=0, or leave fail_fast out."
            )
        if self.hang_timeout_s != "auto":
            check_seconds(self.hang_timeout_s, "hang_timeout_s", none_means="warn only", words='"auto", or ')
        check_seconds(self.heartbeat_timeout_s, "heartbeat_timeout_s", none_means="no watch")
        check_seconds(self.start_timeout_s, "start_timeout_s")
        check_seconds(self.resource_timeout_s, "resource_timeout_s", none_means="wait without limit")
        check_seconds(self.stop_grace_s, "stop_grace_s", zero_allowed=True)
        check_seconds(self.preemption_grace_s, "preemption_grace_s", zero_allowed=True)
        if self.max_attempts_without_progress not in (None, "auto"):
            self.max_attempts_without_progress = whole_number(
                self.max_attempts_without_progress,
                "max_attempts_without_progress",
                least=1,
                advice="None: no limit; 'auto': 3 if max_failures is -1.",
            )
        self.never_retry = failure_names(self.never_retry, "never_retry")
        if self.retry_on is not None:
            self.retry_on = failure_names(self.retry_on, "retry_on")
            if self.max_failures == 0:
                raise ConfigError(
                    "retry_on says which failures are retried, but max_failures=0 allows no retry. "
                    "Set max_failures to the number of retries, or to -1 for no limit."
                )

    @property
    def most_attempts_without_progress(self) -> int | None:
        """What max_attempts_without_progress comes to; None: no limit."""
        if self.max_attempts_without_progress == "auto":
            return ATTEMPTS_WITHOUT_PROGRESS if self.max_failures == -1 else None
        return self.max_attempts_without_progress


@names_what_was_meant()
@dataclass(repr=False)
class CheckpointConfig(ShortRepr):
    """Which checkpoints are kept, and how they are written."""

    num_to_keep: int | None = None
    """How many; None keeps all, 0 writes none to disk (the newest stays in memory)."""
    checkpoint_score_attribute: str | None = None
    """The metric that says which are best (nested: "a/b"); None keeps the newest."""
    checkpoint_score_order: Literal["max", "min"] = "max"
    """Whether a high or a low score is better."""
    checkpoint_frequency: int = 0
    """Every how many iterations trainers that save by themselves do so; 0: not."""
    checkpoint_at_end: bool | None = None
    """Whether those trainers save at the end; None leaves it to them."""
    async_save: bool = False
    """Return from report() before the checkpoint is stored; its directory is taken over."""
    max_overhead: float | None = None
    """The part of the time that checkpoints may cost the loop, such as 0.03: `train.should_checkpoint()` says when the
    next one is due. Implies async_save. None: only you decide when to save."""
    keep_all_ranks: bool = False
    """Keep the files of every rank's checkpoint, not only of rank 0's."""
    _checkpoint_keep_all_ranks: bool | None = None
    """Old name of keep_all_ranks; read that one."""

    def __post_init__(self) -> None:
        if self._checkpoint_keep_all_ranks is not None:
            self.keep_all_ranks = self._checkpoint_keep_all_ranks
            self._checkpoint_keep_all_ranks = None
        if self.num_to_keep is not None:
            self.num_to_keep = whole_number(
                self.num_to_keep, "num_to_keep", least=0, advice="None keeps all, 0 writes none to disk."
            )
        attribute = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            raise ConfigError(f"checkpoint_score_attribute is {attribute!r}: give the name of a metric, or None.")
        check_choice(self.checkpoint_score_order, "checkpoint_score_order", ("max", "min"))
        self.checkpoint_frequency = whole_number(
            self.checkpoint_frequency, "checkpoint_frequency", least=0, advice="0: no checkpoints by iteration."
        )
        if self.checkpoint_at_end is not None:
            check_bool(self.checkpoint_at_end, "checkpoint_at_end")
        check_bool(self.async_save, "async_save")
        if self.max_overhead is not None:
            self.max_overhead = check_share(self.max_overhead, "max_overhead")
            self.async_save = True
        check_bool(self.keep_all_ranks, "keep_all_ranks")
        if self.keep_all_ranks and self.num_to_keep == 0:
            raise ConfigError(
                "keep_all_ranks merges files on disk, but num_to_keep=0 writes none. "
                "Set num_to_keep to 1 or more, or leave keep_all_ranks out."
            )


@names_what_was_meant()
@dataclass(repr=False)
class SyncConfig(ShortRepr):
    """Settings of older code. Every commit is mirrored at once, so there is no period to tune:
    the timing fields are checked and otherwise have no effect."""

    upload_dir: str | None = None
    """Old name of RunConfig(storage_path=...)."""
    syncer: Any = "auto"
    """"auto" only: custom syncers are replaced by RunConfig(storage_filesystem=...)."""
    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = True
    sync_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        if self.syncer not in ("auto", None):
            raise ConfigError(
                f"syncer is {self.syncer!r}: custom syncers do not exist here. "
                "Pass an fsspec filesystem as RunConfig(storage_filesystem=...) instead."
            )
        check_seconds(self.sync_period, "sync_period", zero_allowed=True)
        check_seconds(self.sync_timeout, "sync_timeout", zero_allowed=True)
        check_bool(self.sync_artifacts, "sync_artifacts")
        check_bool(self.sync_on_checkpoint, "sync_on_checkpoint")


@names_what_was_meant(
    **settings_of(FailureConfig, "failure_config=FailureConfig({}=...)"),
    **settings_of(CheckpointConfig, "checkpoint_config=CheckpointConfig({}=...)"),
)
@dataclass(repr=False)
class RunConfig(ShortRepr):
    """Where a run's results go, when it stops, and who watches it."""

    name: str | None = None
    """The experiment's directory under storage_path; None makes one from trainer and time."""
    storage_path: str | None = None
    """Where results go: a directory or a URI such as s3://bucket/dir; None: ~/paceline_results."""
    storage_filesystem: Any = None
    """An fsspec filesystem for storage_path, where the URI alone does not say enough."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    sync_config: SyncConfig = field(default_factory=SyncConfig)
    verbose: int = 3
    """0 silent, 1 start and end, 2 and 3 progress too."""
    stop: Mapping[str, float] | Callable[[str, dict[str, Any]], bool] | None = None
    """When to stop early: {metric: threshold}, a function of trial id and result, or a Stopper."""
    callbacks: list[Any] = field(default_factory=list)
    """Observers of the run."""
    progress_reporter: Any = None
    """In a search, shows the trials instead of the built-in table: a ProgressReporter such as CLIReporter. A single
    run has no use for one."""
    log_to_file: bool | str | tuple[str, str] = False
    """Copy what rank 0 prints to files of the trial directory: True to `stdout` and `stderr`, or give one name or two.
    The output of all workers is always in logs/rank_<k>.log."""
    local_dir: str | None = None
    """Old name of storage_path, which wins if both are given; read that one."""
    engine: Any = None
    """Where workers live: "local", "inline", what a package has registered, or an Engine; None chooses."""
    debug: Literal["post_mortem"] | None = None
    """"post_mortem" opens the debugger in the driver's terminal on the first rank that raises; breakpoint() needs no
    setting."""
    max_log_bytes: int | None = DEFAULT_MAX_LOG_BYTES
    """When a worker's log is longer, its content moves to logs/rank_<k>.log.1 and replaces what was there; None:
    no limit."""

    def __post_init__(self) -> None:
        if self.name is not None:
            self.name = safe_name(self.name, "RunConfig name")
        self.failure_config = check_kind(self.failure_config, FailureConfig, "failure_config") or FailureConfig()
        self.checkpoint_config = (
            check_kind(self.checkpoint_config, CheckpointConfig, "checkpoint_config") or CheckpointConfig()
        )
        self.sync_config = check_kind(self.sync_config, SyncConfig, "sync_config") or SyncConfig()
        self._settle_storage_path(self.sync_config.upload_dir)
        self.verbose = whole_number(self.verbose, "verbose", least=0, most=3, advice="0 is silent, 3 shows most.")
        check_stop(self.stop)
        self.callbacks = _checked_callbacks(self.callbacks)
        output_files(self.log_to_file)  # rejects what cannot be file names
        if self.max_log_bytes is not None:
            self.max_log_bytes = whole_number(self.max_log_bytes, "max_log_bytes", least=1, advice="None: no limit.")
        if self.debug is not None:
            check_choice(self.debug, "debug", ("post_mortem",))
        _check_reporter(self.progress_reporter)
        check_engine(self.engine)

    @property
    def output_files(self) -> tuple[str, str] | None:
        """The files that `log_to_file` asks for: for standard output and for standard error."""
        return output_files(self.log_to_file)

    def _settle_storage_path(self, upload_dir: str | None) -> None:
        """Bring storage_path and its older spellings together."""
        given = {
            name: _path_text(value, name)
            for name, value in (("storage_path", self.storage_path), ("sync_config.upload_dir", upload_dir))
            if value is not None
        }
        if len(set(given.values())) > 1:
            listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ConfigError(f"Results go to one place, but several were given: {listed}. Set storage_path alone.")
        self.storage_path = next(iter(given.values()), None)
        if self.local_dir is not None:
            local_dir, self.local_dir = _path_text(self.local_dir, "local_dir"), None
            if self.storage_path not in (None, local_dir):
                warn_at_users_line(
                    f"local_dir={local_dir!r} is ignored: results go to {next(iter(given))}={self.storage_path!r}. The "
                    "working copy of results on remote storage is in ~/paceline_results, or where the variable "
                    "PACELINE_RESULTS_DIR says."
                )
            self.storage_path = self.storage_path or local_dir


def _path_text(value: Any, name: str) -> str:
    try:
        text = os.fspath(value)
    except TypeError:
        text = value
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{name} is {value!r}: give a directory or a URI such as s3://bucket/dir.")
    return text


def _checked_callbacks(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks must be a list, not {type(callbacks).__name__}. Write callbacks=[...].")
    for callback in callbacks:
        if isinstance(callback, type):
            raise ConfigError(f"callbacks holds the class {callback.__name__}: make an object of it with ().")
    return [_tracker(callback) if isinstance(callback, str) else callback for callback in callbacks]


def _tracker(name: str) -> Any:
    """The callback that an installed package has registered by this name, as it is without arguments."""
    made = made_by_name("trackers", name)
    if made is None:
        near = near_miss(name, plugin_names("trackers"))
        raise ConfigError(f"callbacks holds {name!r}: there is no tracker of that name{near}")
    return made


def _check_reporter(reporter: Any) -> None:
    if isinstance(reporter, type):
        raise ConfigError(f"progress_reporter is the class {reporter.__name__}: make an object of it with ().")
    methods = ("should_report", "report", "setup", "set_search_properties")
    if reporter is not None and not all(callable(getattr(reporter, method, None)) for method in methods):
        raise ConfigError(
            f"progress_reporter is {reporter!r}: use a CLIReporter, a JupyterNotebookReporter, or an object of a class "
            "derived from paceline.tune.ProgressReporter."
        )
