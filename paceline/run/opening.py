"""What a run works with from `open()` to `close()`: its datasets, its files, its checkpoints, and who watches it.

A run is alone in front of its user, or embedded in a search as one of many.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import warn_at_users_line
from paceline.air.constants import TIME_TOTAL_S
from paceline.air.errors import RestoreError
from paceline.air.manifest import seal
from paceline.air.metrics import number_in
from paceline.air.settings import plain_config
from paceline.engine.base import Engine, WorkerGroup
from paceline.engine.choose import announcement
from paceline.engine.serialization import Pickled
from paceline.run import run_files
from paceline.run.attempt import Attempt, SetupOfGroup, StartPoint, all_here, is_seen, pickled_task
from paceline.run.backend import check_threads
from paceline.run.checkpoint_budget import CheckpointBudget
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.data import RunData
from paceline.run.debug_terminal import debug_notes
from paceline.run.decisions import AllDeciders, Decider, Donor, StopperDecider, StopRequest
from paceline.run.history import JournalHistory, RowFiller, lost_rows, missing_rows
from paceline.run.messages import SessionSetup, TrialResources
from paceline.run.observers import Observers
from paceline.run.preemption import LoopAsks
from paceline.run.rank_target import packed_in_memory
from paceline.run.records import VERSION, Record
from paceline.run.resume_notice import Circumstances, notice_for
from paceline.run.retention import KeptCheckpoint
from paceline.run.run_files import RunFiles
from paceline.run.sizing import workers_of
from paceline.run.spec import RunSpec, Trial
from paceline.run.stoppers import make_stopper
from paceline.run.validations import Validations
from paceline.run.validator import Prepared
from paceline.storage.outage import OUTAGE_SECONDS

if TYPE_CHECKING:
    from paceline.storage.files import SharedSync

T = TypeVar("T")


class InBackground(Protocol):
    """Does a piece of work, now or soon, here or in another thread."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def at_once(work: Callable[[], T]) -> Future[T]:
    """Do the work here and now: a run that is alone has nothing else to do meanwhile."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # an interruption passes
        future.set_exception(error)
    return future


def own_observers(spec: RunSpec, files: RunFiles) -> Observers:
    """Those of a run that is alone."""
    identity = files.identity
    trial = Trial(
        trial_id=identity.trial_id,
        trainable_name=spec.trainer_name,
        local_path=str(files.run_dir.root),
        experiment_id=identity.experiment_id,
        experiment_name=files.experiment_name,
        experiment_tag=identity.experiment_tag,
        config=dict(spec.config),
        evaluated_params=dict(spec.evaluated),
    )
    return Observers(spec.run_config, trial, files.run_dir)


@dataclass(frozen=True)
class Embedding:
    """What a run finds around itself."""

    observe: Callable[[RunSpec, RunFiles], Observers] = own_observers
    """Makes the onlookers of the run that is described, in these files."""
    decider: Decider | None = None
    """Decides about the run; None: `RunConfig(stop=...)` does."""
    in_background: InBackground = at_once
    """Does what takes long: starting and ending workers. One of many runs must not hold up the others."""
    shared_sync: SharedSync | None = None
    """Syncs the journal where many runs share one thread for it; None: the run waits for the disk itself."""
    data: RunData | None = None
    """Datasets that were prepared already, by another run with the same ones."""


ALONE = Embedding()


@dataclass
class OpenRun:
    """The parts of a run that is open."""

    data: RunData
    task: Pickled
    files: RunFiles
    keeper: CheckpointKeeper
    observers: Observers
    decider: Decider
    history: JournalHistory
    syncs: bool
    """Wait for the disk when something was written down; otherwise somebody else sees to it."""
    is_alone: bool
    """Everything happens in the thread of the run; otherwise workers are started in another one."""
    loop_asks: LoopAsks
    pid: int = field(default_factory=os.getpid)
    is_closed: bool = False
    broken_off: bool = False
    """The driver was interrupted, or something in it failed."""
    store_wait_s: float | None = None
    """How long a remote store may take at the end; None: as long as it needs."""
    validations: Validations = field(init=False)
    _given: StartPoint | None = None
    _last_size: int | None = None
    """How many workers the last attempt of this driver had."""

    def write_down(self, record: Record) -> None:
        """It survives from here on: this process, and the machine as soon as the disk has it."""
        self.files.journal.append(record, finite=False)
        if self.syncs:
            self.files.journal.sync()
        else:
            self.files.journal.flush()

    def announce(self, spec: RunSpec, engine: Engine) -> None:
        """Tell the observers that the run begins, or is taken up again."""
        size, has_logs = spec.scaling.num_workers or 1, not engine.capabilities.in_driver_process
        logs = {rank: self.files.run_dir.log(rank) for rank in range(spec.max_workers)} if has_logs else {}
        notes = [*self.files.notes, *spec.backend_config.notes(spec.max_workers)]
        self.observers.engine_chosen(announcement(engine, spec.run_config.engine))
        had_finished = self.files.ended_as == "finished"
        self.observers.started(notes, size, logs, continues=bool(self.files.records), had_finished=had_finished)
        if not had_finished:
            self.warn(*self.data.notes, *debug_notes(spec.run_config.debug))

    def start_point(self, spec: RunSpec) -> StartPoint:
        """After the run's own newest checkpoint, else with the one that the user gave."""
        newest = self.keeper.newest_valid()
        if newest is not None:
            return _after(newest, self.keeper)
        if self._given is None:
            self._given = _from_given_checkpoint(spec.resume_from)
        return self._given

    def prepare_attempt(
        self, spec: RunSpec, size: int, engine: Engine, stop: StopRequest
    ) -> tuple[Attempt, SetupOfGroup]:
        """The next attempt, and what its sessions are told. After a `stop` it no longer waits for room."""
        start, number = self.start_point(spec), self.keeper.attempt
        notify = self.warn if self.is_alone else self.keeper.warnings.append
        attempt = Attempt(number, spec, size, engine, self.files.run_dir, start, notify, lambda: stop.pending)
        return attempt, partial(self._session_setup, spec, start)

    def _session_setup(self, spec: RunSpec, start: StartPoint, group: WorkerGroup) -> SessionSetup:
        """The attempt adds which rank it is for, and where that is."""
        self.data.check_seen(group)
        keeper, trial = self.keeper, self.observers.trial
        config = spec.run_config.checkpoint_config
        factory = spec.scaling.with_workers(group.world_size).as_placement_group_factory()
        path, uri = start.path, start.uri
        # Where there is a remote store, workers elsewhere upload to it: the driver would have to do it after them.
        target = keeper.choose_target(group.shares_directory and (keeper.mirror is None or all_here(group)))
        target.prepare(None if path is None else Path(path))
        if path is not None and not is_seen(path, group):
            path = None
            uri = None if start.checkpoint_number is None else target.uri_of(start.checkpoint_number)
        return SessionSetup(
            trial_name=str(trial),
            trial_id=trial.trial_id,
            trial_dir=os.fsencode(trial.local_path if group.shares_directory else os.path.basename(trial.local_path)),
            experiment_name=trial.experiment_name,
            is_elastic=spec.scaling.is_elastic,
            previous_world_size=self._last_size if start.in_memory and start.index else workers_of(start.path),
            resources=TrialResources.of(factory.bundles, factory.strategy),
            metadata=dict(spec.metadata),
            attempt=keeper.attempt,
            start_index=start.index,
            next_number=keeper.next_number,
            number_offset=_number_offset(spec, keeper) if spec.numbers_by_iteration else None,
            decides=self.decider.may_decide,
            resume_path=None if path is None else os.fsencode(path),
            resume_seal=None if path is None else seal(Path(path)),
            resume_uri=uri,
            resume_in_memory=start.in_memory is not None,
            resume_relayed=path != start.path and uri is None,
            target=target.for_ranks(),
            async_save=config.async_save,
            keep_all_ranks=config.keep_all_ranks,
            score_attribute=config.checkpoint_score_attribute,
            validation=None if spec.validation is None else spec.validation.config.taken_arguments,
            output_files=spec.run_config.output_files,
            in_search=spec.place is not None,
            post_mortem=spec.run_config.debug == "post_mortem",
            data_state=self.data.usable_state(start.data, keeper.warnings.append) if start.data else None,
        )

    def announce_attempt(self, attempt: Attempt, spec: RunSpec, *, is_changed: bool) -> RowFiller:
        """Write down that workers are at work, and tell the observers; what the rows are completed by."""
        record = attempt.record()
        self._last_size = attempt.world_size
        if self.files.records or is_changed:  # the config may be another than the header's
            record.config = plain_config(spec.config)
        if self.files.records:
            record.version = VERSION
        now = Circumstances.now(spec, self.data, attempt.world_size) if spec.place is None else None
        if now is not None:
            now.note_in(record, with_code=self.files.records is not None)
        self.write_down(record)
        if attempt.number > 0 and self.files.mirror is not None:
            # If it is lost with this machine, the next one must not go by the same number.
            self.keeper.background.share_journal()
        filler = RowFiller(self.files.identity, spec.config, record)
        self.observers.attempt_started(filler.first())
        trial = str(self.observers.trial)
        if (notice := notice_for(attempt, spec, self.files, trial, self.keeper.damaged, now)) is not None:
            self.observers.explain(notice)
        if attempt.number > 0 or self.files.records:
            self.observers.attempt_resumed(record.start_index, self.history)
        return filler

    def warn(self, *texts: str) -> None:
        for text in texts:
            self.observers.warn(text)

    def pass_on_warnings(self) -> None:
        """Show what the keeper of the checkpoints has found."""
        if self.keeper.warnings:
            warnings, self.keeper.warnings = self.keeper.warnings, []
            self.warn(*warnings)

    def donate(self) -> Donor | None:
        """The newest checkpoint with its row, kept until it is released; None without one on disk."""
        newest = self.keeper.newest
        if newest is None or self.keeper.in_memory:
            return None
        pin = self.keeper.pin(newest.number)
        return Donor(str(self.observers.trial), self.keeper.reference(newest), dict(newest.row), pin)

    def clean_up(self) -> None:
        """An attempt is over: what it was committing is settled, and what it left half done is removed."""
        began = time.monotonic()
        self.keeper.settle(self.store_wait_s)
        self.validations.forget_uncommitted()
        if self.store_wait_s is not None:
            self.store_wait_s = max(0.0, self.store_wait_s - (time.monotonic() - began))
        self.keeper.retire()
        self.files.run_dir.sweep()

    def close(self, *, complete: bool) -> list[str]:
        """Give everything back, each part whatever becomes of the others; what the user should know of it."""
        warnings: list[str] = []
        self._given = None
        with contextlib.ExitStack() as stack:  # in this order from below
            stack.callback(lambda: warnings.extend(self.files.close(self.store_wait_s)))
            stack.callback(self.keeper.close, complete=complete and not self.broken_off)
            stack.callback(self.observers.close)
            stack.callback(self.validations.close)
        return [*self.keeper.warnings, *warnings]


