"""Weights & Biases: a run for each run, online or in files that ``wandb sync`` uploads later.

W&B takes rows into a process of its own, which loses the last of them when the driver is killed. So the cursor moves
only when a run is closed, and W&B is asked what it has: the server, or the file of an offline run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened
from paceline.trackers.callback import TrackerCallback
from paceline.trackers.tracker import (
    ATTEMPT_KEY,
    Outcome,
    RejectedError,
    TrackedCheckpoint,
    TrackedRow,
    TrackedRun,
    Tracker,
)
from paceline.trackers.values import numbers_in
from paceline.trackers.wandb_file import rows_in, wait_for_end, wait_for_free_name

__all__ = ["WandbLoggerCallback", "WandbTracker"]

PROJECT_VARIABLE, GROUP_VARIABLE = "WANDB_PROJECT_NAME", "WANDB_GROUP_NAME"
FINISH_S = 30.0
"""How long W&B may upload at the end of a run; what is left then is in its files, for ``wandb sync``."""
INIT_S = 30.0
WRITE_S = 10.0
"""How long W&B may take to write the last rows of an offline run."""

_OFFLINE = ("offline", "dryrun")
_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
_NOT_IN_NAME = re.compile(r"[^\w.-]+")
_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}


class WandbTracker(Tracker):
    """Sends runs to W&B. `init` are arguments of `wandb.init`."""

    name: ClassVar[str] = "wandb"
    keeps_rows = False

    def __init__(
        self,
        init: Mapping[str, Any],
        *,
        api_key: str | None = None,
        excludes: Iterable[str] = (),
        log_config: bool = False,
        upload_checkpoints: bool = False,
        finish_s: float = FINISH_S,
    ) -> None:
        self.wants_checkpoints = upload_checkpoints
        self._init = dict(init)
        self._api_key = api_key
        self._excludes = tuple(excludes)
        self._log_config = log_config
        self._finish_s = finish_s
        self._runs: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._before: dict[str, int] = {}
        """How many rows of each run W&B had before this process."""
        self._configs: dict[str, dict[str, int | float]] = {}
        self._offline: dict[str, Path] = {}
        """Where the files of each offline run are."""

    @property
    def label(self) -> str:
        return "Weights & Biases"

    def prepare(self) -> None:
        import wandb  # noqa: F401

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        import wandb

        given = self._arguments(run)
        run_id = resume_id or str(given["id"])
        if run_id in self._runs:
            return run_id
        is_offline = is_offline_mode(given)
        before = 0
        if is_offline:
            before = rows_in(Path(given["dir"]), run_id)
            wait_for_free_name(Path(given["dir"]), run_id)
        try:
            opened = wandb.init(**{**given, "id": run_id, "resume": None if is_offline else "allow"})
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise RejectedError(
                f"{error} Set WANDB_API_KEY, pass api_key= or api_key_file=, or work offline with WANDB_MODE=offline."
            ) from error
        opened.define_metric("*", step_metric="training_iteration")
        self._runs[run_id], self._names[run_id], self._before[run_id] = opened, run.name, before
        if is_offline:
            self._offline[run_id] = Path(given["dir"])
        self._note_config(run_id, run.config)
        return run_id

    def received(self, run_id: str) -> int | None:
        return max(self._before[run_id], int(self._runs[run_id].step))

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        run = self._runs[run_id]
        for row in rows:
            values = {**self._configs.get(run_id, {}), **flattened(row.metrics)}
            wanted = {key: value for key, value in values.items() if value is not None and not self._is_excluded(key)}
            # W&B drops a step that is smaller than the one before. Iterations repeat after a retry, ordinals do not.
            data = {**wanted, ATTEMPT_KEY: row.attempt, "_timestamp": row.time}
            run.log(data, step=row.ordinal, commit=True)

    def close(self, run_id: str, outcome: Outcome) -> None:
        self._runs[run_id].finish(exit_code=_EXIT_CODES[outcome])
        if (directory := self._offline.get(run_id)) is not None:
            wait_for_end(directory, run_id, WRITE_S)
        for known in (self._runs, self._names, self._before, self._configs, self._offline):
            known.pop(run_id, None)

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:
        self._runs[run_id].config.update(config, allow_val_change=True)
        self._note_config(run_id, config)

    def add_checkpoint(self, run_id: str, checkpoint: TrackedCheckpoint) -> None:
        import wandb

        name = f"checkpoint_{_NOT_IN_NAME.sub('_', self._names[run_id])}"
        facts = {"iteration": checkpoint.iteration, "number": checkpoint.number, "attempt": checkpoint.attempt}
        artifact = wandb.Artifact(name=name, type="model", metadata=facts)
        artifact.add_dir(str(checkpoint.path))
        self._runs[run_id].log_artifact(artifact)

    def _arguments(self, run: TrackedRun) -> dict[str, Any]:
        """For `wandb.init`; those of the user go before ours."""
        return {
            "id": run.key,
            "name": run.name,
            "project": os.environ.get(PROJECT_VARIABLE),
            "group": os.environ.get(GROUP_VARIABLE) or run.experiment_name,
            "dir": run.path,
            "config": {**run.config, **run.facts},
            "reinit": "create_new",  # several runs at the same time; otherwise each would end the one before
            "allow_val_change": True,
            **self._init,
            "settings": settings(self._init.get("settings"), self._api_key, self._finish_s),
        }

    def _note_config(self, run_id: str, config: Mapping[str, Any]) -> None:
        if self._log_config:
            self._configs[run_id] = numbers_in({"config": config})

    def _is_excluded(self, key: str) -> bool:
        return any(key == name or key.startswith(f"{name}/") for name in self._excludes)


class WandbLoggerCallback(TrackerCallback):
    """Sends each run, or each trial of a search, to Weights & Biases: configuration, rows, outcome.

    Further arguments are those of `wandb.init`, such as ``mode="offline"``, which needs no key. `project` and `group`
    may also come from WANDB_PROJECT_NAME and WANDB_GROUP_NAME; the group is else called as the run or the search is.
    `excludes` are metrics to leave out. `log_config` adds the numbers of the configuration to each row.
    `upload_checkpoints` uploads each checkpoint as an artifact.
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("mode") not in (None, *_MODES):
            raise ConfigError(f"mode={kwargs['mode']!r} is not a mode of W&B: give {', '.join(_MODES)}.")
        given = {"project": project, "group": group}
        super().__init__(
            WandbTracker(
                {**{name: value for name, value in given.items() if value is not None}, **kwargs},
                api_key=key_in(api_key, api_key_file),
                excludes=excludes or (),
                log_config=log_config,
                upload_checkpoints=upload_checkpoints or save_checkpoints,
                finish_s=FINISH_S if upload_timeout is None else upload_timeout,
            )
        )
        if upload_timeout is not None:
            self.wait_at_end_s = upload_timeout


