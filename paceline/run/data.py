"""What a run does with its datasets: prepares them once, hands them to every attempt, keeps their positions.

A checkpoint that says how far each rank has read is worth something only if all ranks have said so. They are waited
for; a rank that does not report at all (some leave reporting to rank 0) is taken to be where rank 0 is after a while,
because waiting for ever would hang the run. That while is spent once in an attempt, not at every checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.air.checks import near_miss
from paceline.air.resources import usable_cores

if TYPE_CHECKING:
    from paceline.air.timing import BatchClock
    from paceline.data.ingest.prepared import Parcel, PreparedDataset, RankState
    from paceline.data.ingest.request import Ingest
    from paceline.engine.base import WorkerGroup
    from paceline.run.messages import SessionSetup

SILENT_WAIT_S = 10.0
"""For ranks that have never reported in this attempt."""
LATE_WAIT_S = 120.0
"""For ranks that have, and are behind."""


@dataclass
class RunData:
    """The datasets of one run, ready for its attempts; empty for a run without."""

    packed: Parcel | None = None
    preprocessor: Any = None
    notes: list[str] = field(default_factory=list)
    datasets: Mapping[str, PreparedDataset] = field(default_factory=dict)
    read_once: bool = False

    @classmethod
    def prepared(cls, ingest: Ingest, world_size: int) -> RunData:
        """Does what needs a look at all rows; errors in the data come out here, before there is a directory."""
        from paceline.data.ingest.prepared import Parcel

        ready = ingest.prepare(world_size)
        return cls(
            packed=Parcel(ready.datasets) if ready.datasets else None,
            preprocessor=ready.preprocessor,
            notes=[*ingest.notes, *ready.notes],
            datasets=ready.datasets,
            read_once=ingest.read_once,
        )

    def positions(self, world_size: int, start_index: int) -> DataPositions | None:
        """Gathers where the ranks are, for one attempt."""
        if self.read_once:
            return None
        split = {name: dataset.split for name, dataset in self.datasets.items()}
        return DataPositions(world_size, start_index, split)

    def check_seen(self, group: WorkerGroup) -> None:
        """Refuse files that workers on other machines do not see."""
        if self.datasets:
            from paceline.data.ingest.seen_files import check_seen

            check_seen(self.datasets, group)

    def usable_state(self, stored: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, Any] | None:
        """The positions of a checkpoint that fit the datasets there are; others are told and begun anew."""
        if not self.datasets or self.read_once:
            return None
        from paceline.data.ingest.prepared import problem_with

        usable = {}
        for name, state in stored.items():
            if name not in self.datasets:
                continue
            problem = problem_with(state, self.datasets[name])
            if problem is None:
                usable[name] = state
            else:
                warn(f"dataset {name!r} is read from its start, not from the checkpoint's position: {problem}.")
        return usable


class DataPositions:
    """Positions by report and rank, as far as they are needed."""

    def __init__(self, world_size: int, start_index: int, split: Mapping[str, bool]) -> None:
        self._world_size = world_size
        self._split = split
        self._last = [start_index] * world_size
        self._start = start_index
        self._silent = set(range(world_size))
        """Ranks that have not reported yet."""
        self._finished: set[int] = set()
        self._lost: set[int] = set()
        self._by_index: dict[int, dict[int, RankState]] = {}
        self._wanted: dict[int, float] = {}
        """Reports whose checkpoint waits for positions, and since when."""
        self._behind: dict[int, set[int]] = {}
        """Of each such report, the ranks that have not come to it."""
        self._first_wanted: float | None = None
        self._warned_of: set[int] = set()

    def note(self, rank: int, index: int, state: RankState | None, *, with_checkpoint: bool) -> None:
        """A rank has reported. Kept only if the checkpoint of this report, or of a later one of rank 0, may need it."""
        self._last[rank] = index
        self._silent.discard(rank)
        if index in self._behind:
            self._behind[index].discard(rank)
        if rank == 0:
            if with_checkpoint:
                self._wanted[index] = now = time.monotonic()
                self._behind[index] = set(self.missing(index))
                self._first_wanted = self._first_wanted or now
            for known in [known for known in self._by_index if known <= index and known not in self._wanted]:
                del self._by_index[known]
        if state is not None and (index > self._last[0] or index in self._wanted):
            self._by_index.setdefault(index, {})[rank] = state

    def finish(self, rank: int) -> None:
        """A rank's function has returned: it will not report any more."""
        self._finished.add(rank)

    def lose(self, rank: int) -> None:
        """A rank has failed, and somebody will continue: rows that it had not come to must be read then.

        So no checkpoint is committed that lacks its position.
        """
        self._lost.add(rank)

    def missing(self, index: int) -> list[int]:
        """Ranks whose position at this report is not known yet."""
        return [rank for rank in range(self._world_size) if self._last[rank] < index]

    def complete(self, index: int) -> bool:
        """Whether there is nobody (left) to wait for."""
        if self._is_early(index):
            return False
        missing = [rank for rank in self.missing(index) if rank not in self._finished]
        if not missing:
            return True
        if self._lost.intersection(missing):
            return False
        now = time.monotonic()
        if all(self._last[rank] == self._start for rank in missing):
            return now - (self._first_wanted or now) >= SILENT_WAIT_S
        return now - self._wanted.get(index, now) >= LATE_WAIT_S

    def _is_early(self, index: int) -> bool:
        """Some rank is missing, and it is too early for anything but waiting. Asked at every report of every rank, so
        the ranks are not looked at one by one."""
        still_run = len(self._behind.get(index, ())) - len(self._finished)
        now = time.monotonic()
        if still_run <= 0 or now - self._wanted.get(index, now) >= LATE_WAIT_S:
            return False
        return still_run > len(self._silent) or now - (self._first_wanted or now) < SILENT_WAIT_S

    def warnings(self, index: int) -> list[str]:
        """About ranks that did not reach this report; once, not for each checkpoint."""
        missing = self.missing(index)
        if self._warned_of.issuperset(missing):
            return []
        self._warned_of.update(missing)
        return [
            f"Rank(s) {', '.join(map(str, missing))} did not reach report {index}, which has a checkpoint: their place "
            "in the datasets is taken to be that of rank 0. Call report() on every rank."
        ]

    def take(self, index: int) -> dict[str, Any]:
        """What is stored with the checkpoint of this report."""
        from paceline.data.ingest.prepared import merge_states

        known = self._by_index.pop(index, {})
        self._wanted.pop(index, None)
        self._behind.pop(index, None)
        return merge_states([known.get(rank) for rank in range(self._world_size)], self._split)