def _after(newest: KeptCheckpoint, keeper: CheckpointKeeper) -> StartPoint:
    """After a checkpoint of the run itself."""
    path = None if keeper.in_memory else str(keeper.run_dir.checkpoint(newest.number))
    return StartPoint(
        index=newest.iteration,
        time_s=float(number_in(newest.row, TIME_TOTAL_S)),
        checkpoint_number=newest.number,
        path=path,
        in_memory=keeper.newest_in_memory,
        data=newest.data if path is None else Checkpoint.from_directory(path).data_positions,
    )


def _from_given_checkpoint(checkpoint: Checkpoint | None) -> StartPoint:
    """At iteration 0 with the user's checkpoint at hand, if there is one.

    A checkpoint that is not a directory travels as an attachment.
    """
    if checkpoint is None:
        return StartPoint()
    data = checkpoint.data_positions
    if checkpoint.kind == "local_path":
        return StartPoint(path=checkpoint.path, data=data)
    if checkpoint.kind == "uri":
        return StartPoint(uri=checkpoint.uri, data=data)
    return StartPoint(in_memory=packed_in_memory(checkpoint), data=data)


def _number_offset(spec: RunSpec, keeper: CheckpointKeeper) -> int:
    """What to add to an iteration to get the number of its checkpoint: a resumed run numbers on."""
    if keeper.newest is not None:
        return keeper.newest.number - keeper.newest.iteration
    return (spec.resume_from.number or 0) if spec.resume_from is not None else 0


