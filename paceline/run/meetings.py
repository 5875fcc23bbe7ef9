"""Where the ranks of one attempt wait for each other: barrier() and broadcast_from_rank_zero().

The driver counts who has arrived, so that a rank that can no longer come ends the waiting of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.run.messages import Meeting, Met


class Meetings:
    """The n-th call of any of these functions on a rank is its n-th meeting; all ranks must make the same calls."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._open: dict[int, dict[int, Meeting]] = {}
        """By number, who has arrived."""

    @property
    def waiting(self) -> dict[int, Meeting]:
        """The ranks that wait for others."""
        return {rank: message for arrived in self._open.values() for rank, message in arrived.items()}

    def arrived(self, rank: int, message: Meeting) -> list[tuple[int, Met]]:
        """The answers, once the last rank has come."""
        there = self._open.setdefault(message.number, {})
        there[rank] = message
        if len(there) < self._world_size or self.disagreement() is not None:
            return []
        del self._open[message.number]
        return [(each, Met(message.number, there[0].content)) for each in there]

    def disagreement(self) -> tuple[int, str] | None:
        """(rank, why) of ranks that meet in different functions."""
        for there in self._open.values():
            (first, wanted), *others = there.items()
            for rank, message in others:
                if message.called != wanted.called:
                    return rank, (
                        f"rank {first} called {wanted.called} while rank {rank} called {message.called}: "
                        "every rank must make the same calls in the same order"
                    )
        return None

    def left_alone(self, finished: Collection[int]) -> tuple[int, str] | None:
        """(rank, why) of a rank that has returned while others wait for it."""
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
        return answers
