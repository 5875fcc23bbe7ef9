"""Every path and file name of a trial directory, in one place."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
import unicodedata
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from paceline.air.errors import ConfigError, StorageError
from paceline.air.process import start_time
from paceline.storage.files import (
    PRIVATE_DIR_MODE,
    PRIVATE_FILE_MODE,
    delete_tree,
    make_private_dirs,
    storage_error,
)

RESULTS_VARIABLE = "PACELINE_RESULTS_DIR"
MANIFEST_NAME = "MANIFEST.json"
METADATA_NAME = ".metadata.json"
LONGEST_TRIAL_NAME = 100
"""Bytes. Long names are the usual reason for paths that other tools cannot open."""

_CHECKPOINT = re.compile(r"checkpoint_(\d{6,})")
_LEFTOVER = re.compile(r"\.checkpoint_\d{6,}\.tmp-(\d+|pull)-[0-9a-f]{8}|\.trash-checkpoint_\d{6,}-[0-9a-f]{8}")
"""Staged checkpoints and half-deleted ones: exactly the names that are made in this package."""
_SMALL_LEFTOVER = re.compile(r"\.(journal\.jsonl|origin|params\.json|error\.txt)\.tmp-(\d{1,10})")
_TRACKER_LEFTOVER = re.compile(r"\.(.+\.json)\.tmp-(\d{1,10})")
"""Small files on their way to their name, with the pid of their writer."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NOT_IN_TAG = re.compile(r"[^\w.=,+-]+")
_ROOM_FOR_NAMES = 200
"""Bytes kept free below the system's path limit for the names that a run puts under its storage path."""


SEARCH_JOURNALS = "experiment-*.jsonl"


def search_journal(short_id: str) -> str:
    """The file that makes a directory that of a search; the ids of its trials begin with the same text."""
    return f"experiment-{short_id}.jsonl"


def requests_of_search(journal: Path) -> Path:
    """Where somebody asks the driver of a search for something; it exists only meanwhile."""
    return journal.with_suffix(".requests")


class RunDir:
    """One trial's directory. Building it touches nothing; `create()` does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def origin(self) -> Path:
        return self.root / "origin"

    @property
    def params(self) -> Path:
        return self.root / "params.json"

    @property
    def result_json(self) -> Path:
        return self.root / "result.json"

    @property
    def progress_csv(self) -> Path:
        return self.root / "progress.csv"

    @property
    def error_txt(self) -> Path:
        return self.root / "error.txt"

    @property
    def requests(self) -> Path:
        """Where somebody asks the driver for something; it exists only meanwhile."""
        return self.root / "requests"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"

    @property
    def trackers_dir(self) -> Path:
        return self.root / "trackers"

    def __repr__(self) -> str:
        return f"RunDir({str(self.root)!r})"

    def log(self, rank: int) -> Path:
        return self.logs_dir / f"rank_{rank}.log"

    def tracker(self, name: str) -> Path:
        """How far a tracker has come with the run."""
        return self.trackers_dir / f"{name}.json"

    def rank_dir(self, rank: int) -> Path:
        """The working directory of a worker."""
        return self.root / f"rank_{rank}"

    def checkpoint(self, number: int) -> Path:
        return self.root / f"checkpoint_{number:06d}"

    def staging(self, number: int, attempt: int) -> Path:
        """A fresh name for writing a checkpoint; no two calls give the same one."""
        return self.root / f".checkpoint_{number:06d}.tmp-{attempt}-{secrets.token_hex(4)}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """The committed checkpoints, oldest number first: the directories that have a manifest."""
        found: list[tuple[int, Path]] = []
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    match = _CHECKPOINT.fullmatch(entry.name)
                    if match and entry.is_dir(follow_symlinks=False):
                        path = self.root / entry.name
                        if (path / MANIFEST_NAME).is_file():
                            found.append((int(match[1]), path))
        except OSError as error:
            raise storage_error(error, self.root, "listing the checkpoints") from error
        return sorted(found)

    def has_barely_begun(self) -> bool:
        """Whether it is empty, or has only what a driver leaves if it dies before it has described its run."""
        if not os.path.lexists(self.root):
            return True
        first_names = {self.lock.name, self.logs_dir.name, self.journal.name}
        return self.root.is_dir() and first_names.issuperset(os.listdir(self.root))

    def create(self) -> None:
        """Make the directory, for this user alone; one that is already there must be this user's own."""
        if os.path.lexists(self.root):
            self._check_is_ours()
        make_private_dirs(self.root)
        make_private_dirs(self.logs_dir)

    def create_new(self, *, parents: bool = True) -> bool:
        """Make the directory unless something of that name is there: True for exactly one of several callers.

        With parents=False the directory above it must be there: one that is gone was deleted or unmounted.
        """
        if parents:
            make_private_dirs(self.root.parent, on_disk=True)
        try:
            os.mkdir(self.root, PRIVATE_DIR_MODE)
        except FileExistsError:
            return False
        except OSError as error:
            raise storage_error(error, self.root, "creating the directory") from error
        make_private_dirs(self.logs_dir)
        return True

    def _check_is_ours(self) -> None:
        status = os.lstat(self.root)
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(
                errno.ELOOP,
                "the trial directory is a symbolic link, which somebody else may have put there. "
                "Remove it, or choose another name",
                str(self.root),
            )
        if not stat.S_ISDIR(status.st_mode):
            raise StorageError(errno.ENOTDIR, "the trial directory's name is taken by a file", str(self.root))
        if status.st_uid != os.geteuid():
            raise StorageError(
                errno.EPERM,
                f"the trial directory belongs to uid {status.st_uid}, this process runs as uid {os.geteuid()}. "
                "Choose another name or storage_path",
                str(self.root),
            )

    def leftovers(self) -> list[Path]:
        """What a killed driver or worker left half-written or half-deleted: nothing ever reads it. Only looks."""
        try:
            found = [self.root / name for name in os.listdir(self.root) if _is_leftover(name)]
        except FileNotFoundError:  # moved away or unmounted
            return []
        with contextlib.suppress(OSError):  # most runs have no trackers
            small = (name for name in os.listdir(self.trackers_dir) if _is_unfinished(_TRACKER_LEFTOVER, name))
            found += [self.trackers_dir / name for name in small]
        return found

    def sweep(self) -> list[Path]:
        """Remove the leftovers; returns what was removed. Call it with the lock held.

        One that resists is left to the next sweep.
        """
        leftovers = self.leftovers()
        for leftover in leftovers:
            with contextlib.suppress(StorageError):
                delete_tree(leftover)
        return [leftover for leftover in leftovers if not os.path.lexists(leftover)]


