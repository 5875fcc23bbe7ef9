"""Where the workers of a run are in a dataset: a few integers, and what follows from them.

An epoch is read in *legs*. A leg is a stretch with one number of workers: the rows that
were left when it began are dealt to the workers as consecutive shares, and each worker has
yielded a number of rows of its share. When a run is continued with the same number of workers
the last leg simply goes on. With another number it is closed: what remains of it is dealt anew.
So every row is read exactly once, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.air.data_config import Uneven
from paceline.air.errors import DataError
from paceline.air.words import counted
from paceline.data.ingest import ranges as rs
from paceline.data.ingest.ranges import Ranges


@dataclass(frozen=True)
class LocalShuffle:
    """How rows are shuffled within a share; window=0: not at all."""

    window: int = 0
    seed: int = 0

    def order(self, share: Ranges, epoch: int, first_window: int = 0) -> Callable[[int, int], np.ndarray]:
        """A function (window, rows) -> order of the window's rows, counting windows from `first_window`."""
        start = share[0][0] if share else 0

        def of(window: int, rows: int) -> np.ndarray:
            keys = np.random.SeedSequence([self.seed % 2**64, epoch, start, first_window + window])  # none is negative
            return np.random.Generator(np.random.PCG64(keys)).permutation(rows)

        return of

    def first(self, share: Ranges, rows: int, epoch: int) -> Ranges:
        """The positions of a share that come out first."""
        total = rs.length(share)
        rows = min(rows, total)
        if not self.window or rows == total:
            return rs.part(share, 0, rows)
        whole, begun = divmod(rows, self.window)
        done = rs.part(share, 0, whole * self.window)
        if not begun:
            return done
        start = whole * self.window
        order = self.order(share, epoch, whole)(0, min(self.window, total - start))
        return rs.joined((*done, *rs.at(share, (start + order[:begun]).tolist())))


READ_AHEAD = "read_ahead"
"""In a rank's state: it does not know which of the rows that it has handed out were used."""


@dataclass(frozen=True)
class Leg:
    """A stretch of an epoch with one number of workers."""

    workers: int
    yielded: tuple[int, ...]
    """Rows that each worker has handed to the user's code."""
    window: int = 0
    """Rows of the local shuffle window; 0 for none."""
    window_seed: int = 0
    equal: bool = False
    """Rows that did not divide by the number of workers were left out."""

    @property
    def shuffle(self) -> LocalShuffle:
        return LocalShuffle(self.window, self.window_seed)