def open_shards(packed: Parcel, setup: SessionSetup, clock: BatchClock | None = None) -> dict[str, Any]:
    """Dataset name -> DataIterator of this rank."""
    from paceline.data.ingest.prepared import state_for
    from paceline.data.iterator import DataIterator

    threads = max(1, usable_cores() // setup.local_world_size)
    shards = {}
    for name, dataset in packed.unpack().items():
        shard = DataIterator(dataset, setup.world_rank, setup.world_size, threads)
        shard.clock = clock
        stored = (setup.data_state or {}).get(name)
        state = None if stored is None else state_for(stored, setup.world_rank, setup.world_size)
        if state is not None:
            shard.load_state_dict(state)
        shards[name] = shard
    return shards


def chosen_shard(shards: Mapping[str, Any], name: str | None, warn: Callable[[str], None]) -> Any:
    """What get_dataset_shard(name) gives a rank that has these; None, with a warning, for a name that is not there."""
    if not shards:
        warn("get_dataset_shard() is None: the trainer was given no datasets=.")
    if name is None:
        if len(shards) > 1:
            raise RuntimeError(
                f"There are several datasets ({', '.join(sorted(shards))}): pass the name of one to "
                "get_dataset_shard()."
            )
        return next(iter(shards.values()), None)
    if shards and name not in shards:
        known = sorted(shards)
        answer = near_miss(name, known) if isinstance(name, str) else ""
        meant = f" {answer[2:].capitalize()}" if answer.startswith(": did") else ""
        warn(f"get_dataset_shard({name!r}) is None: the trainer was given the datasets {known}.{meant}")
    return shards.get(name)