def _is_leftover(name: str) -> bool:
    """Whether a name is certainly that of something nobody will finish."""
    return _is_unfinished(_SMALL_LEFTOVER, name) or _LEFTOVER.fullmatch(name) is not None


def _is_unfinished(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a small file was on its way to its name when its writer died."""
    found = pattern.fullmatch(name)
    return found is not None and start_time(int(found[2])) is None


def default_storage_root() -> Path:
    """Where results go if nobody says otherwise."""
    chosen = os.environ.get(RESULTS_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / "paceline_results"


def experiment_dir_name(trainer_name: str) -> str:
    return f"{trainer_name}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"


def trial_dir_name(trainer: str, trial_id: str, tag: str = "") -> str:
    """`<Trainer>_<trial id>_<tag>`, cut to a length that stays handy."""
    name = f"{trainer}_{trial_id}"
    cleaned = without_odd_characters(tag)
    if cleaned:
        name = f"{name}_{cleaned}"
    return name.encode()[:LONGEST_TRIAL_NAME].decode(errors="ignore")


def without_odd_characters(text: str) -> str:
    """The text as part of a file name."""
    return _NOT_IN_TAG.sub("_", text).strip("_")


def is_plain_name(name: object) -> bool:
    """Whether a name that was read from a file can only be that of something directly in a directory."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def uri_below(uri: str, name: str) -> str:
    """The URI of the directory `name` at `uri`.

    What has a meaning in URIs, or in the patterns and chains of fsspec, is percent-encoded. Letters of any script and
    the signs that people write parameters with stay as they are, so that names in a bucket are readable.
    """
    return f"{uri}/{''.join(map(_in_uri, name))}"


def _in_uri(sign: str) -> str:
    is_readable = unicodedata.category(sign)[0] in "LMN" or sign in "=+,()"
    return sign if is_readable else quote(sign, safe="")


def name_from_uri(uri: str) -> str:
    """The name of the directory that a URI ends with: what `uri_below` was given."""
    last = uri.rpartition("/")[2]
    name = unquote(last)
    return name if is_plain_name(name) else last


def resolve_storage(path: str | os.PathLike[str]) -> Path | str:
    """A local place as an absolute path without links, anything else as the URI it is.

    Links are resolved once, at the start, so that a link that is changed later cannot split a run in two.
    """
    text = os.fspath(path)
    if text.startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"storage path {text!r}: a file:// URI needs three slashes, as in file:///data/results")
        text = unquote(parts.path)
    elif _URI.match(text):
        return text.rstrip("/")
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, or a home that does not exist
        raise ConfigError(f"storage path {text!r} cannot be resolved: {error}") from error


def check_writable(path: Path) -> None:
    """Make sure, before any worker starts, that files can be created below `path`."""
    limit = os.pathconf("/", "PC_PATH_MAX")
    length = len(os.fsencode(path))
    if length + _ROOM_FOR_NAMES > limit:
        raise StorageError(
            errno.ENAMETOOLONG,
            f"the storage path has {length} bytes; the system allows {limit} for a whole path and a run needs "
            f"{_ROOM_FOR_NAMES} of them for its own names. Choose a shorter storage_path",
            str(path),
        )
    make_private_dirs(path, on_disk=True)
    probe = path / f".write-check-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        try:
            os.write(descriptor, b"x")
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        raise storage_error(error, path, "creating a file in the storage path") from error
