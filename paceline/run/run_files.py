"""A run's directory as a driver holds it: created or reopened, locked, with its journal open."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paceline.air.background_pool import BackgroundPool
from paceline.air.checks import warn_at_users_line
from paceline.air.config import RunConfig
from paceline.air.errors import ConfigError, RestoreError, StorageError
from paceline.air.result import Status
from paceline.air.secrets import masked, secret_paths
from paceline.air.settings import as_json, fingerprint, need_code, plain_config, stored
from paceline.air.words import counted
from paceline.engine.base import Capabilities
from paceline.engine.local import drivers
from paceline.run import side_files
from paceline.run.found_runs import find_run_dirs, is_run, line_for, place_of
from paceline.run.records import (
    Header,
    RunRecords,
    header_of,
    identity_of,
    last_ending,
    no_journal,
    recorded_checkpoints,
    surviving_indices,
)
from paceline.run.spec import RunSpec, TrialIdentity, TrialPlace
from paceline.storage.commit import quarantine
from paceline.storage.files import SharedSync, delete_tree
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal
from paceline.storage.lease import LEASE_SECONDS
from paceline.storage.lock import RunLock, holder_of, is_held
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import (
    RunDir,
    check_writable,
    default_storage_root,
    experiment_dir_name,
    resolve_storage,
    trial_dir_name,
    uri_below,
)
from paceline.storage.twin import catch_up, read_origin, twin_of_trial, write_origin

_MOST_DRAWS = 100
_NEXT_WAITS = f"the next driver on another machine has to wait for {LEASE_SECONDS:.0f} s"


@dataclass
class RunFiles:
    """The files of one run while a driver writes them."""

    run_dir: RunDir
    journal: Journal
    lock: RunLock
    experiment_name: str
    identity: TrialIdentity
    mirror: Mirror | None = None
    records: RunRecords | None = None
    """What the journal already said; None for a new run."""
    surviving: list[int] = field(default_factory=list)
    """The indices of rank 0's rows that survive in the journal."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""
    warnings: list[str] = field(default_factory=list)
    """What was found damaged: shown to the user, and part of the result."""

    @property
    def attempts_so_far(self) -> int:
        return self.records.attempts if self.records is not None else 0

    @property
    def last_row(self) -> int:
        """The index of the last row that survives; 0 without one."""
        return self.surviving[-1] if self.surviving else 0

    @property
    def ended_as(self) -> Status | None:
        """How the last driver ended the run; None if it was cut off."""
        return self.records.ended_as if self.records is not None else None

    @property
    def training_ended(self) -> bool:
        """An earlier driver has come to the end of the training, and was waiting for validations."""
        return self.records is not None and self.records.training_ended

    @property
    def kept_in_memory(self) -> bool:
        """True if an earlier driver wrote no checkpoint to disk because it was told so."""
        records = self.records
        return records is not None and records.header.checkpoint_config.num_to_keep == 0 and not records.has_checkpoints

    def close(self, store_wait_s: float | None = None) -> list[str]:
        """Give everything back; the locks go even if the storage has gone: the next driver may find it again.

        The remote store gets `store_wait_s` seconds to answer; None: as long as its operations are tried again.
        Returns what the remote store refused: the run is over and its result is on the local disk.
        """
        warnings: list[str] = []
        drivers.leave_run(str(self.run_dir.root))
        try:
            try:
                self.journal.close()
            finally:
                if self.mirror is not None:
                    warnings = _let_go(self.mirror, store_wait_s)
        finally:
            self.lock.release()
        return warnings

    def register(self) -> None:
        """Let others find this run, and end what drivers that were killed have left on this machine."""
        ended = drivers.sweep()
        if ended:
            processes = counted(ended, "process", "processes")
            self.warnings.append(f"Ended {processes} that an earlier driver had left behind.")
        problem = drivers.enter_run(self.identity.experiment_id, str(self.run_dir.root))
        if problem:
            self.notes.append(f"If this driver is killed, the next one cannot end what it leaves behind: {problem}.")


def _let_go(mirror: Mirror, wait_s: float | None) -> list[str]:
    if mirror.lease.failing:
        problem = f"{mirror.filesystem.label} is out of reach: {mirror.lease.failing}"
    elif wait_s is None:
        return _push_and_release(mirror)
    else:
        pool = BackgroundPool("paceline-let-go")
        letting_go = pool.submit(partial(_push_and_release, mirror))
        pool.close(0)
        try:
            return letting_go.result(wait_s)
        except TimeoutError:
            problem = f"{mirror.filesystem.label} did not answer in time"
    mirror.lease.abandon()
    return [f"{problem}; {_only_here(mirror)}, and {_NEXT_WAITS}."]


def _only_here(mirror: Mirror) -> str:
    return f"the newest state is only in {mirror.run_dir.root}"


def _push_and_release(mirror: Mirror) -> list[str]:
    warnings = []
    for step, consequence in (
        (partial(mirror.push_state, complete=True), _only_here(mirror)),
        (mirror.release, _NEXT_WAITS),
    ):
        try:
            step()
        except OSError as error:
            warnings.append(f"{error}; {consequence}.")
    return warnings


