"""How the driver asks agents about the ranks of a group. Several threads may ask at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine

MOST_WAIT_S = 1.0
"""What a rank gets to show its stack: it does so at once, or it is stopped."""
SHARE_OF_RANKS = 0.7
"""Of the time that the driver waits; the rest is for the way. So one rank that is stopped costs only its own stack."""

Answer = TypeVar("Answer")
Asking = Callable[[list[int], int], messages.ToAgent]
"""Makes the message that asks an agent about these ranks; the second argument is the number of the question."""


class Question(Generic[Answer]):
    """One that was asked, with the answers so far."""

    def __init__(self, number: int, asked: set[AgentLine]) -> None:
        self.number = number
        self.answers: dict[int, Answer] = {}
        self.asked = asked
        """Those that have not answered yet."""

    @property
    def is_answered(self) -> bool:
        return all(line.lost for line in list(self.asked))


class Questions(Generic[Answer]):
    """Those of one kind and one group. Answers that come after the end of their question are ignored."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, Question[Answer]] = {}

    def ask(self, ranks: Mapping[AgentLine, Sequence[int]], asking: Asking) -> Question[Answer]:
        question: Question[Answer] = Question(next(self._numbers), set(ranks))
        self._open[question.number] = question
        for line, its_ranks in ranks.items():
            line.tell(asking(list(its_ranks), question.number))
        return question

    def take(self, line: AgentLine, number: int, answers: Mapping[int, Answer]) -> None:
        question = self._open.get(number)
        if question is not None:
            question.answers.update(answers)
            question.asked.discard(line)

    def close(self, question: Question[Answer]) -> dict[int, Answer]:
        """What is known of the ranks that were asked about."""
        self._open.pop(question.number, None)
        return question.answers


def time_for_stacks(timeout: float) -> float:
    """How long ranks may take to show their stacks, if the driver waits for so long."""
    return min(MOST_WAIT_S, SHARE_OF_RANKS * timeout)
