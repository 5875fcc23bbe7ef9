"""Where an experiment lives and what files it has: its directory, its lock, its journal, and the journal's remote copy.

The copy is pushed as trials end, and fetched by a restore elsewhere, which takes the newer of the two. Each trial
mirrors its own directory. Beside the journal lies what only the user's own objects know: the state of a searcher of
their own. Searchers of paceline need none: replaying the journal leads them to where they were.
"""

from __future__ import annotations

import contextlib
import fnmatch
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.background_pool import BackgroundPool
from paceline.air.config import RunConfig
from paceline.air.errors import RestoreError, RunNotFoundError, StorageError
from paceline.air.manifest import hash_file
from paceline.air.secrets import without_credentials
from paceline.air.settings import as_json
from paceline.engine.base import Capabilities
from paceline.run.found_runs import does_not_exist, instead_of_search
from paceline.run.run_files import announce, storage_of
from paceline.run.spec import Trial
from paceline.storage.files import SharedSync, make_private_dirs
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import decode_record, last_records, read
from paceline.storage.journal_parts import JournalParts, fetch_journal
from paceline.storage.lease import LEASE_SECONDS, Lease
from paceline.storage.lock import RunLock
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import (
    LONGEST_TRIAL_NAME,
    SEARCH_JOURNALS,
    RunDir,
    check_writable,
    default_storage_root,
    experiment_dir_name,
    name_from_uri,
    search_journal,
    trial_dir_name,
    uri_below,
    without_odd_characters,
)
from paceline.storage.twin import name_of_its_own, newer_of, read_origin, write_origin
from paceline.tune.experiment.records import CallbackStates, ExperimentJournal, Record, SearcherSaved
from paceline.tune.search.searcher import Searcher

if TYPE_CHECKING:
    from paceline.tune.experiment.audience import Audience


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
    return RunNotFoundError(f"{place} does not hold a search. {instead}")


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


class ExperimentFiles:
    """What of an experiment is open while it runs. Only one driver at a time may have it open."""

    def __init__(self, place: ExperimentPlace, run_config: RunConfig) -> None:
        self.shared_sync = SharedSync()
        """Of the journals of the experiment and of its trials."""
        self.warning = ""
        """What went wrong with the remote copy; known when it is closed."""
        self._remote: RemoteCopy | None = None
        with contextlib.ExitStack() as undo:
            self._lock = RunLock(place.lock)
            self._lock.acquire()
            undo.callback(self._lock.release)
            if place.uri is not None:
                announcer = announce if run_config.verbose else None
                self._remote = RemoteCopy(place, run_config.storage_filesystem, announcer)
                undo.callback(self._remote.release)
            self.journal = ExperimentJournal(place.journal, self.shared_sync)
            undo.pop_all()

    def flush(self) -> None:
        """What was recorded so far survives the death of the driver."""
        if self._remote is not None:
            self._remote.lease.raise_if_lost()
        self.journal.flush()

    def push(self) -> None:
        """Bring the remote copy up to date, if there is one."""
        if self._remote is not None:
            self._remote.push()

    def close_journal(self, store_wait_s: float | None) -> None:
        """Close the journal and its copy; see RemoteCopy.close()."""
        self.journal.close()
        if self._remote is not None:
            self._remote.close(store_wait_s)
            self.warning = self._remote.problem

    @property
    def holder(self) -> dict[str, Any]:
        """How the lock names this driver."""
        return self._lock.holder

    def unlock(self) -> None:
        self._lock.release()


class RemoteCopy:
    """Keeps the remote copy of the journal up to date, off the event loop, as the one driver that may write it."""

    def __init__(self, place: ExperimentPlace, filesystem: Any, announce: Callable[[str], None] | None = None) -> None:
        assert place.uri is not None
        self.problem = ""
        self._local = place.journal
        self._store = FsspecFilesystem(place.uri, filesystem)
        self._store.check()
        self._parts = JournalParts(self._store, place.journal)
        self.lease = Lease(self._store, f"{place.journal.stem}.lease")
        self.lease.acquire(announce)
        try:
            write_origin(place.origin, place.uri)
            with contextlib.suppress(FileNotFoundError):  # a new experiment
                _bring_up_to_date(self._local, self._store)  # the last driver may have written until it let go
        except BaseException:
            self.release()
            raise
        self._pool = BackgroundPool("paceline-experiment-upload")
        self._latest: Future[None] | None = None

    def push(self) -> None:
        """Upload the journal soon; what is appended while an upload waits goes along with it."""
        if self._latest is None or self._latest.done() or self._latest.running():
            self._latest = self._pool.submit(self.upload)

    def upload(self) -> None:
        """Upload the journal now; if that fails, `problem` says why."""
        try:
            self.lease.check()
            self._parts.push()
            self.problem = ""
        except OSError as error:  # trials continue; the local journal has everything
            self.problem = (
                f"{self._local.name} could not be uploaded, the newest state is only in {self._local}: {error}"
            )

    def close(self, wait_s: float | None = None) -> None:
        """The remote copy is complete when this returns, or `problem` says why not.

        The store gets `wait_s` seconds to answer; None: as long as its operations are tried again.
        """
        self._pool.submit(self.upload)
        ending = self._pool.submit(self.release)
        self._pool.close(0)
        try:
            ending.result(wait_s)
        except TimeoutError:
            self.lease.abandon()
            self.problem = f"{self._store.label} did not answer in time, the newest state is only in {self._local}"

    def release(self) -> None:
        """Let the next driver write there."""
        try:
            self.lease.release()
        except OSError as error:
            self.problem = self.problem or (
                f"the next driver on another machine has to wait for {LEASE_SECONDS:.0f} s: {error}"
            )


