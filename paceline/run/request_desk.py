"""Does what is asked of a driver from outside, and answers. inbox.py has the files, requests.py the side that asks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.run.decisions import StopRequest
from paceline.run.inbox import LOOK_EVERY_S, Answer, Glances, Inbox, Request

if TYPE_CHECKING:
    from paceline.run.attempt import Attempt


class RequestDesk:
    """Of a run that is alone. A search answers for its trials itself."""

    def __init__(self, inbox: Inbox, stop: StopRequest) -> None:
        self._inbox = inbox
        self._stop = stop
        self._glances = Glances()

    def look(self, attempt: Attempt | None, phase: str, *, is_over: bool = False) -> None:
        """Answer what was asked. `attempt` has workers to be asked for their stacks; without one, `phase` says why.

        Called at every step; mostly it does not even look.
        """
        if not self._glances.is_due():
            return
        for request, name in self._inbox.take():
            if request.what == "stacks":
                answer = stacks_answer(attempt, phase)
            else:
                answer = self._stopping(request, is_over)
            self._inbox.answer(name, answer)

    def _stopping(self, request: Request, is_over: bool) -> Answer:
        if not self._stop.pending and not is_over:  # Training that has just ended well is not an interrupted one.
            self._stop.asked_by = request.sender
            self._stop.signal = signal.SIGINT
        return Answer()

    @contextlib.contextmanager
    def answered_by_thread(self, phase: str) -> Iterator[None]:
        """While the run's own thread waits for something that may take long. Stops are taken down for later."""
        done = threading.Event()

        def answer() -> None:
            while not done.wait(LOOK_EVERY_S):
                self.look(None, phase)

        thread = threading.Thread(target=answer, name="paceline-requests", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be had: nobody is answered for a while
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()


def stacks_answer(attempt: Attempt | None, phase: str) -> Answer:
    """The stacks of all ranks; in words, why one has none."""
    if attempt is None or attempt.group is None:
        return Answer(refused=f"it has no stacks now: {phase}.")
    stacks = attempt.stacks()
    failed = {failure.rank for failure in attempt.failures}
    for rank in range(attempt.world_size):
        if rank in attempt.ended:
            stacks[rank] = "(has returned from the train function)\n"
        elif rank in stacks:
            continue
        elif rank in failed:
            stacks[rank] = "(has failed)\n"
        else:
            stacks[rank] = "(did not answer: its process may be stopped, or stuck in the system)\n"
    return Answer(stacks={str(rank): stacks[rank] for rank in sorted(stacks)})