def is_offline_mode(arguments: Mapping[str, Any]) -> bool:
    """Whether W&B only writes files, as its arguments, its settings or the environment say."""
    chosen = arguments["settings"].model_dump(exclude_unset=True).get("mode")
    return (arguments.get("mode") or chosen or os.environ.get("WANDB_MODE")) in _OFFLINE


def key_in(api_key: str | None, api_key_file: str | None) -> str | None:
    """The key that was given, or that a file has; None leaves it to W&B to find one."""
    if api_key_file is None:
        return api_key
    if api_key is not None:
        raise ConfigError("api_key and api_key_file are both given: pass one of them.")
    try:
        return Path(api_key_file).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"api_key_file={api_key_file!r} cannot be read: {error.strerror}.") from error


def settings(given: Any, api_key: str | None, finish_s: float) -> Any:
    """W&B's settings: it must not capture the driver's output, and must not keep the process for long at its end."""
    import wandb

    known = wandb.Settings.model_fields
    ours: dict[str, Any] = {"console": "off", "silent": True, "init_timeout": INIT_S, "finish_timeout": finish_s}
    if api_key is not None:
        ours["api_key"] = api_key
    chosen = dict(given) if isinstance(given, Mapping) else given.model_dump(exclude_unset=True) if given else {}
    return wandb.Settings(**{name: value for name, value in {**ours, **chosen}.items() if name in known})
