"""A run on remote storage has a local directory too, which may have fallen behind.

Another driver, on another machine, may have continued the run since this directory was last written. Its journal
tells: a journal only ever grows, so the one that begins with all of the other is the newer one.

A file `origin` says which place the directory is the twin of: two buckets may hold runs of the same name.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from paceline.air.errors import RestoreError
from paceline.air.secrets import without_credentials
from paceline.storage.commit import quarantine, to_trash
from paceline.storage.files import storage_error, write_durably
from paceline.storage.journal import end_of_whole_records
from paceline.storage.journal_parts import fetch_journal
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import MANIFEST_NAME, SEARCH_JOURNALS, RunDir, default_storage_root, name_from_uri

_CHUNK = 1024 * 1024


def twin_of_trial(uri: str) -> RunDir:
    """The local directory of a trial on remote storage.

    One that does not say what it is the twin of was made by an earlier version; `catch_up` compares the histories.
    """
    experiment_uri, _, trial_name = uri.rpartition("/")
    name = name_from_uri(experiment_uri)
    usual = RunDir(default_storage_root() / name / trial_name)
    if read_origin(usual.origin) in ("", without_credentials(uri)):
        return usual
    return RunDir(default_storage_root() / name_of_its_own(name, experiment_uri) / trial_name)


def twin_here(uri: str) -> Path | None:
    """The local directory of a run or a search on remote storage, if this machine drives it, or has driven it."""
    label, run = without_credentials(uri), twin_of_trial(uri)
    if run.journal.is_file() and read_origin(run.origin) == label:
        return run.root
    name = name_from_uri(uri)
    for root in (default_storage_root() / name, default_storage_root() / name_of_its_own(name, uri)):
        if any(read_origin(journal.with_suffix(".origin")) == label for journal in root.glob(SEARCH_JOURNALS)):
            return root
    return None


def name_of_its_own(name: str, experiment_uri: str) -> str:
    """Another name for the local directory of an experiment, where that of another place has the usual one."""
    return f"{name}-{hashlib.sha256(without_credentials(experiment_uri).encode()).hexdigest()[:8]}"


def read_origin(path: Path) -> str:
    """What an origin file says; "" if there is none, or if it is damaged: then the histories are compared."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return ""
    except OSError as error:
        raise storage_error(error, path, "reading the origin") from error
    return text if "://" in text else ""


def write_origin(path: Path, uri: str) -> None:
    """Say what a directory is the twin of. A directory in the file's place is put aside."""
    if path.is_dir():
        quarantine(path)
    try:
        write_durably(path, without_credentials(uri).encode())
    except OSError as error:
        raise storage_error(error, path, "writing the origin") from error


def catch_up(mirror: Mirror, recorded_checkpoints: Callable[[Path], set[int]]) -> None:
    """Bring the local directory to the newer of the two histories. Call it with both locks held.

    `recorded_checkpoints` reads from a journal which checkpoints it lists.
    """
    here = mirror.run_dir
    with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
        there = RunDir(Path(folder))
        try:
            fetch_journal(mirror.filesystem, there.journal.name, there.journal)
        except FileNotFoundError:
            return  # the run's first driver ended before it had uploaded anything
        local, remote = _length(here.journal), _length(there.journal)
        if not _same_beginning(here.journal, there.journal, min(local, remote)):
            raise RestoreError(
                f"{here.root} and {mirror.filesystem.label} hold different histories of this run: both were continued "
                f"after they had parted. To continue the remote one, delete the local copy at {here.root} and "
                "restore again."
            )
        mirror.journal_parts.pushed = remote
        if remote <= local and here.journal.exists():
            return
    recorded = recorded_checkpoints(here.journal) if local else set()
    mirror.pull_state(here.root)
    _drop_unshared_checkpoints(mirror, recorded)


def newer_of(local: Path, remote: Path, label: str) -> None:
    """Make the local journal the longer of the two; one must be the beginning of the other."""
    here, there = _length(local), _length(remote)
    if not _same_beginning(local, remote, min(here, there)):
        raise RestoreError(
            f"{local} and {label} hold different histories: both were continued after they had parted. To continue "
            "the remote one, delete the local one and restore again."
        )
    if there > here or not local.exists():
        write_durably(local, remote.read_bytes())


def _length(journal: Path) -> int:
    """Without a torn tail, which no driver ever continued."""
    return end_of_whole_records(journal) if journal.exists() else 0


def _same_beginning(first: Path, second: Path, length: int) -> bool:
    if length == 0:
        return True
    with open(first, "rb") as one, open(second, "rb") as other:
        while length > 0:
            size = min(length, _CHUNK)
            if one.read(size) != other.read(size):
                return False
            length -= size
    return True


def _drop_unshared_checkpoints(mirror: Mirror, recorded: set[int]) -> None:
    """A checkpoint that was renamed here but never recorded may bear a number that the other driver used again."""
    remote = set(mirror.checkpoint_numbers())
    for number, path in mirror.run_dir.checkpoints():
        if number in remote:
            text = mirror.filesystem.read_text(f"{path.name}/{MANIFEST_NAME}")
            shared = text.encode() == (path / MANIFEST_NAME).read_bytes()
        else:
            shared = number in recorded
        if not shared:
            to_trash(path)