def open_run(spec: RunSpec, engine: Engine, embedding: Embedding, stop: StopRequest) -> OpenRun:
    """Prepare the datasets, pickle the train function and open the run's files. What cannot work is refused here,
    before anything is started."""
    check_threads(spec.backend_config.backend_cls, spec.max_workers, engine)
    if not engine.capabilities.chooses_nodes and (text := spec.scaling.accelerator_warning()):
        warn_at_users_line(text)
    if spec.scaling._max_cpu_fraction_per_node is not None:
        warn_at_users_line("_max_cpu_fraction_per_node has no effect: workers may take all CPUs of a node.")
    data = embedding.data or (RunData.prepared(spec.ingest, spec.max_workers) if spec.ingest else RunData())
    task = pickled_task(spec, data.packed, data.preprocessor)
    validations = Prepared.of(spec, engine, data.preprocessor)
    files = (
        run_files.reopen(spec, embedding.shared_sync, engine.name)
        if spec.restore_path is not None
        else run_files.create(spec, engine.capabilities, embedding.shared_sync)
    )
    try:
        history = JournalHistory(files.run_dir.journal)
        keeper = _keeper(spec, files, engine)
        observers = embedding.observe(spec, files)
        decider = AllDeciders(stop, *_deciders(spec, embedding, files))
        syncs, is_alone = embedding.shared_sync is None, embedding.in_background is at_once
        overhead = spec.run_config.checkpoint_config.max_overhead
        asks = LoopAsks(budget=None if overhead is None else CheckpointBudget(overhead))
        parts = OpenRun(data, task, files, keeper, observers, decider, history, syncs, is_alone, asks)
        parts.validations = Validations(spec, validations, engine, parts)
    except BaseException:
        files.close()
        raise
    return parts


