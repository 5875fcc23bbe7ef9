"""Where the ranks of one attempt are.

`Alignment` counts reports and who waits, `Meetings` is where ranks wait for each other. Pure bookkeeping; the run
decides and acts. What the ranks are told is in answers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from paceline.air.errors import MetricError
from paceline.run.messages import Meeting, Met, Report

_ACKNOWLEDGE_EVERY = 250
"""Rows per acknowledgement; a rank may run 1,000 rows ahead of the last one."""


class Meetings:
    """Where ranks wait for each other: barrier() and broadcast_from_rank_zero().

    The driver counts who has arrived, so that a rank that can no longer come ends the waiting of the others. The n-th
    call of any of these functions on a rank is its n-th meeting; all ranks must make the same calls.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._open: dict[int, dict[int, Meeting]] = {}
        """By number, who has arrived."""
        self._disagreement: tuple[int, str] | None = None

    @property
    def anyone_waits(self) -> bool:
        return bool(self._open)

    @property
    def waiting(self) -> dict[int, Meeting]:
        """The ranks that wait for others."""
        return {rank: message for arrived in self._open.values() for rank, message in arrived.items()}

    def arrived(self, rank: int, message: Meeting) -> list[tuple[int, Met]]:
        """The answers, once the last rank has come."""
        there = self._open.setdefault(message.number, {})
        there[rank] = message
        first, wanted = next(iter(there.items()))
        if message.called != wanted.called and self._disagreement is None:
            self._disagreement = (
                rank,
                (
                    f"rank {first} called {wanted.called} while rank {rank} called {message.called}: "
                    "every rank must make the same calls in the same order"
                ),
            )
        if len(there) < self._world_size or self._disagreement is not None:
            return []
        del self._open[message.number]
        return [(each, Met(message.number, there[0].content)) for each in there]

    def disagreement(self) -> tuple[int, str] | None:
        """(rank, why) of ranks that meet in different functions."""
        return self._disagreement

    def left_alone(self, finished: Collection[int]) -> tuple[int, str] | None:
        """(rank, why) of a rank that has returned while others wait for it."""
        if not finished or not self._open:
            return None
        waiting = self.waiting
        for rank in sorted(finished):
            if waiting and rank not in waiting:
                called = next(iter(waiting.values())).called
                ranks = ", ".join(map(str, sorted(waiting)))
                return rank, (
                    f"rank(s) {ranks} wait in {called} for rank {rank}, which has returned from the train function: "
                    "every rank must call it equally often"
                )
        return None

    def held_up(self, running: Collection[int], in_reports: Mapping[int, int]) -> tuple[int, str] | None:
        """(rank, why) of a rank whose report cannot be answered before those come that wait for it here."""
        waiting = self.waiting
        if not waiting or not in_reports or any(rank not in waiting and rank not in in_reports for rank in running):
            return None
        called = next(iter(waiting.values())).called
        rank = min(in_reports)
        return rank, (
            f"rank(s) {', '.join(map(str, sorted(waiting)))} wait in {called}, while rank(s) "
            f"{', '.join(map(str, sorted(in_reports)))} wait in report() for them: every rank must make the same calls "
            "in the same order"
        )

    def send_home(self) -> list[tuple[int, Met]]:
        """The run stops: whoever waits stops, too."""
        answers = [(rank, Met(message.number, stop=True)) for rank, message in self.waiting.items()]
        self._open.clear()
        self._disagreement = None
        return answers


Reduce: TypeAlias = str | tuple[str, float]
"""How a key is combined over ranks: "mean", or with a weight that is this rank's own: ("mean", rows)."""

_REDUCERS: dict[str, Callable[[list[float], list[float]], float]] = {
    "mean": lambda values, weights: _weighted_mean(values, weights),
    "rms": lambda values, weights: math.sqrt(_weighted_mean([value * value for value in values], weights)),
    "sum": lambda values, _: sum(values),
    "min": lambda values, _: min(values),
    "max": lambda values, _: max(values),
}
_WEIGHTED = ("mean", "rms")