@dataclass(frozen=True)
class ReadPosition:
    """How far a dataset has been read: what is stored with a checkpoint."""

    epoch: int
    seed: int
    rows: int
    """Rows of the dataset, to recognise that it is another one."""
    blocks: int
    legs: tuple[Leg, ...] = ()
    later: tuple[tuple[Leg, ...], ...] = ()
    """Of the epochs that follow, where a rank that had no more rows of this one has begun them: their legs."""
    shuffle: str = "none"
    """How epochs are ordered, to recognise that they no longer are."""
    equal: bool = False
    """Whether new legs leave out what does not divide."""
    mark: int = 0
    """Of the seeds inside the dataset, to recognise that it was made with others."""

    def as_json(self) -> dict[str, Any]:
        stored = {
            "epoch": self.epoch,
            "seed": self.seed,
            "rows": self.rows,
            "blocks": self.blocks,
            "shuffle": self.shuffle,
            "equal": self.equal,
            "mark": self.mark,
            "legs": _legs_as_json(self.legs),
        }
        return {**stored, "later": [_legs_as_json(legs) for legs in self.later]} if self.later else stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ReadPosition:
        try:
            epoch, seed, rows, blocks = (int(stored[name]) for name in ("epoch", "seed", "rows", "blocks"))
            later = tuple(_legs_from_json(legs) for legs in stored.get("later", ()))
            shuffle, equal = str(stored["shuffle"]), bool(stored["equal"])
            legs = _legs_from_json(stored["legs"])
            return cls(epoch, seed, rows, blocks, legs, later, shuffle, equal, int(stored["mark"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"This is not the state of a dataset shard ({error}): {stored!r}.") from None

    def misfit(self, rows: int, blocks: int, shuffle: str, mark: int) -> str | None:
        """Why this cannot be a position in a dataset of that size and order; None if it can."""
        if (self.rows, self.blocks) != (rows, blocks):
            return (
                f"it was taken in a dataset of {counted(self.rows, 'row')} in {counted(self.blocks, 'block')}, and "
                f"this one has {rows:,} in {blocks}"
            )
        if self.shuffle != shuffle:
            return f"it was taken with shuffle {self.shuffle!r}, and now it is {shuffle!r}: the order is another one"
        if self.mark != mark:
            return (
                "the dataset was shuffled or sampled with another seed when it was taken (give random_shuffle(), "
                "train_test_split(shuffle=True) and random_sample() a seed, so that it is the same next time)"
            )
        return None

    def next_epoch(self) -> ReadPosition:
        """When a rank has ended this epoch."""
        legs, *later = self.later or ((),)
        return replace(self, epoch=self.epoch + 1, legs=legs, later=tuple(later))

    def legs_in(self, epoch: int) -> tuple[Leg, ...]:
        """What is known of that epoch or a later one."""
        if epoch == self.epoch:
            return self.legs
        ahead = epoch - self.epoch - 1
        return self.later[ahead] if 0 <= ahead < len(self.later) else ()


def _legs_as_json(legs: tuple[Leg, ...]) -> list[list[Any]]:
    return [[leg.workers, list(leg.yielded), leg.window, leg.window_seed, leg.equal] for leg in legs]


def _legs_from_json(stored: Any) -> tuple[Leg, ...]:
    return tuple(
        Leg(int(workers), tuple(int(rows) for rows in yielded), int(window), int(seed), bool(equal))
        for workers, yielded, window, seed, equal in stored
    )


@dataclass(frozen=True)
class Shares:
    """One epoch's positions as the workers of the current leg share them."""

    position: ReadPosition
    """Its last leg is the current one."""
    parts: tuple[Ranges, ...]
    """What each worker had or has to read in this leg."""
    left_out: Ranges
    """Positions that nobody reads in this epoch."""

    def remaining(self) -> Ranges:
        """What no worker has yielded yet."""
        leg = self.position.legs[-1]
        ranges: list[tuple[int, int]] = []
        for part, yielded in zip(self.parts, leg.yielded, strict=True):
            ranges += rs.without(part, leg.shuffle.first(part, yielded, self.position.epoch))
        return rs.joined(ranges)


def share_epoch(position: ReadPosition, workers: int, uneven: Uneven, shuffle: LocalShuffle) -> Shares:
    """The shares with which `workers` workers go on from `position`."""
    shares: Shares | None = None
    for leg in position.legs:
        shares = _begin_leg(shares, replace(position, legs=()), leg)
    new = Leg(workers, (0,) * workers, shuffle.window, shuffle.seed, equal=uneven == "equal")
    if shares is not None and replace(shares.position.legs[-1], yielded=new.yielded) == new:
        return shares
    return _begin_leg(shares, replace(position, legs=()), new)


def remaining_in(position: ReadPosition) -> Ranges:
    """What no worker has yielded of an epoch that has been begun."""
    leg = position.legs[-1]
    return share_epoch(position, leg.workers, "equal" if leg.equal else "all", leg.shuffle).remaining()


def _begin_leg(before: Shares | None, bare: ReadPosition, leg: Leg) -> Shares:
    if before is None:
        legs: tuple[Leg, ...] = ()
        remaining: Ranges = ((0, bare.rows),) if bare.rows else ()
        left_out: Ranges = ()
    else:
        legs, remaining, left_out = before.position.legs, before.remaining(), before.left_out
    if leg.equal:
        out = _surplus_positions(remaining, leg.workers, bare.epoch)
        remaining, left_out = rs.without(remaining, out), rs.joined((*left_out, *out))
    parts = rs.dealt(remaining, leg.workers, equal=leg.equal)
    return Shares(replace(bare, legs=(*legs, leg)), tuple(parts), left_out)


def _surplus_positions(remaining: Ranges, workers: int, epoch: int) -> Ranges:
    """Positions to leave out so that the rest divides: in each epoch those after the ones of the epoch before."""
    total = rs.length(remaining)
    surplus = total % workers
    if not surplus:
        return ()
    start = epoch * surplus % total
    wrapped = start + surplus - total
    numbers = rs.part(remaining, start, min(total, start + surplus))
    return rs.joined((*numbers, *rs.part(remaining, 0, wrapped))) if wrapped > 0 else numbers


def merged(ranks: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """One state out of those that all ranks had at one report; None if no rank is known.

    A rank that did not tell its position is taken to be where rank 0 is. A rank that has
    begun a later epoch has yielded all of its share of the earlier one; where ranks read ahead, it has not used all
    of it, and all ranks begin that epoch anew.
    """
    if (whole := _merged_in_step(ranks)) is not None:
        return whole
    told = [None if state is None else ReadPosition.from_json(state) for state in ranks]
    known = [position for position in told if position is not None]
    if not known:
        return None
    if any(state is not None and state.get(READ_AHEAD) for state in ranks):
        return min(known, key=lambda position: position.epoch).as_json()
    places = [(rank, position) if position is not None else (0, known[0]) for rank, position in enumerate(told)]
    first = min(position.epoch for position in known)
    last = max(position.epoch + len(position.later) for position in known)
    legs, *later = [_merged_legs(epoch, places) for epoch in range(first, last + 1)]
    while later and not later[-1]:
        later.pop()
    return replace(known[0], epoch=first, legs=legs, later=tuple(later)).as_json()


def _merged_in_step(ranks: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The same where all ranks are in the same leg of one epoch, as they mostly are; None where they are not.

    A state has a number for each rank. So only the rank's own is looked at here: with thousands of ranks, reading them
    all would take seconds.
    """
    yielded = []
    try:
        first = ranks[0] or {}
        epoch, legs = first["epoch"], len(first["legs"])
        for rank, state in enumerate(ranks):
            if state is None or state["epoch"] != epoch or len(state["legs"]) != legs:
                return None
            workers, rows_of_all, *_ = state["legs"][-1]
            if workers != len(ranks) or "later" in state or state.get(READ_AHEAD):
                return None
            yielded.append(int(rows_of_all[rank]))
    except (IndexError, KeyError, TypeError, ValueError):  # Not a state, or one without a leg.
        return None
    position = ReadPosition.from_json(first)
    *before, last = position.legs
    return replace(position, legs=(*before, replace(last, yielded=tuple(yielded)))).as_json()


def _merged_legs(epoch: int, places: Sequence[tuple[int, ReadPosition]]) -> tuple[Leg, ...]:
    """What all ranks together have read of one epoch."""
    legs = max((position.legs_in(epoch) for _, position in places), key=len)
    ahead = [position.epoch > epoch for _, position in places]
    if not legs or legs[-1].workers != len(places):  # nobody who is still in this epoch has begun the newest leg
        if not any(ahead):
            return legs
        legs = (*legs, Leg(len(places), (0,) * len(places), equal=places[0][1].equal))
    yielded = []
    for (rank, position), is_ahead in zip(places, ahead, strict=True):
        own = position.legs_in(epoch)
        yielded.append(_ALL if is_ahead else own[-1].yielded[rank] if len(own) == len(legs) else 0)
    return (*legs[:-1], replace(legs[-1], yielded=tuple(yielded)))


_ALL = 1 << 62
"""More rows than any share has: the whole of it."""
