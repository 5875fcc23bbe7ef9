"""How a run is embedded in its driver: alone in front of its user, or as one of many in a search."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from paceline.run.observers import Observers
from paceline.run.setting_up import own_observers

if TYPE_CHECKING:
    from paceline.run.data import RunData
    from paceline.run.decisions import Decider
    from paceline.run.run_files import RunFiles
    from paceline.run.spec import RunSpec
    from paceline.storage.shared_sync import SharedSync

T = TypeVar("T")


class InBackground(Protocol):
    """Does a piece of work, now or soon, here or in another thread."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def at_once(work: Callable[[], T]) -> Future[T]:
    """Do the work here and now: a run that is alone has nothing else to do meanwhile."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # an interruption passes
        future.set_exception(error)
    return future


@dataclass(frozen=True)
class Embedding:
    """What a run finds around itself."""

    observe: Callable[[RunSpec, RunFiles], Observers] = own_observers
    """Makes the onlookers of the run that is described, in these files."""
    decider: Decider | None = None
    """Decides about the run; None: `RunConfig(stop=...)` does."""
    in_background: InBackground = at_once
    """Does what takes long: starting and ending workers. One of many runs must not hold up the others."""
    shared_sync: SharedSync | None = None
    """Syncs the journal where many runs share one thread for it; None: the run waits for the disk itself."""
    data: RunData | None = None
    """Datasets that were prepared already, by another run with the same ones."""


ALONE = Embedding()