class Alignment:
    """The progress of every rank within an attempt that starts after `start_index`."""

    def __init__(self, world_size: int, start_index: int, *, others_report: bool = False) -> None:
        """`others_report`: in an earlier attempt, a rank other than 0 has reported."""
        self.world_size = world_size
        self.start_index = start_index
        self._others_report = others_report
        self.last_index = [start_index] * world_size
        """The highest index each rank has reported."""
        self.highest_free = start_index
        """The highest index that some rank has passed: reported without waiting, or was told to go on from."""
        self.due: list[int] = []
        """Ranks that are to be told how many of their rows are in the journal."""
        self._with_checkpoint = [0] * world_size
        self.waiting: dict[int, int] = {}
        """Rank to the index it waits on."""
        self.newly_waiting: list[int] = []
        """Those of them that nobody has looked at yet."""
        self.finished: dict[int, int] = {}
        """Rank to its number of reports."""
        self._finished_counts: set[int] = set()
        self.metrics: dict[int, dict[str, Any]] = {}
        """What each rank has reported last."""

    def received(self, rank: int, report: Report) -> None:
        """Note a report; reports of one rank come in order."""
        index = report.index
        self.last_index[rank] = index
        self.metrics[rank] = report.metrics
        self._with_checkpoint[rank] += report.with_checkpoint
        if not index % _ACKNOWLEDGE_EVERY:
            self.due.append(rank)
        if report.waits:
            self.waiting[rank] = index
            self.newly_waiting.append(rank)
        elif index > self.highest_free:
            self.highest_free = index

    def answered(self, rank: int, stop: bool) -> None:
        """The rank got its answer."""
        index = self.waiting.pop(rank)
        if not stop:
            self.highest_free = max(self.highest_free, index)

    def finish(self, rank: int, reports: int) -> None:
        """The rank's train function returned."""
        self.finished[rank] = reports
        self._finished_counts.add(reports)

    def counts(self) -> list[int]:
        """How many times each rank has reported in this attempt."""
        return [index - self.start_index for index in self.last_index]

    @property
    def only_rank_zero_reported(self) -> bool:
        zero, *others = self.last_index
        return zero > self.start_index and bool(others) and max(others) == self.start_index

    @property
    def others_may_be_silent(self) -> bool:
        """Whether the program seems to leave reporting to rank 0, which is still running."""
        return self.only_rank_zero_reported and not self._others_report and 0 not in self.finished

    @property
    def lost_checkpoints(self) -> bool:
        """True if some rank reported checkpoints and rank 0 never did."""
        return not self._with_checkpoint[0] and any(self._with_checkpoint)

    def mismatch(self) -> str | None:
        """Why the ranks can no longer agree, as soon as a finished rank proves it."""
        if not self.finished:
            return None
        most = max(self.last_index) - self.start_index
        if (most > min(self._finished_counts) or len(self._finished_counts) > 1) and not self.only_rank_zero_reported:
            counts = self.counts()
            told = ", ".join(
                f"rank {rank}: {count}{' (finished)' if rank in self.finished else ''}"
                for rank, count in enumerate(counts)
            )
            return (
                f"report() was called unequally often: {told}. Every rank must call report() the same "
                "number of times (or only rank 0 may call it at all)."
            )
        return None

    def everyone_waits_at(self, index: int) -> bool:
        """True if every rank that still runs and ever reported waits on `index`."""
        return all(
            self.waiting.get(rank) == index
            for rank in range(self.world_size)
            if rank not in self.finished and self.last_index[rank] > self.start_index
        )


def left_out(alignment: Alignment, index: int, reports: Mapping[int, Report]) -> tuple[int, str] | None:
    """(rank, why) of a rank without which the others wait in vain: it has passed their report, or finished."""
    for rank in range(alignment.world_size):
        if rank not in reports and (alignment.last_index[rank] >= index or rank in alignment.finished):
            others = ", ".join(map(str, sorted(reports)))
            asked = next(iter(reports.values())).reduce
            what = f"reduce={asked}" if asked else "a checkpoint of all ranks (keep_all_ranks, or a sharded one)"
            return rank, (
                f"rank {rank} did not take part in report {index}, for which rank(s) {others} gave {what}. "
                "Every rank must give it at the same report."
            )
    return None


def reduce_metrics(reports: Mapping[int, Report]) -> dict[str, float]:
    """The values of the keys that the ranks asked to be reduced, over all ranks."""
    wanted = reports[0].reduce or {}
    for rank, report in reports.items():
        if (report.reduce or {}) != wanted:
            raise MetricError(
                f"report(reduce=...) differs between ranks: rank 0 asked for {wanted}, rank {rank} for "
                f"{report.reduce}. Pass the same reduce= on every rank."
            )
    reduced: dict[str, float] = {}
    for key, how in wanted.items():
        there = [report for report in reports.values() if key in report.metrics]
        if not there:
            raise MetricError(f"report(reduce={{{key!r}: {how!r}}}): no rank reported {key!r}.")
        values: list[Any] = [report.metrics[key] for report in there]
        reduced[key] = _REDUCERS[how](values, [(report.weights or {}).get(key, 1.0) for report in there])
    return reduced


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    """A rank without weight has no say, whatever its value (that of no rows at all is NaN)."""
    total = sum(weights)
    return (
        sum(value * weight for value, weight in zip(values, weights, strict=True) if weight) / total
        if total
        else math.nan
    )


def check_reduce(
    metrics: Mapping[str, Any], reduce: Mapping[str, Reduce]
) -> tuple[dict[str, str], dict[str, float] | None]:
    """(rule of each key, weights of this rank); refuses what cannot be reduced, at the caller's line."""
    rules: dict[str, str] = {}
    weights: dict[str, float] = {}
    for key, asked in reduce.items():
        how = asked
        if isinstance(asked, tuple | list):
            how, weights[key] = _weighted_rule(key, asked)
        if not isinstance(how, str) or how not in _REDUCERS:
            raise MetricError(f"reduce={{{key!r}: {how!r}}}: choose one of {', '.join(sorted(_REDUCERS))}.")
        rules[key] = how
        value = metrics.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise MetricError(f"reduce={{{key!r}: {how!r}}} needs a number, but metric {key!r} is {value!r}.")
    return rules, weights or None


def _weighted_rule(key: str, asked: Any) -> tuple[Any, float]:
    """A rule that comes with this rank's weight."""
    try:
        how, weight = asked
        weight = float(weight)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf or how not in _WEIGHTED:
        raise MetricError(
            f"reduce={{{key!r}: {asked!r}}}: with a weight, write ('mean', weight) or ('rms', weight), the weight a "
            "number that is not negative."
        )
    return how, weight