def create(spec: RunSpec, capabilities: Capabilities, shared_sync: SharedSync | None = None) -> RunFiles:
    """A new directory; earlier runs of the same name stay as they are."""
    if spec.place is not None:
        return _create_in_search(spec, spec.place, shared_sync)
    config = spec.run_config
    name = config.name or experiment_dir_name(spec.trainer_name)
    local_root, filesystem_uri = storage_of(config, capabilities)
    check_writable(local_root)
    notes = _how_to_restore_earlier(local_root / name) if config.name else []
    experiment_uri = filesystem_uri and uri_below(filesystem_uri, name)
    identity, run_dir, mirror = _new_directory(spec, local_root / name, experiment_uri)
    with _locked(run_dir, mirror) as lock:
        files = RunFiles(run_dir, Journal(run_dir.journal), lock, name, identity, mirror, notes=notes)
        with _closed_on_error(files):
            files.register()
            files.journal.append(_header(spec, name, identity), finite=False)
            files.journal.sync()
    return files


def _create_in_search(spec: RunSpec, place: TrialPlace, shared_sync: SharedSync | None) -> RunFiles:
    """The directory that a search chose. What an earlier driver left there before it wrote a header is removed."""
    run_dir, mirror = RunDir(place.directory), None
    if not run_dir.create_new(parents=False):
        _make_room(run_dir)
        run_dir.create_new(parents=False)
    if place.uri is not None:
        mirror = Mirror(FsspecFilesystem(place.uri, spec.run_config.storage_filesystem), run_dir)
    with _locked(run_dir, mirror) as lock:
        journal = Journal(run_dir.journal, shared_sync)
        files = RunFiles(run_dir, journal, lock, place.experiment_name, spec.identity, mirror)
        with _closed_on_error(files):
            files.register()
            journal.append(_header(spec, place.experiment_name, spec.identity), finite=False)
            journal.flush()
    return files


def _make_room(run_dir: RunDir) -> None:
    try:
        RunRecords.read(run_dir)
    except (RestoreError, StorageError):
        if run_dir.has_barely_begun():
            delete_tree(run_dir.root)
        else:  # of a run whose journal is damaged there may be checkpoints
            quarantine(run_dir.root)
    else:
        raise StorageError(f"{run_dir.root} holds a run already; a new trial cannot be put there.")


def _header(spec: RunSpec, experiment_name: str, identity: TrialIdentity) -> Header:
    return Header(
        trainer=spec.trainer_name,
        experiment_name=experiment_name,
        trial_id=identity.trial_id,
        experiment_id=identity.experiment_id,
        experiment_tag=identity.experiment_tag,
        settings=saved_settings(spec),
        time=time.time(),
    )


def _new_directory(
    spec: RunSpec, experiment_dir: Path, experiment_uri: str | None
) -> tuple[TrialIdentity, RunDir, Mirror | None]:
    """A directory that no other run has. Trial ids are short, so that one is taken now and then: take another."""
    identity = spec.identity
    for _ in range(_MOST_DRAWS):
        trial_name = trial_dir_name(spec.trainer_name, identity.trial_id, identity.experiment_tag)
        run_dir, mirror = RunDir(experiment_dir / trial_name), None
        if experiment_uri is not None:
            filesystem = FsspecFilesystem(f"{experiment_uri}/{trial_name}", spec.run_config.storage_filesystem)
            filesystem.check()
            mirror = Mirror(filesystem, run_dir)
        if (mirror is None or not mirror.has_run()) and run_dir.create_new():
            return identity, run_dir, mirror
        identity = identity.with_another_trial_id()
    raise StorageError(f"{experiment_dir} holds too many trials to find a free name. Choose another RunConfig(name=).")


def reopen(spec: RunSpec, shared_sync: SharedSync | None = None, engine: str | None = None) -> RunFiles:
    """The directory of a run that shall be continued, on an engine of this name."""
    run_dir, mirror = _place_to_restore(spec)
    warnings = side_files.free_lock_name(run_dir.lock)
    with _locked(run_dir, mirror, spec.run_config.verbose if spec.place is None else 0) as lock:
        # Everything is read under the locks: the last driver may have written until it let go.
        if mirror is not None:
            catch_up(mirror, recorded_checkpoints)
        records = RunRecords.read(run_dir)
        header = records.header
        journal = Journal(run_dir.journal, shared_sync)
        files = RunFiles(run_dir, journal, lock, header.experiment_name, identity_of(header), mirror, records)
        with _closed_on_error(files):
            files.warnings += [*warnings, *side_files.repair(run_dir, continues=files.ended_as != "finished")]
            files.surviving = surviving_indices(run_dir)
            for text in _what_was_not_given_again(header.settings, spec.run_config, engine):
                if spec.run_config.verbose == 0 and spec.place is None:  # it matters, whatever is shown of the rest
                    warn_at_users_line(text)
                else:
                    files.notes.append(text)
            files.register()
            run_dir.sweep()
    return files


