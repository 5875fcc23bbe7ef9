"""Endless batches of recorded steps: single rows in random order, or whole episodes in random order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline.air.errors import DataError

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator

Rows: TypeAlias = dict[str, Any]
"""Column -> array, all of the same length."""

WINDOW_ROWS = 100_000
WINDOW_BYTES = 256 * 1024**2
"""Rows are shuffled within windows of at most that size: a dataset that fits into one is shuffled as a whole."""


@dataclass
class Steps:
    """Consecutive steps of one episode."""

    rows: Rows
    last_obs: Any
    """The observation after the last step."""
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return len(self.rows["obs"])

    def cut(self, steps: int) -> tuple[Steps, Steps]:
        """The first steps, and the rest."""
        first = {name: column[:steps] for name, column in self.rows.items()}
        rest = {name: column[steps:] for name, column in self.rows.items()}
        before = Steps(first, rest["obs"][0], terminated=False, truncated=False)
        return before, Steps(rest, self.last_obs, self.terminated, self.truncated)


def row_batches(shard: DataIterator, columns: Mapping[str, str], size: int, seed: int | None) -> Iterator[Rows]:
    """Batches of exactly `size` rows without end; one may hold the end of an epoch and the beginning of the next."""
    window = max(size, _window(shard))
    parts: deque[Rows] = deque()
    have = 0
    while True:
        empty = True
        for batch in shard.iter_batches(
            batch_size=size, local_shuffle_buffer_size=window, local_shuffle_seed=_window_seed(seed)
        ):
            empty = False
            rows = {name: batch[given] for name, given in columns.items()}
            parts.append(rows)
            have += len(rows["obs"])
            while have >= size:
                yield _take(parts, size)
                have -= size
        if empty:
            raise DataError("The dataset to learn from has no rows.")


def episode_batches(
    shard: DataIterator, columns: Mapping[str, str], size: int, seed: int | None
) -> Iterator[list[Steps]]:
    """Batches of exactly `size` steps without end: episodes in random order, of which the last may be cut."""
    chosen: list[Steps] = []
    room = size
    while True:
        empty = True
        for episode in _shuffled_episodes(shard, columns, seed):
            empty = False
            while len(episode) > room:
                part, episode = episode.cut(room)
                yield [*chosen, part]
                chosen, room = [], size
            chosen.append(episode)
            room -= len(episode)
            if not room:
                yield chosen
                chosen, room = [], size
        if empty:
            raise DataError("The dataset to learn from has no episode with a step to learn from.")


def _take(parts: deque[Rows], size: int) -> Rows:
    taken: list[Rows] = []
    while size:
        part = parts.popleft()
        rows = len(part["obs"])
        if rows > size:
            parts.appendleft({name: column[size:] for name, column in part.items()})
            part = {name: column[:size] for name, column in part.items()}
        taken.append(part)
        size -= min(rows, size)
    return joined(taken)


def joined(parts: list[Rows]) -> Rows:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _window(shard: DataIterator) -> int:
    first = next(iter(shard.look()), None)
    if first is None or not first.num_rows:
        return WINDOW_ROWS
    return max(1, min(WINDOW_ROWS, int(WINDOW_BYTES * first.num_rows / max(1, first.nbytes))))


def _window_seed(seed: int | None) -> int | None:
    return None if seed is None else seed % 2**63


def _shuffled_episodes(shard: DataIterator, columns: Mapping[str, str], seed: int | None) -> Iterator[Steps]:
    """The episodes of one epoch, shuffled within windows."""
    window, epoch = _window(shard), shard.epoch
    waiting: list[Steps] = []
    rows = windows = 0

    def shuffled() -> Iterator[Steps]:
        keys = np.random.SeedSequence([(seed or 0) % 2**64, epoch, windows])
        for index in np.random.default_rng(keys).permutation(len(waiting)):
            yield waiting[index]

    for episode in _episodes(shard, columns):
        waiting.append(episode)
        rows += len(episode)
        if rows >= window:
            yield from shuffled()
            waiting, rows, windows = [], 0, windows + 1
    yield from shuffled()


def _episodes(shard: DataIterator, columns: Mapping[str, str]) -> Iterator[Steps]:
    """The episodes of one epoch in the dataset's order."""
    parts: list[Rows] = []
    ended: set[Any] = set()
    for batch in shard.iter_batches(batch_size=4096):
        rows = {name: batch[given] for name, given in columns.items()}
        start = 0
        for end in _ends(rows, after=parts):
            parts += [{name: column[start:end] for name, column in rows.items()}] if end > start else []
            yield from _episode(parts, ended)
            parts, start = [], end
        parts += [{name: column[start:] for name, column in rows.items()}] if start < len(rows["obs"]) else []
    if parts:
        yield from _episode(parts, ended)


def _ends(rows: Rows, after: list[Rows]) -> list[int]:
    """Where episodes end, as numbers of rows from the start; 0 if the one before ended with its last row."""
    if "eps_id" in rows:
        ids = rows["eps_id"]
        ends = [] if not after or after[-1]["eps_id"][-1] == ids[0] else [0]
        return [*ends, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()]
    over = rows["terminateds"].astype(bool) | rows["truncateds"].astype(bool)
    return [*(np.flatnonzero(over) + 1).tolist()]


def _episode(parts: list[Rows], ended: set[Any]) -> Iterator[Steps]:
    rows = joined(parts)
    _check_order(rows, ended)
    terminated = bool(rows["terminateds"][-1]) if "terminateds" in rows else False
    truncated = not terminated
    if "new_obs" in rows or terminated:  # after a terminated step, nothing depends on the observation
        yield Steps(rows, rows["new_obs" if "new_obs" in rows else "obs"][-1], terminated, truncated)
    elif len(rows["obs"]) > 1:  # the last step leads to an observation that was not recorded
        yield Steps({name: column[:-1] for name, column in rows.items()}, rows["obs"][-1], terminated, truncated)


def _check_order(rows: Rows, ended: set[Any]) -> None:
    """The rows of an episode must follow each other."""
    advice = "Sort the dataset by eps_id and t, and do not shuffle it: whole episodes are shuffled while training."
    if "eps_id" in rows:
        id_ = rows["eps_id"][0]
        id_ = id_.item() if isinstance(id_, np.generic) else id_
        if id_ in ended:
            raise DataError(f"The rows of episode eps_id={id_!r} do not follow each other. {advice}")
        ended.add(id_)
    where = f"episode eps_id={rows['eps_id'][0]!r}" if "eps_id" in rows else "an episode"
    if "t" in rows and (np.diff(rows["t"].astype(np.int64)) <= 0).any():
        raise DataError(f"The steps (column t) of {where} are not in order. {advice}")
    if "terminateds" in rows and rows["terminateds"][:-1].any():
        raise DataError(f"The column terminateds says that {where} ends before its last row. {advice}")