def _deciders(spec: RunSpec, embedding: Embedding, files: RunFiles) -> list[Decider]:
    if embedding.decider is not None:
        return [embedding.decider]
    stop = spec.run_config.stop
    stopper = None if stop is None else make_stopper(stop)
    return [] if stopper is None else [StopperDecider(stopper, files.identity.trial_id)]


def _keeper(spec: RunSpec, files: RunFiles, engine: Engine) -> CheckpointKeeper:
    """With the checkpoints of an earlier driver, if the run is continued."""
    keeper = CheckpointKeeper(
        spec.run_config.checkpoint_config,
        files.run_dir,
        files.journal,
        files.mirror,
        wake=engine.wake,
    )
    keeper.warnings += files.warnings
    if files.mirror is not None and spec.run_config.checkpoint_config.async_save:
        files.mirror.lease.patience_s = OUTAGE_SECONDS
    if files.records:
        if files.kept_in_memory and files.ended_as != "finished":
            raise RestoreError(
                "This run kept its checkpoints in memory only (num_to_keep=0); they went with its driver. "
                "Start it anew, and give num_to_keep another value to be able to restore."
            )
        keeper.load(files.records)
        lost = list(lost_rows(files.run_dir, keeper.committed, files.last_row))
        for row in lost:
            files.journal.append(row, finite=False)
        files.journal.sync()
        if keeper.newest is not None:
            indices = [*files.surviving, *(row.index for row in lost)]
            keeper.warnings += missing_rows(files.run_dir.journal, indices, keeper.newest.iteration)
    if keeper.next_number == 0 and spec.resume_from is not None:
        keeper.continue_after(spec.resume_from)
    return keeper
