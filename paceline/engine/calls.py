"""Calls of functions on the workers of a group: who was asked, and what they answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.air.errors import EngineError, HangError, RemoteError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.serialization import dumps

if TYPE_CHECKING:
    from paceline.engine.channel_group import ChannelGroup

LOOK_EVERY_S = 0.05
"""How often it is looked for ranks that have ended instead of answering: with many ranks, that takes its time."""
LOSS_SETTLE_S = 0.15
"""How long after one rank's exception the death of another, which may be its cause, is waited for."""


@dataclass
class Calls:
    """One call at a time; answers to an earlier one come too late."""

    _number: int = 0
    _answers: dict[int, msgspec.Raw | WorkerFailure] = field(default_factory=dict)

    def take(self, rank: int, number: int, answer: msgspec.Raw | WorkerFailure) -> None:
        """What a worker has answered to a call."""
        if number == self._number:
            self._answers[rank] = answer

    def run(
        self, group: ChannelGroup, fn: Callable[..., Any], args: Sequence[Any], ranks: Sequence[int], timeout: float
    ) -> list[Any]:
        """See `WorkerGroup.execute`."""
        name = getattr(fn, "__name__", type(fn).__name__)
        payload = dumps((fn, args), f"(function, arguments) of {name}")
        self._number += 1
        self._answers = {}
        body = protocol.encode(protocol.Call(self._number, payload))
        for rank in ranks:
            group.post(group.members[rank], protocol.CALL, body)
        self._gather(group, ranks, name, timeout)
        failures = [answer for answer in self._answers.values() if isinstance(answer, WorkerFailure)]
        if failures:
            if group.world_size > 1:
                group.wait_for(lambda: group.first_lost() is not None, LOSS_SETTLE_S)
                _raise_if_one_is_lost(group, name)
            first = min(failures, key=lambda failure: failure.time_ns)
            raise RemoteError(f"{name}() failed on rank {first.rank}: {first.message}\n{first.traceback}", first)
        return [msgspec.msgpack.decode(self._answers[rank]) for rank in ranks]  # type: ignore[arg-type]

    def _gather(self, group: ChannelGroup, ranks: Sequence[int], name: str, timeout: float) -> None:
        """Wait until each of the ranks has answered the current call."""
        deadline = time.monotonic() + timeout
        wanted, look_at = len(set(ranks)), 0.0
        while len(self._answers) < wanted:
            seen = group.reactor.rounds
            _raise_if_one_is_lost(group, name)
            now = time.monotonic()
            if now >= min(look_at, deadline):
                look_at = now + LOOK_EVERY_S
                missing = [rank for rank in ranks if rank not in self._answers]
                if left := [rank for rank in missing if group.members[rank].has_left]:
                    raise EngineError(f"rank {left[0]} has already ended; {name}() cannot be called there")
                if now >= deadline:
                    text = f"{name}() did not return within {timeout:g} s on rank(s) {missing}"
                    stack = group.stacks().get(missing[0], "")
                    raise HangError(text, group.members[missing[0]].failed("hang", text, traceback=stack))
            group.listen(deadline - now, seen)


def _raise_if_one_is_lost(group: ChannelGroup, name: str) -> None:
    """Whichever rank it is: the others may wait for it in a collective call, or fail because of it."""
    lost = group.first_lost()
    if lost is not None:
        raise WorkerDiedError(f"rank {lost.rank} was lost during {name}(): {lost.message}", lost)
