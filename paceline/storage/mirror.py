"""The copy of a trial directory on remote storage.

The run works on a local directory; the mirror follows each commit. A remote checkpoint exists
when its manifest does: data goes up before the manifest, and the manifest goes away before the data.
Whatever changes there is preceded by a look at the lease: another driver may have taken over meanwhile.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from paceline.air.background_pool import in_parallel
from paceline.air.errors import CheckpointNotFoundError, StorageError
from paceline.air.manifest import FileEntry, Manifest, hash_of, path_of, read_manifest, verify
from paceline.storage.commit import commit
from paceline.storage.files import PRIVATE_DIR_MODE, delete_tree, make_private_dirs
from paceline.storage.filesystem import Filesystem
from paceline.storage.journal_parts import JournalParts, fetch_journal
from paceline.storage.lease import Lease
from paceline.storage.run_dir import MANIFEST_NAME, RunDir

_PARALLEL_TRANSFERS = 4
_REMOTE_MANIFEST = re.compile(rf"checkpoint_(\d{{6,}})/{re.escape(MANIFEST_NAME)}")
_STAGING = ".staging"
_VIEW_GROWTH = 1.25
_EVENTS = "events.out.tfevents.*"


def staging_prefix(attempt: int) -> str:
    """Below which ranks that do not see the driver's disk upload the checkpoints of an attempt."""
    return f"{_STAGING}/{attempt}"


