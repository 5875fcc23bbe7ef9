"""How the driver asks the ranks of a group where they are, through their agents. Several threads may ask at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine

MOST_WAIT_S = 1.0
"""What a rank gets to show its stack: it does so at once, or it is stopped."""
SHARE_OF_RANKS = 0.7
"""Of the time that the driver waits; the rest is for the way. So one rank that is stopped costs only its own stack."""


class Question:
    """One that was asked, with the answers so far."""

    def __init__(self, number: int, asked: set[AgentLine]) -> None:
        self.number = number
        self.texts: dict[int, str] = {}
        self.asked = asked
        """Those that have not answered yet."""

    @property
    def is_answered(self) -> bool:
        return all(line.lost for line in list(self.asked))


class StackQuestions:
    """Those of one group. Answers that come after the end of their question are ignored."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._numbers = itertools.count()
        self._open: dict[int, Question] = {}

    def ask(self, ranks: Mapping[AgentLine, Sequence[int]], timeout: float) -> Question:
        question = Question(next(self._numbers), set(ranks))
        self._open[question.number] = question
        wait_s = min(MOST_WAIT_S, SHARE_OF_RANKS * timeout)
        for line, its_ranks in ranks.items():
            line.tell(messages.ShowStacks(self._group, list(its_ranks), question.number, wait_s))
        return question

    def take(self, line: AgentLine, answer: messages.Stacks) -> None:
        question = self._open.get(answer.number)
        if question is not None:
            question.texts.update(answer.texts)
            question.asked.discard(line)

    def close(self, question: Question) -> dict[int, str]:
        """The stacks of the ranks that have shown them."""
        self._open.pop(question.number, None)
        return {rank: text for rank, text in question.texts.items() if text}
