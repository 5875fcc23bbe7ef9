"""A trial's directory as a driver holds it: created or reopened, locked, with its journal open."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.config import RunConfig
from paceline.air.errors import ConfigError, RestoreError, StorageError
from paceline.air.result import Status
from paceline.run import process_registry
from paceline.run.spec import RunSpec, TrialIdentity
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal, read
from paceline.storage.lock import RunLock
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import (
    RunDir,
    check_writable,
    default_storage_root,
    experiment_dir_name,
    resolve_storage,
    trial_dir_name,
)


@dataclass
class TrialFiles:
    """The files of one trial while a driver writes them."""

    run_dir: RunDir
    journal: Journal
    lock: RunLock
    experiment_name: str
    identity: TrialIdentity
    mirror: Mirror | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    """What the journal already said, rows left out; empty for a new trial."""
    last_row: int = 0
    """The index of the last of rank 0's rows that survives in the journal."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""

    @property
    def attempts_so_far(self) -> int:
        return 1 + max((record["attempt"] for record in self.records if record["kind"] == "attempt"), default=-1)

    @property
    def ended_as(self) -> Status | None:
        """How the last driver ended the run; None if it was cut off."""
        return ending(self.records)

    @property
    def kept_in_memory(self) -> bool:
        """True if an earlier driver wrote no checkpoint to disk because it was told so."""
        return self.records[0]["settings"]["num_to_keep"] == 0 and not has_checkpoints(self.records)

    def close(self) -> None:
        """Give everything back. The locks go even if the storage has gone: the next driver may find it again."""
        try:
            self.journal.close()
            if self.mirror is not None:
                self.mirror.push_state()
        finally:
            try:
                if self.mirror is not None:
                    self.mirror.release()
            finally:
                self.lock.release()


def create(spec: RunSpec, engine_name: str) -> TrialFiles:
    """A new trial directory; earlier trials of the same name stay as they are."""
    config, identity = spec.run_config, spec.identity
    name = config.name or experiment_dir_name(spec.trainer_name)
    trial_name = trial_dir_name(spec.trainer_name, identity.trial_id, identity.experiment_tag)
    local_root, filesystem_uri = _storage_of(config, engine_name)
    check_writable(local_root)
    notes = _how_to_restore_earlier(local_root / name, spec.trainer_name) if config.name else []
    run_dir = RunDir(local_root / name / trial_name)
    mirror = None
    if filesystem_uri is not None:
        filesystem = FsspecFilesystem(f"{filesystem_uri}/{name}/{trial_name}", config.storage_filesystem)
        filesystem.check()
        mirror = Mirror(filesystem, run_dir)
    run_dir.create()
    files = _open(run_dir, name, identity, mirror)
    files.notes += notes
    files.journal.append(
        {
            "kind": "run",
            "version": 1,
            "trainer": spec.trainer_name,
            "experiment_name": name,
            "trial_id": identity.trial_id,
            "experiment_id": identity.experiment_id,
            "experiment_tag": identity.experiment_tag,
            "settings": saved_settings(spec),
        },
        finite=False,
    )
    files.journal.sync()
    return files


def reopen(spec: RunSpec) -> TrialFiles:
    """The trial directory of a run that shall be continued."""
    assert spec.restore_path is not None
    path = resolve_storage(spec.restore_path)
    mirror = None
    if isinstance(path, str):
        name, trial_name = path.split("/")[-2:]
        run_dir = RunDir(default_storage_root() / name / trial_name)
        filesystem = FsspecFilesystem(path, spec.run_config.storage_filesystem)
        filesystem.check()
        mirror = Mirror(filesystem, run_dir)
        if not run_dir.journal.exists():
            run_dir.create()
            mirror.pull_state(run_dir.root)
    else:
        run_dir = RunDir(path)
    header = state_records(run_dir)[0]
    identity = TrialIdentity(header["trial_id"], header["experiment_id"], header["experiment_tag"])
    files = _open(run_dir, header["experiment_name"], identity, mirror)
    try:
        # Read under the lock: the last driver may have written until it let go.
        files.records = state_records(run_dir)
        files.last_row = last_row_index(run_dir)
        files.notes += _what_was_not_given_again(header["settings"], spec.run_config)
        ended = process_registry.end_survivors(run_dir.processes)
        if ended:
            files.notes.append(f"Ended {len(ended)} worker process(es) that the last driver had left behind.")
        run_dir.sweep()
    except BaseException:
        files.close()
        raise
    return files


