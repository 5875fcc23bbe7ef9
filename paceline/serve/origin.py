"""Where the served checkpoint comes from: a run, whose newest or best one is served, or one checkpoint."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import CHECKPOINT_MANIFEST_FILE, CHECKPOINT_METADATA_FILE
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.result import Result
from paceline.air.secrets import without_credentials as shown
from paceline.run.found_runs import does_not_exist, find_remote_runs, find_run_dirs
from paceline.storage.run_dir import resolve_storage

_WHAT_TO_GIVE = "Give the directory or URI of a run, an experiment or a checkpoint."

logger = logging.getLogger("paceline.serve")


class Origin(Protocol):
    """Gives the checkpoint to serve, and again when the model is reloaded."""

    def checkpoint(self, number: int | None) -> Checkpoint:
        """The one with this number; None: the one that the place stands for now."""

    def sign(self) -> Any:
        """A value that changes when there may be another checkpoint; None: this place does not change."""


@dataclass(frozen=True)
class OneCheckpoint:
    """A checkpoint that was named itself."""

    given: Checkpoint

    def checkpoint(self, number: int | None) -> Checkpoint:
        if number is not None and number != self.given.number:
            raise ConfigError("One checkpoint is served, not a run: there are no others to choose from by number.")
        return self.given

    def sign(self) -> Any:
        return None


@dataclass(frozen=True)
class RunOrigin:
    """A run: its best checkpoint by the run's score attribute, without one the newest.

    Of an experiment with several runs it is the newest run that has a checkpoint.
    """

    path: str
    chosen: int | None = None
    """The number of the checkpoint that the user wants instead."""

    def checkpoint(self, number: int | None) -> Checkpoint:
        kept = self._kept()
        number = self.chosen if number is None else number
        if number is None:
            return kept[-1]
        by_number = {checkpoint.number: checkpoint for checkpoint in kept}
        if number not in by_number:
            there = ", ".join(str(each) for each in sorted(each for each in by_number if each is not None))
            raise RestoreError(f"The run {shown(self.path)} has no checkpoint {number}; there are: {there}.")
        return by_number[number]

    def _kept(self) -> list[Checkpoint]:
        """The checkpoints of the run that is served, the one that it stands for last."""
        without: list[str] = []
        for path in self._runs():
            result = Result.from_path(path)
            kept = [checkpoint for checkpoint, _ in result.best_checkpoints]
            if result.checkpoint is not None and result.checkpoint not in kept:
                kept.insert(0, result.checkpoint)
            if kept:
                self._remark(path, without, result.error)
                return kept
            without.append(path)
        raise RestoreError(
            f"There is no model: the run {shown(self.path)} has no checkpoint (yet). A train function stores one with "
            "report(..., checkpoint=...)."
        )

    def _runs(self) -> list[str]:
        """The newest first."""
        resolved = resolve_storage(self.path)
        if isinstance(resolved, Path):
            return [str(run_dir.root) for run_dir in find_run_dirs(resolved)] or [self.path]
        return [uri for uri, _ in find_remote_runs(resolved)[0]] or [self.path]

    def _remark(self, path: str, without: list[str], error: BaseException | None) -> None:
        if without:
            logger.warning("%s has no checkpoint (yet): an older run is served, %s", shown(without[0]), shown(path))
        if error is not None:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            logger.warning("The run %s failed; what is served is from before that: %s", shown(path), reason[:200])

    def sign(self) -> Any:
        """The committed checkpoints: read without the journal, so that it can be asked often."""
        resolved = resolve_storage(self.path)
        if not isinstance(resolved, Path):
            return None
        seen = []
        for run_dir in find_run_dirs(resolved):
            seen.append((str(run_dir.root), run_dir.checkpoints()))
            if run_dir.checkpoints():
                break
        return seen


def origin_of(given: Any) -> Origin:
    """The place that a user means by a Checkpoint, a directory or a URI."""
    if isinstance(given, Checkpoint):
        return OneCheckpoint(given)
    if isinstance(given, OneCheckpoint | RunOrigin):
        return given
    if isinstance(given, Result):
        raise ConfigError("Give the checkpoint of the result: result.checkpoint.")
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"checkpoint is a {type(given).__name__}: give a Checkpoint, or the path of a run or checkpoint."
        )
    text = os.fspath(given)
    resolved = resolve_storage(text)
    if isinstance(resolved, str):
        return _remote(resolved)
    if not resolved.is_dir():
        problem = "is a file" if resolved.exists() else "does not exist"
        raise ConfigError(f"There is no model: {text} {problem}. {_WHAT_TO_GIVE}")
    if not is_checkpoint(resolved) and find_run_dirs(resolved):
        return RunOrigin(str(resolved))
    return OneCheckpoint(Checkpoint.from_directory(str(resolved)))


def check_has_model(place: Origin, given: str, *, own_predictor: bool) -> None:
    """Raise if there is no checkpoint at a place, or a directory that only a predictor of the user's own could read."""
    checkpoint = place.checkpoint(None)
    if own_predictor or checkpoint.kind != "local_path" or checkpoint.path is None:
        return
    if not is_checkpoint(Path(checkpoint.path)):
        raise ConfigError(
            f"There is no model: {shown(given)} is neither a run nor a checkpoint of paceline. {_WHAT_TO_GIVE} "
            "For files of your own, name the predictor that reads them as well."
        )


def is_checkpoint(directory: Path) -> bool:
    """Whether paceline wrote a checkpoint to a directory."""
    return any((directory / name).is_file() for name in (CHECKPOINT_METADATA_FILE, CHECKPOINT_MANIFEST_FILE))


def _remote(uri: str) -> Origin:
    if does_not_exist(uri, None, "a run"):
        raise ConfigError(f"There is no model: {shown(uri)} does not exist. {_WHAT_TO_GIVE}")
    checkpoint = Checkpoint.from_uri(uri)
    if checkpoint.read_file(CHECKPOINT_METADATA_FILE) is not None:
        return OneCheckpoint(checkpoint)
    return RunOrigin(uri)