def numbers_in(names: Iterable[str]) -> list[int]:
    """The checkpoints among the files of a store, oldest first: those that have a manifest."""
    matches = (_REMOTE_MANIFEST.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _transfer(transfers: Iterable[Callable[[], None]]) -> None:
    in_parallel(transfers, "paceline-transfer", _PARALLEL_TRANSFERS)


class Mirror:
    """Keeps remote storage in step with one local trial directory."""

    def __init__(self, filesystem: Filesystem, run_dir: RunDir) -> None:
        self.filesystem = filesystem
        self.run_dir = run_dir
        self.lease = Lease(filesystem)
        self.journal_parts = JournalParts(filesystem, run_dir.journal)
        self._pushed: dict[Path, tuple[int, int]] = {}
        """File beside the journal -> (size, mtime) as it was uploaded."""
        self._given_up = threading.Event()
        self._pushing_state = threading.Lock()
        """The lock is not given back while an upload's thread still writes the state there."""

    def push_checkpoint(self, number: int) -> None:
        """Upload a committed checkpoint. Until the last step it does not exist remotely."""
        local = self.run_dir.checkpoint(number)
        manifest = read_manifest(local)
        self.lease.check()
        self.filesystem.delete(f"{local.name}/{MANIFEST_NAME}")
        _transfer([partial(self._push_file, local, name) for name in manifest.files])
        self.lease.check()  # the files may have taken long
        self._push_file(local, MANIFEST_NAME)

    def commit_staged(
        self, number: int, attempt: int, manifest: Manifest, places: Mapping[str, str], added: Mapping[str, bytes]
    ) -> None:
        """Make a checkpoint of what ranks have uploaded below the staging prefix: `places` says where each file is.

        Small files may be `added`. Until the last step the checkpoint does not exist.
        """
        name = self.run_dir.checkpoint(number).name
        entries = {added_name: FileEntry(len(content), hash_of(content)) for added_name, content in added.items()}
        complete = replace(manifest, files={**manifest.files, **entries})
        prefix = staging_prefix(attempt)
        self.lease.check()
        self.filesystem.delete(f"{name}/{MANIFEST_NAME}")
        _transfer(
            [
                partial(self._copy, f"{prefix}/{place}", name, file)
                for file, place in places.items()
                if file not in added
            ]
        )
        for added_name, content in added.items():
            self.filesystem.write_bytes(f"{name}/{added_name}", content)
        self.lease.check()  # the files may have taken long
        self._check_not_given_up(name)
        self.filesystem.write_bytes(f"{name}/{MANIFEST_NAME}", complete.encode())
        for place in {place.partition("/")[0] for place in places.values()}:
            self._delete_staged(f"{prefix}/{place}")

    def staged(self) -> list[str]:
        """The names of files that ranks have uploaded and nobody has committed."""
        return self.filesystem.list(_STAGING)

    def remove_staged(self, attempt: int | None = None) -> None:
        """Delete what the ranks of an attempt (None: of any) have uploaded and nobody has committed."""
        self.lease.check()
        self._delete_staged(_STAGING if attempt is None else staging_prefix(attempt))

    def _delete_staged(self, prefix: str) -> None:
        with contextlib.suppress(StorageError):  # nobody needs it, and the next attempt or driver tries again
            self.filesystem.delete(prefix)

    def _push_file(self, checkpoint: Path, name: str) -> None:
        self._check_not_given_up(checkpoint.name)
        self.filesystem.upload(checkpoint / path_of(name), f"{checkpoint.name}/{name}")

    def _copy(self, staged: str, checkpoint: str, name: str) -> None:
        self._check_not_given_up(checkpoint)
        self.filesystem.copy(staged, f"{checkpoint}/{name}")

    def _check_not_given_up(self, checkpoint: str) -> None:
        if self._given_up.is_set():
            raise StorageError(f"the upload of {checkpoint} was given up")

    def give_up_uploads(self) -> None:
        """Start no further file of a checkpoint: one that is under way never gets its manifest."""
        self._given_up.set()

    def remove_checkpoint(self, number: int) -> None:
        """Delete a remote checkpoint: first it stops existing, then its files go."""
        name = self.run_dir.checkpoint(number).name
        self.lease.check()
        self.filesystem.delete(f"{name}/{MANIFEST_NAME}")
        self.filesystem.delete(name)

    def checkpoint_numbers(self) -> list[int]:
        """The remote checkpoints, oldest first."""
        return numbers_in(self.filesystem.list())

    def has_run(self) -> bool:
        """Whether some run has put its journal there."""
        return self.filesystem.exists(self.run_dir.journal.name)

    def push_state(self, *, complete: bool = False) -> None:
        """Upload what the journal got since the last time, and what is written beside it if it changed.

        Files that repeat the journal's rows go up when they have grown by a quarter, or with `complete`: the cost
        of a checkpoint must not grow with the run, and a restore rebuilds them.
        """
        with self._pushing_state:
            self.lease.check()
            self.journal_parts.push()
            here = self.run_dir
            for path in (here.params, here.error_txt, *sorted(here.trackers_dir.glob("*.json"))):
                self._push_if_changed(path)
            for path in (here.result_json, here.progress_csv, *sorted(here.root.glob(_EVENTS))):
                self._push_if_changed(path, growth=1.0 if complete else _VIEW_GROWTH)

    def _push_if_changed(self, path: Path, growth: float = 1.0) -> None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        version = status.st_size, status.st_mtime_ns
        size_before, _ = before = self._pushed.get(path, (0, 0))
        if version != before and not size_before <= status.st_size < size_before * growth:
            self.filesystem.upload(path, path.relative_to(self.run_dir.root).as_posix())
            self._pushed[path] = version

    def pull_state(self, into: Path) -> None:
        """Fetch the state files into a directory, so that the run can be continued there."""
        make_private_dirs(into)
        here = self.run_dir
        wanted = {path.name for path in (here.params, here.result_json, here.progress_csv, here.error_txt)}
        for name in self.filesystem.list():
            if name == here.journal.name:
                fetch_journal(self.filesystem, name, into / name)
            elif name in wanted or (re.fullmatch(r"events\.out\.tfevents\.[^/]+", name)):
                self.filesystem.download(name, into / name)
            elif re.fullmatch(r"trackers/[\w.-]+\.json", name):
                make_private_dirs(RunDir(into).trackers_dir)
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

    def acquire(self, announce: Callable[[str], None] | None = None) -> None:
        """Become the one driver that writes there, or raise RunLockedError; `announce` is called before a wait."""
        self.lease.acquire(announce)
        self.filesystem.abort_stale_uploads()

    def release(self) -> None:
        """Let the next driver write there."""
        self.lease.release()
