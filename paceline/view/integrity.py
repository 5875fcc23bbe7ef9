"""Whether what a run has stored is as it was written: each file of its checkpoints, each record of its journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    NewerVersionError,
    RestoreError,
    StorageError,
)
from paceline.run.found_runs import fetched_run
from paceline.run.records import FORMAT
from paceline.storage.files import storage_error
from paceline.storage.run_dir import MANIFEST_NAME, RunDir, resolve_storage
from paceline.view.facts import run_facts

State = Literal["ok", "damaged", "unreadable", "gone"]
"""gone: a live run has just deleted it."""


class Verified(Struct):
    """A journal or a checkpoint that was read as a whole."""

    kind: Literal["journal", "checkpoint"]
    path: str
    state: State
    size: int = 0
    """Bytes; 0 if that is not known."""
    problem: str = ""


def verify_run(path: str, filesystem: Any = None) -> Iterator[Verified]:
    """The journal of a run, then each checkpoint that it keeps. Takes as long as reading all of them does."""
    journal = verify_journal(path, filesystem)
    yield journal
    try:
        facts = run_facts(path, filesystem)
    except (RestoreError, StorageError) as error:
        if journal.state == "ok":  # otherwise that is what is wrong
            yield Verified("journal", path, "unreadable", problem=str(error))
        return
    listed = [each for each in facts.checkpoints if each.kept or each.missing]
    for each in listed:
        place = each.path or f"{path}/{RunDir(Path()).checkpoint(each.number).name}"
        if each.kept:
            yield verify_checkpoint(place, filesystem, size=each.size, is_live=facts.summary.alive)
        elif os.path.isdir(place):
            yield Verified("checkpoint", place, "damaged", problem=f"{place} has no {MANIFEST_NAME}.")
        elif each is listed[-1] and not facts.summary.alive:  # its user may have deleted an older one for the space
            yield Verified("checkpoint", place, "damaged", problem=f"{place} is gone, although it is the newest.")


def verify_checkpoint(path: str, filesystem: Any = None, *, size: int = 0, is_live: bool = False) -> Verified:
    """One checkpoint; a run that `is_live` may delete it meanwhile."""
    state: State = "ok"
    problem = ""
    try:
        Checkpoint(path, filesystem).verify()
    except CheckpointCorruptError as error:
        state, problem = "damaged", str(error)
    except CheckpointNotFoundError as error:
        state, problem = ("gone", "") if is_live else ("damaged", str(error))
    except (CheckpointError, OSError) as error:
        state, problem = "unreadable", str(error)
    return Verified("checkpoint", path, state, size, problem)


def verify_journal(path: str, filesystem: Any = None) -> Verified:
    """Every record of a run's journal. What a killed driver left of a last one is not damage."""
    place = resolve_storage(path)
    if isinstance(place, Path):
        return _verified(RunDir(place).journal, str(RunDir(place).journal))
    try:
        with fetched_run(place, filesystem) as (store, run_dir):
            return _verified(run_dir.journal, f"{store.label}/{run_dir.journal.name}")
    except (RestoreError, StorageError) as error:
        return _bad(path, error, str(error))


def _verified(journal: Path, shown: str) -> Verified:
    try:
        return Verified("journal", shown, "ok", _read_all(journal))
    except (RestoreError, StorageError) as error:
        return _bad(shown, error, str(error).replace(str(journal), shown))


def _bad(path: str, error: RestoreError | StorageError, text: str) -> Verified:
    is_refused = isinstance(error, NewerVersionError) or (isinstance(error, StorageError) and error.errno is not None)
    return Verified("journal", path, "unreadable" if is_refused else "damaged", problem=text)


def _read_all(journal: Path) -> int:
    try:
        for _ in FORMAT.read(journal):
            pass
        return journal.stat().st_size
    except FileNotFoundError as error:
        raise RestoreError(f"{journal} is gone.") from error
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, journal, "reading the journal") from error