def fetch(uri: str, filesystem: Any) -> list[Path]:
    """The local journals of the experiments at a place on remote storage, each the newer of the two copies.

    The local directory may hold experiments of other places, too.
    """
    store = FsspecFilesystem(uri, filesystem)
    names = [name for name in store.list() if "/" not in name and fnmatch.fnmatch(name, SEARCH_JOURNALS)]
    if not names:
        raise does_not_exist(uri, filesystem, "a search") or no_search(uri, filesystem)
    root = _twin_of(uri, names)
    make_private_dirs(root)
    for name in names:
        _bring_up_to_date(root / name, store)
        write_origin(origin_of(root / name), uri)
    return [root / name for name in names]


def _bring_up_to_date(local: Path, store: FsspecFilesystem) -> None:
    """Make the local journal the newer of the two copies; FileNotFoundError if there is none remotely."""
    with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
        remote = Path(folder) / local.name
        fetch_journal(store, local.name, remote)
        newer_of(local, remote, store.label)


def _twin_of(uri: str, names: Sequence[str]) -> Path:
    """The usual directory, unless it has one of these journals from another place: somebody copied the experiment."""
    root, name = default_storage_root(), name_from_uri(uri)
    origins = {read_origin(origin_of(root / name / journal)) for journal in names}
    return root / name if origins <= {"", without_credentials(uri)} else root / name_of_its_own(name, uri)


def fetch_trial(trial: Trial, directory: Path, filesystem: Any) -> None:
    """What the trial's remote directory says about it, where there is none here."""
    run_dir = RunDir(directory)
    if not run_dir.journal.exists():
        mirror = Mirror(FsspecFilesystem(trial.path, filesystem), run_dir)
        if mirror.has_run():
            mirror.pull_state(directory)


class Memory:
    """Keeps the states of the user's own objects beside the journal."""

    def __init__(
        self, place: ExperimentPlace, searcher: Searcher, audience: Audience, journal: ExperimentJournal
    ) -> None:
        self._place = place
        self._searcher = searcher
        self._audience = audience
        self._journal = journal
        self._saves_searcher = saves_itself(searcher)
        self._saved = 0
        self._last_file: Path | None = None

    def keep(self) -> None:
        """Save what there is to save; called when a trial has ended and everybody knows."""
        states = self._audience.callbacks.get_states()
        if states is not None:
            self._journal.append(CallbackStates(states=[as_json(state) for state in states]))
        if self._saves_searcher:
            self._saved += 1
            file = self._file(self._saved)
            with self._audience.guarded():
                self._searcher.save(str(file))
            self._journal.append(SearcherSaved(saved=self._saved, hash=hash_file(file)[1] if file.is_file() else None))
            self._journal.flush()
            self._forget_older(file)

    def _file(self, number: int) -> Path:
        return self._place.root / f"searcher-{self._place.experiment_id[:5]}-{number}.state"

    def _forget_older(self, newest: Path) -> None:
        if self._last_file is not None:
            with contextlib.suppress(OSError):
                self._last_file.unlink()
        self._last_file = newest

    def newest_save(self, records: list[Record]) -> int | None:
        """The position of the record up to which a saved searcher knows everything; None: replay it all."""
        if not self._saves_searcher:
            return None
        for position in range(len(records) - 1, -1, -1):
            record = records[position]
            if isinstance(record, SearcherSaved):
                self._saved = max(self._saved, record.saved)  # what is saved from now on gets a name of its own
                if self._is_sound(record):
                    return position
        return None

    def _is_sound(self, record: SearcherSaved) -> bool:
        """Whether the state is there as it was saved; journals of earlier versions do not contain its hash."""
        file = self._file(record.saved)
        if not file.is_file():
            return False
        if record.hash in (None, hash_file(file)[1]):
            return True
        self._audience.warn_once(f"{file.name} is damaged; the results so far are replayed to the searcher instead.")
        return False

    def restore_searcher(self, number: int) -> None:
        self._last_file = self._file(number)
        with self._audience.guarded():
            self._searcher.restore(str(self._last_file))


def saves_itself(searcher: Searcher) -> bool:
    """Whether it is a searcher of the user's own that can save and restore its state."""
    kind = type(searcher)
    own = not kind.__module__.startswith("paceline.")
    return own and kind.save is not Searcher.save and kind.restore is not Searcher.restore