def _place_to_restore(spec: RunSpec) -> tuple[RunDir, Mirror | None]:
    assert spec.restore_path is not None
    path = resolve_storage(spec.restore_path)
    if isinstance(path, Path):
        if not (run_dir := RunDir(path)).journal.exists():
            raise no_journal(run_dir)
        if origin := read_origin(run_dir.origin):
            raise RestoreError(
                f"{path} is the local copy of {origin}: restore {origin!r}, or what follows would never get there. To "
                f"continue on this machine only, delete {run_dir.origin} first."
            )
        return run_dir, None
    run_dir = twin_of_trial(path) if spec.place is None else RunDir(spec.place.directory)
    filesystem = FsspecFilesystem(path, spec.run_config.storage_filesystem)
    filesystem.check()
    run_dir.create()
    return run_dir, Mirror(filesystem, run_dir)


def _what_was_not_given_again(settings: Mapping[str, Any], config: RunConfig, engine: str | None) -> Iterator[str]:
    """Code is never stored: say what the run had and this continuation of it has not."""
    missing = []
    if settings["had_callbacks"] and not need_code(config.callbacks):
        missing.append("callbacks")
    if settings["had_stop"] and config.stop is None:
        missing.append("a stop criterion")
    if missing:
        yield f"The run had {' and '.join(missing)}, which restore() cannot bring back: pass run_config=RunConfig(...)."
    before = settings.get("engine_object")
    if before is not None and engine not in (None, before):
        yield f"This run used engine {before!r}; it continues on {engine!r}. Pass run_config=RunConfig(engine=...)."


@contextlib.contextmanager
def _locked(run_dir: RunDir, mirror: Mirror | None, verbose: int = 0) -> Iterator[RunLock]:
    """Both locks; they stay with the caller unless the block raises."""
    lock = RunLock(run_dir.lock)
    lock.acquire()
    try:
        if mirror is not None:
            mirror.acquire(announce if verbose else None)
            write_origin(run_dir.origin, mirror.filesystem.label)
        yield lock
    except BaseException:
        if mirror is not None:
            with contextlib.suppress(OSError):  # what made the block end says more
                mirror.release()
        lock.release()
        raise


def announce(text: str) -> None:
    """Say something before there is a display."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _closed_on_error(files: RunFiles) -> Iterator[None]:
    """Nothing stays open if the block is interrupted."""
    try:
        yield
    except BaseException:
        files.close()
        raise


def storage_of(config: RunConfig, capabilities: Capabilities) -> tuple[Path, str | None]:
    """(local directory, URI to mirror it to): a run always works on a local directory."""
    chosen = config.storage_path
    resolved = resolve_storage(chosen if chosen is not None else default_storage_root())
    if isinstance(resolved, Path):
        return resolved, None
    if resolved.startswith("memory://") and not capabilities.in_driver_process:
        raise ConfigError(
            "storage_path memory:// lives in one process only: use it with RunConfig(engine='inline'), or "
            "choose a directory."
        )
    return default_storage_root(), resolved


def _how_to_restore_earlier(experiment_dir: Path) -> list[str]:
    """A run of the same name starts anew; say so if the one before was left unfinished.

    Only the end and the beginning of its journal are read: a long run's journal is large.
    """
    for trial in find_run_dirs(experiment_dir)[:1]:
        header = header_of(trial)
        try:
            ended = "running" if is_held(trial.lock) else last_ending(trial)
        except (RestoreError, OSError):
            continue
        if header is not None and is_run(header) and ended == "running":
            pid = holder_of(trial.lock).get("pid", "unknown")
            return [f"An earlier run named {experiment_dir.name!r} is still running (pid {pid}); this is a new run."]
        if header is not None and is_run(header) and ended != "finished":
            return [
                f"An earlier run named {experiment_dir.name!r} did not finish; this is a new run. To continue the "
                f'earlier one: {line_for(header, place_of(trial))}\nfit(resume="auto") would do so by itself.'
            ]
    return []


def saved_settings(spec: RunSpec) -> dict[str, Any]:
    """What restore() can take over by itself: plain values only, never code."""
    config = spec.run_config
    return {
        "config": plain_config(spec.config),
        "secrets": as_json(secret_paths(spec.config)) or [],
        "arguments": {name: as_json(value) for name, value in masked(dict(spec.arguments)).items()},
        "backend": dict(spec.backend_described),
        "resumed": spec.resume_from is not None,
        "resume_from": spec.resume_from.path if spec.resume_from is not None else None,
        "scaling_config": stored(spec.scaling),
        "run_config": stored(config),
        "datasets": sorted(spec.dataset_names),
        "again": list(spec.again) if spec.place is None else None,
        "code": fingerprint(spec.code) if spec.place is None else None,  # a search restores its trials itself
        "dataset_config": spec.ingest.configs_as_json() if spec.ingest is not None else {},
        "had_preprocessor": spec.ingest is not None and spec.ingest.preprocessor is not None,
        "had_callbacks": need_code(config.callbacks),
        "had_stop": config.stop is not None,
        "had_validation": spec.validation is not None,
        "engine_object": getattr(config.engine, "name", None),
    }