def _what_was_not_given_again(settings: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Code is never stored: say what the run had and this continuation of it has not."""
    missing = []
    if settings["had_callbacks"] and not config.callbacks:
        missing.append("callbacks")
    if settings["had_stop"] and config.stop is None:
        missing.append("a stop criterion")
    if not missing:
        return []
    return [f"The run had {' and '.join(missing)}, which restore() cannot bring back: pass run_config=RunConfig(...)."]


def _open(run_dir: RunDir, name: str, identity: TrialIdentity, mirror: Mirror | None) -> TrialFiles:
    lock = RunLock(run_dir.lock)
    lock.acquire()
    try:
        if mirror is not None:
            mirror.acquire()
        journal = Journal(run_dir.journal)
    except BaseException:
        lock.release()
        raise
    return TrialFiles(run_dir, journal, lock, name, identity, mirror)


def _storage_of(config: RunConfig, engine_name: str) -> tuple[Path, str | None]:
    """(local directory, URI to mirror it to): a run always works on a local directory."""
    chosen = config.storage_path
    resolved = resolve_storage(chosen if chosen is not None else default_storage_root())
    if isinstance(resolved, Path):
        return resolved, None
    if resolved.startswith("memory://") and engine_name != "inline":
        raise ConfigError(
            "storage_path memory:// lives in one process only: use it with RunConfig(engine='inline'), or "
            "choose a directory."
        )
    return default_storage_root(), resolved


def _how_to_restore_earlier(experiment_dir: Path, trainer_name: str) -> list[str]:
    """A run of the same name starts anew; say so where an earlier one was left unfinished."""
    for trial in find_trials(experiment_dir):
        try:
            unfinished = ending(state_records(trial)) != "finished"
        except (RestoreError, StorageError):
            continue
        if unfinished:
            return [
                f"An earlier run named {experiment_dir.name!r} did not finish; this one starts anew. To continue "
                f"the earlier one: {trainer_name}.restore({str(trial.root)!r}, train_loop_per_worker=...).fit()"
            ]
    return []


def find_trials(path: Path) -> list[RunDir]:
    """The trial directories at or below an experiment's directory, newest first."""
    candidates = [path, *path.glob("*/")] if path.is_dir() else []
    found = [RunDir(candidate) for candidate in candidates if (candidate / "journal.jsonl").is_file()]
    return sorted(found, key=lambda run_dir: run_dir.journal.stat().st_mtime, reverse=True)


def find_remote_trials(uri: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(URI, state records) of the trials at or one level below a URI, the one last worked at first."""
    store = FsspecFilesystem(uri)
    found = []
    for name in store.list():
        *folders, file = name.split("/")
        if file == "journal.jsonl" and len(folders) <= 1:
            with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
                run_dir = RunDir(Path(folder))
                store.download(name, run_dir.journal)
                found.append(("/".join([uri, *folders]), state_records(run_dir)))
    return sorted(found, key=lambda each: max(record.get("time", 0.0) for record in each[1]), reverse=True)


def state_records(run_dir: RunDir) -> list[dict[str, Any]]:
    """The journal without its rows; the first record describes the run."""
    try:
        records = [record for record in read(run_dir.journal) if record.get("kind") != "row"]
    except FileNotFoundError:
        raise RestoreError(f"{run_dir.root} holds no run: it has no {run_dir.journal.name}.") from None
    if not records or records[0].get("kind") != "run":
        raise RestoreError(f"{run_dir.journal} does not begin with a run's description; it cannot be continued.")
    return records


def last_row_index(run_dir: RunDir) -> int:
    """How far rank 0's surviving rows go."""
    last = 0
    for record in read(run_dir.journal):
        if record["kind"] == "attempt":
            last = min(last, record["start_index"])
        elif record["kind"] == "row" and record["rank"] == 0:
            last = record["index"]
    return last


def ending(records: list[dict[str, Any]]) -> Status | None:
    """How a run ended according to its journal; None if its driver was cut off."""
    last = [record for record in records if record["kind"] in ("attempt", "end")]
    return last[-1]["status"] if last and last[-1]["kind"] == "end" else None


def has_checkpoints(records: list[dict[str, Any]]) -> bool:
    """Whether the run ever committed a checkpoint of its own."""
    return any(record["kind"] == "checkpoint" for record in records)


def saved_settings(spec: RunSpec) -> dict[str, Any]:
    """What restore() can take over by itself: plain values only, never code."""
    scaling, config = spec.scaling, spec.run_config
    return {
        "config": as_json(spec.config),
        "resumed": spec.resume_from is not None,
        "resume_from": spec.resume_from.path if spec.resume_from is not None else None,
        "num_workers": spec.world_size,
        "use_gpu": scaling.use_gpu,
        "resources_per_worker": as_json(scaling.resources_per_worker),
        "num_to_keep": config.checkpoint_config.num_to_keep,
        "checkpoint_score_attribute": config.checkpoint_config.checkpoint_score_attribute,
        "checkpoint_score_order": config.checkpoint_config.checkpoint_score_order,
        "async_save": config.checkpoint_config.async_save,
        "keep_all_ranks": config.checkpoint_config.keep_all_ranks,
        "max_failures": config.failure_config.max_failures,
        "stop": as_json(config.stop) if isinstance(config.stop, Mapping) else None,
        "had_callbacks": bool(config.callbacks),
        "had_stop": config.stop is not None,
    }


def as_json(value: Any) -> Any:
    """The value if it is plain JSON, else None."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None
