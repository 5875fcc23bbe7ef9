"""The copy of a trial directory on remote storage.

The run works on a local directory; the mirror follows each commit. A remote checkpoint exists
when its manifest does: data goes up before the manifest, and the manifest goes away before the data.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from functools import partial
from pathlib import Path
from typing import Any

from paceline.air.errors import CheckpointNotFoundError, RunLockedError, StorageError
from paceline.storage.commit import commit
from paceline.storage.daemon_pool import DaemonPool
from paceline.storage.files import PRIVATE_DIR_MODE, delete_tree, make_private_dirs
from paceline.storage.filesystem import Filesystem
from paceline.storage.lock import describe_this_process
from paceline.storage.manifest import Manifest, path_of, read_manifest, verify
from paceline.storage.run_dir import MANIFEST_NAME, RunDir

LOCK_NAME = "lock"
_PARALLEL_TRANSFERS = 4
_REMOTE_MANIFEST = re.compile(rf"checkpoint_(\d{{6,}})/{re.escape(MANIFEST_NAME)}")
_EVENTS = "events.out.tfevents.*"


class Mirror:
    """Keeps remote storage in step with one local trial directory."""

    def __init__(self, filesystem: Filesystem, run_dir: RunDir) -> None:
        self.filesystem = filesystem
        self.run_dir = run_dir
        self._pushed: dict[Path, tuple[int, int]] = {}
        """State file -> (size, mtime) as it was uploaded."""
        self._lock_text = ""
        self._given_up = threading.Event()
        self._pushing_state = threading.Lock()
        """The lock is not given back while an upload's thread still writes the state there."""

    def push_checkpoint(self, number: int) -> None:
        """Upload a committed checkpoint. Until the last step it does not exist remotely."""
        local = self.run_dir.checkpoint(number)
        manifest = read_manifest(local)
        self.filesystem.delete(f"{local.name}/{MANIFEST_NAME}")
        pool = DaemonPool(_PARALLEL_TRANSFERS, "paceline-transfer")
        try:
            uploads = [pool.submit(partial(self._push_file, local, name)) for name in manifest.files]
            for upload in uploads:
                upload.result()
        finally:
            pool.cancel()
            pool.close()
        self._push_file(local, MANIFEST_NAME)

    def _push_file(self, checkpoint: Path, name: str) -> None:
        if self._given_up.is_set():
            raise StorageError(f"the upload of {checkpoint.name} was given up")
        self.filesystem.upload(checkpoint / path_of(name), f"{checkpoint.name}/{name}")

    def give_up_uploads(self) -> None:
        """Start no further file of a checkpoint: one that is under way never gets its manifest."""
        self._given_up.set()

    def remove_checkpoint(self, number: int) -> None:
        """Delete a remote checkpoint: first it stops existing, then its files go."""
        name = self.run_dir.checkpoint(number).name
        self.filesystem.delete(f"{name}/{MANIFEST_NAME}")
        self.filesystem.delete(name)

    def checkpoint_numbers(self) -> list[int]:
        """The remote checkpoints, oldest first."""
        matches = (_REMOTE_MANIFEST.fullmatch(name) for name in self.filesystem.list())
        return sorted(int(match[1]) for match in matches if match)

    def has_run(self) -> bool:
        """Whether some run has put its journal there."""
        return self.filesystem.exists(self.run_dir.journal.name)

    def push_state(self) -> None:
        """Upload the journal and what is written beside it, as far as it changed since the last time."""
        with self._pushing_state:
            for path in self._state_files():
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                version = status.st_size, status.st_mtime_ns
                if self._pushed.get(path) != version:
                    self.filesystem.upload(path, path.name)
                    self._pushed[path] = version

    def _state_files(self) -> list[Path]:
        here = self.run_dir
        named = [here.journal, here.params, here.result_json, here.progress_csv, here.error_txt]
        return [*named, *sorted(here.root.glob(_EVENTS))]

    def pull_state(self, into: Path) -> None:
        """Fetch the state files into a directory, so that the run can be continued there."""
        make_private_dirs(into)
        wanted = {path.name for path in self._state_files()}
        for name in self.filesystem.list():
            if name in wanted or (re.fullmatch(r"events\.out\.tfevents\.[^/]+", name)):
                self.filesystem.download(name, into / name)

    def pull_checkpoint(self, number: int, into: Path) -> Manifest:
        """Fetch a checkpoint, verify it and commit it as the directory `into`."""
        name = self.run_dir.checkpoint(number).name
        staging = into.with_name(f".{name}.tmp-pull-{secrets.token_hex(4)}")
        staging.mkdir(PRIVATE_DIR_MODE)
        try:
            manifest = self._download_tree(name, staging)
            commit(staging, into)
        except BaseException:
            delete_tree(staging)
            raise
        return manifest

    def _download_tree(self, name: str, staging: Path) -> Manifest:
        try:
            self.filesystem.download(f"{name}/{MANIFEST_NAME}", staging / MANIFEST_NAME)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(f"there is no {name} in {self.filesystem.label}") from error
        manifest = read_manifest(staging)
        for directory in manifest.empty_directories:
            (staging / path_of(directory)).mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        for file_name, entry in manifest.files.items():
            target = staging / path_of(file_name)
            target.parent.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
            self.filesystem.download(f"{name}/{file_name}", target)
            target.chmod(entry.mode)
        return verify(staging)

    def acquire(self) -> None:
        """Become the one driver that writes there, or raise RunLockedError at once."""
        holder = {**describe_this_process(), "token": secrets.token_hex(16)}
        text = json.dumps(holder)
        if not self._create_lock(text):
            self._break_if_stale(text)
        self._lock_text = text
        self.filesystem.abort_stale_uploads()

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        if self._lock_text and self._read(LOCK_NAME) == self._lock_text:
            self.filesystem.delete(LOCK_NAME)
        self._lock_text = ""

    def _create_lock(self, text: str) -> bool:
        # A put whose answer got lost is sent again and then finds its own file.
        return self.filesystem.create_exclusive(LOCK_NAME, text) or self._read(LOCK_NAME) == text

    def _break_if_stale(self, text: str) -> None:
        """Take the lock of a dead process of this host over; one at a time, so that nobody breaks a fresh lock."""
        found = self._read(LOCK_NAME)
        if not _is_stale(found):
            raise self._refusal(found)
        claim = f"{LOCK_NAME}.takeover"
        if not self.filesystem.create_exclusive(claim, text):
            raise self._refusal(found)
        try:
            if self._read(LOCK_NAME) != found:
                raise self._refusal(found)
            self.filesystem.delete(LOCK_NAME)
            if not self._create_lock(text):
                raise self._refusal(self._read(LOCK_NAME))
        finally:
            self.filesystem.delete(claim)

    def _read(self, name: str) -> str:
        try:
            return self.filesystem.read_text(name)
        except FileNotFoundError:
            return ""

    def _refusal(self, found: str) -> RunLockedError:
        holder = _parsed(found)
        return RunLockedError(
            f"another driver is writing {self.filesystem.label}: pid {holder.get('pid', 'unknown')} on host "
            f"{holder.get('host', 'unknown')}, since {holder.get('since', 'unknown')}. If that process is gone, "
            f"delete {self.filesystem.label}/{LOCK_NAME} (and {LOCK_NAME}.takeover, if it is there) and start again"
        )


def _parsed(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_stale(text: str) -> bool:
    """Whether the holder ran on this host and is gone. Of other hosts nothing is known."""
    holder, here = _parsed(text), describe_this_process()
    if holder.get("host") != here["host"]:
        return False
    if holder.get("boot_id") != here["boot_id"]:
        return True
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (KeyError, ValueError, OSError):
        return False
    return False
