"""Where an experiment lives: its directory, the journal in it, and who may write there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.air.config import RunConfig
from paceline.air.errors import RestoreError, StorageError
from paceline.engine.base import Capabilities
from paceline.run.continuing import instead_of_search
from paceline.run.run_files import storage_of
from paceline.run.spec import Trial
from paceline.storage.files import make_private_dirs
from paceline.storage.journal import decode_record, last_records, read
from paceline.storage.run_dir import (
    LONGEST_TRIAL_NAME,
    SEARCH_JOURNALS,
    check_writable,
    experiment_dir_name,
    search_journal,
    trial_dir_name,
    uri_below,
    without_odd_characters,
)


@dataclass(frozen=True)
class ExperimentPlace:
    """The directory of an experiment. Several may share one, if they were given the same name."""

    root: Path
    name: str
    experiment_id: str
    uri: str | None = None
    """Where the directory is mirrored to."""

    @property
    def journal(self) -> Path:
        return self.root / search_journal(self.experiment_id[:5])

    @property
    def lock(self) -> Path:
        return self.root / f"experiment-{self.experiment_id[:5]}.lock"

    @property
    def origin(self) -> Path:
        """Says where the journal is mirrored to."""
        return origin_of(self.journal)

    @property
    def shown(self) -> str:
        """The place as the user knows it."""
        return self.uri or str(self.root)

    def trial_id(self, number: int) -> str:
        return f"{self.experiment_id[:5]}_{number:05d}"

    def assign(self, trial: Trial, name: str) -> Path:
        """Make `name` the trial's directory."""
        directory = self.root / name
        trial.local_path = str(directory)
        trial.path = f"{self.uri}/{name}" if self.uri else trial.local_path
        return directory

    def free_name(self, directory: str) -> str:
        """The name, or one like it if it is taken: what a trial has left is never written over."""
        name, number = directory, 0
        while (self.root / name).exists():
            number += 1
            name = f"{directory}_again{number}"
        return name


def new_place(run_config: RunConfig, trainable_name: str, capabilities: Capabilities) -> ExperimentPlace:
    """A directory for a new experiment, made and found to be writable. One of the same name is shared, not resumed."""
    name = run_config.name or experiment_dir_name(trainable_name)
    local_root, uri = storage_of(run_config, capabilities)
    check_writable(local_root)
    root = local_root / name
    make_private_dirs(root, on_disk=True)
    taken = {path.stem.partition("-")[2] for path in root.glob(SEARCH_JOURNALS)}
    while (experiment_id := uuid.uuid4().hex)[:5] in taken:
        pass
    return ExperimentPlace(root, name, experiment_id, uri and uri_below(uri, name))


def newest_journal(root: Path) -> Path:
    """The journal of the experiment that was last worked at. The times of files do not tell: copies have new ones."""
    journals = list(root.glob(SEARCH_JOURNALS))
    if not journals:
        raise no_search(str(root))
    return newest_of(journals)


def no_search(place: str, filesystem: Any = None) -> RestoreError:
    """The error for a place without a search, with the call for what is there instead."""
    instead = instead_of_search(place, filesystem) or f"There is no {SEARCH_JOURNALS} in it."
    return RestoreError(f"{place} does not hold a search. {instead}")


def newest_of(journals: Sequence[Path]) -> Path:
    """The one of several journals that was last written to."""
    if len(journals) == 1:
        return journals[0]
    return max(journals, key=lambda journal: (_last_time(journal), journal.stat().st_mtime))


def origin_of(journal: Path) -> Path:
    """The file that says where an experiment's journal is mirrored to."""
    return journal.with_suffix(".origin")


def _last_time(journal: Path) -> float:
    """The last time that the journal itself tells; 0.0 if there is none."""
    times: list[float] = []
    with contextlib.suppress(StorageError):  # damage is reported when this journal is chosen
        times = [record["time"] for record in map(decode_record, last_records(journal)) if "time" in record]
        if not times:  # many rows since
            times = [record["time"] for record in read(journal) if "time" in record]
    return times[-1] if times else 0.0


def directory_name(trial: Trial, creator: Callable[[Trial], str] | None) -> str:
    """A short name: the parameters are in params.json."""
    if creator is None:
        return trial_dir_name(trial.trainable_name, trial.trial_id)
    chosen = without_odd_characters(str(creator(trial))).lstrip(".-")
    if trial.trial_id in chosen and len(chosen.encode()) <= LONGEST_TRIAL_NAME:
        return chosen
    # Two trials may be given the same name by mistake; their files must not mix.
    room = LONGEST_TRIAL_NAME - len(trial.trial_id) - 1
    return f"{chosen.encode()[:room].decode(errors='ignore')}_{trial.trial_id}"
