"""Finds the cause of failures of ranks that have waited in vain for another one: it returned, or never came."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from paceline.air.errors import WorkerFailure
from paceline.run.backend import Backend
from paceline.run.hang_words import Scene, returned_early
from paceline.run.positions import KnownFrames, Position
from paceline.run.report_flow import AttemptProblem
from paceline.run.root_cause import is_echo


class Failed(Protocol):
    """An attempt with failed ranks."""

    failures: list[WorkerFailure]

    @property
    def running(self) -> list[int]: ...

    @property
    def known_frames(self) -> KnownFrames: ...

    def stacks(self) -> dict[int, str]: ...


def waited_in_vain(
    attempt: Failed, returned: Collection[int], last_index: Sequence[int], backend: type[Backend]
) -> AttemptProblem | None:
    """What is wrong, if every failed rank waited in a collective operation for one that did not fail.

    Such a rank loses its connection to one that has returned and let go of it, or gives up after the time-out of its
    framework. Errors of the network that come from elsewhere show no collective operation.
    """
    known, failures = attempt.known_frames, sorted(attempt.failures, key=lambda failure: failure.time_ns)
    positions = {failure.rank: known.position(failure.traceback) for failure in failures}
    if not failures or not all(_has_waited(failure, positions[failure.rank], backend) for failure in failures):
        return None
    first = failures[0]
    told = "\n".join(f"-- rank {failure.rank} --\n{failure.traceback}" for failure in failures)
    if all(_timed_out(failure) for failure in failures) and attempt.running:
        stacks = {rank: text for rank, text in attempt.stacks().items() if rank in attempt.running}
        positions.update({rank: known.position(text) for rank, text in stacks.items()})
        everyone = sorted({*attempt.running, *positions})
        scene = Scene(everyone, sorted(returned), last_index, positions, stacks)
        missing = scene.never_arrived(attempt.running)
        text = f"a collective operation timed out: {scene.told(missing)}"
        return AttemptProblem("hang", missing[0], text, f"{scene.stacks_text(missing)}\n{told}")
    if returned and all(is_echo(failure, backend=backend) for failure in failures):
        gone = min(returned, key=lambda rank: (last_index[rank], rank))
        text = returned_early(gone, last_index[gone], first.rank, positions[first.rank])
        return AttemptProblem("report_mismatch", gone, text, told)
    return None


def _has_waited(failure: WorkerFailure, position: Position, backend: type[Backend]) -> bool:
    if position.waits_in or position.may_wait_in:
        return True
    text = failure.message.lower()
    return failure.kind == "exception" and any(words in text for words in backend.collective_errors)


def _timed_out(failure: WorkerFailure) -> bool:
    return failure.kind == "exception" and "timed out" in failure.message.lower()
