"""How many workers each attempt of a run has. A run with a fixed number has that many; here is what elastic runs do.

Before an attempt, the engine is asked for room until there is enough (`next_size`). While workers are at work, it is
asked now and then whether there is room for more (`wants_another_size`); the group is then replaced after its next
checkpoint. What to do is decided in scaling_policy.py, and only the run acts on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.air.errors import EngineError, EngineLost, FailureKind, NoRoomError, WorkerCountError, WorkerFailure
from paceline.air.failure_names import qualified_name
from paceline.air.manifest import find_manifest
from paceline.air.words import counted
from paceline.engine.base import Engine
from paceline.run.scaling_policy import Occasion, ScalingSituation, decide_size, use_all_room
from paceline.run.spec import RunSpec

LOOK_S = 0.5
"""How often a run that waits looks for room."""
ANNOUNCE_S = 10.0
"""A longer wait is announced."""
SETTLE_S = 3.0
"""How long a cluster may take to count the room of workers that have ended as free again."""
PLACE_S = 5.0
"""How long the engine may take to place a group that there was room for. Then somebody else has it by now."""


class Sizing:
    """Chooses sizes for one run. `warn` tells the user."""

    def __init__(self, engine: Engine, warn: Callable[[str], None], *, is_trial: bool = False, before: int = 0) -> None:
        """`before`: how many workers the last attempt of an earlier driver had; 0 if there was none."""
        self._engine = engine
        self._warn = warn
        self._is_trial = is_trial
        """Its search has chosen the size. It does not change."""
        self._occasion: Occasion = "start"
        self._current = 0
        self._before = before
        """The size before, if the loop did not refuse it."""
        self._unfit: set[int] = set()
        """Sizes that the loop cannot work with."""
        self._expected = 0
        """How many workers there should be room for once the cluster has counted those that ended."""
        self._ended_at = float("-inf")
        self._spec: RunSpec | None = None
        """That of the attempt at work, if its size may change."""
        self._chosen = 0
        self._refused: int | None = None
        """A size that the engine could not place, though there seemed to be room."""
        self._too_many: tuple[int, int] | None = None
        """A size that the engine can never place, and for how many there seemed to be room then: that does not take
        account of a placement strategy, for one."""
        self._seemed_free = 0
        self._waits_since: float | None = None
        self._is_announced = False
        self._looks_at = float("inf")

    # -- before an attempt ----------------------------------------------------------------

    def next_size(self, spec: RunSpec) -> int | None:
        """How many workers the next attempt has; None: it has to wait, and this is to be asked again.

        Raises NoRoomError after resource_timeout_s.
        """
        if not spec.scaling.is_elastic:
            return spec.max_workers
        try:
            room = self._placeable(self._engine.room(self._bundle(spec)))
        except EngineLost:
            return spec.scaling.min_workers  # The start says what is wrong.
        except EngineError:  # A busy cluster answers later.
            room = 0
        if self._refused is not None:
            room = self._refused - 1 if room is None else min(room, self._refused - 1)
            if room < (spec.scaling.min_workers or 1):
                self._refused = None  # All sizes were tried.
        size = None if self._is_settling(room) else self._decide(spec, room)
        if size is None:
            self._wait(spec, room)
        else:
            self._chosen = size
        return size

    def _is_settling(self, room: int | None) -> bool:
        if room is None or room >= self._expected or not self._engine.capabilities.chooses_nodes:
            return False
        return time.monotonic() - self._ended_at < SETTLE_S

    def _wait(self, spec: RunSpec, room: int | None) -> None:
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        waited, limit = now - self._waits_since, spec.run_config.failure_config.resource_timeout_s
        if limit is not None and waited > limit:
            self._waits_since, self._is_announced = None, False  # a retry waits again
            raise NoRoomError(f"{_wanted(spec, room)}. The run waited for resource_timeout_s={limit:g} s.")
        if waited > ANNOUNCE_S and not self._is_announced:
            self._is_announced = True
            until = "" if limit is None else f", for at most resource_timeout_s={limit:g} s"
            self._warn(f"Waiting for room{until}: {_wanted(spec, room)}. Press Ctrl-C to stop.")

    def not_placed(self, *, never: bool = False) -> None:
        """Somebody else has the room by now, or it is not where the workers have to be: the next size is smaller.

        If so many can `never` be placed, that is not tried again until there is more room.
        """
        self._refused = self._chosen
        if never:
            self._too_many = (self._chosen, self._seemed_free)

    def _placeable(self, room: int | None) -> int | None:
        if room is None:
            return None
        self._seemed_free = room
        if self._too_many is not None and room > self._too_many[1]:
            self._too_many = None
        return room if self._too_many is None else min(room, self._too_many[0] - 1)

    # -- attempts come and go -------------------------------------------------------------

    def started(self, spec: RunSpec, size: int) -> None:
        """Workers are at work."""
        if self._current != size and self._current and self._current not in self._unfit:
            self._before = self._current
        self._current, self._refused = size, None
        self._waits_since, self._is_announced = None, False
        self._spec = spec if spec.scaling.is_elastic and not self._is_trial else None
        self._looks_at = float("inf") if self._spec is None else self._next_look(spec)

    def ended(self) -> None:
        """They have ended without a failure: for another size, or another reason to replace them."""
        self._occasion, self._ended_at = "resize", time.monotonic()

    def with_refused_size(self, failures: Sequence[WorkerFailure]) -> list[WorkerFailure]:
        """The same failures; where the loop cannot work with the new size of the run, they say so.

        At its first size, that is a mistake of the user's. At the least size, there is no other one to continue with.
        """
        spec = self._spec
        is_new = self._before not in (0, self._current)
        if spec is None or not is_new or self._current == spec.scaling.min_workers:
            return list(failures)
        return [
            replace(failure, kind="worker_count", exception_type=None, exception_types=())
            if qualified_name(WorkerCountError) in failure.exception_types
            else failure
            for failure in failures
        ]

    def failed(self, kind: FailureKind, failures: Sequence[WorkerFailure]) -> None:
        """The attempt failed. Those of the ranks whose node is gone have no room any more."""
        if kind == "worker_count":
            self._unfit.add(self._current)
            why = next(failure.message for failure in failures if failure.kind == kind)
            self._warn(f"This run does not use {counted(self._current, 'worker')} again. {why}")
        lost = sum(failure.kind == "node_lost" for failure in failures)
        self._occasion = "node_lost" if kind == "node_lost" else "preempted" if kind == "preempted" else "failed"
        self._expected = 0 if kind == "preempted" else max(0, self._current - lost)
        self._ended_at = time.monotonic()

    # -- while workers are at work --------------------------------------------------------

    def looks_for_more(self) -> bool:
        """It is time to look, and another size is wanted. Cheap enough to be asked at every step."""
        if self._spec is None or time.monotonic() < self._looks_at:
            return False
        self._looks_at = self._next_look(self._spec)
        return self.wants_another_size()

    def wants_another_size(self) -> bool:
        """Whether the policy wants another size than there is, now."""
        spec = self._spec
        assert spec is not None
        try:
            free = self._engine.room(self._bundle(spec))
        except EngineError:
            return False
        self._occasion = "look"
        room = None if free is None else self._placeable(self._current + free)
        size = self._decide(spec, room)
        self._expected = size or self._current
        return size is not None and size != self._current

    def _next_look(self, spec: RunSpec) -> float:
        return time.monotonic() + spec.scaling.elastic_resize_monitor_interval_s

    # -- what is asked --------------------------------------------------------------------

    def _decide(self, spec: RunSpec, room: int | None) -> int | None:
        """What the policy wants; where the loop cannot work with that, what it wants with less room."""
        size = decide_size(self._policy(spec), self._situation(spec, room))
        while size in self._unfit:
            assert size is not None
            size = decide_size(self._policy(spec), self._situation(spec, size - 1))
            if size is None and (room is None or self._before <= room):
                return self._before
        return size

    def _bundle(self, spec: RunSpec) -> dict[str, float]:
        return dict(spec.scaling.on_nodes()[0])

    def _policy(self, spec: RunSpec) -> Callable[[ScalingSituation], int | None]:
        return spec.scaling.policy or use_all_room

    def _situation(self, spec: RunSpec, room: int | None) -> ScalingSituation:
        scaling = spec.scaling
        assert scaling.min_workers is not None
        assert scaling.max_workers is not None
        return ScalingSituation(scaling.min_workers, scaling.max_workers, room, self._current, self._occasion)


def workers_of(checkpoint_dir: str | None) -> int | None:
    """How many workers had saved a checkpoint on the driver's disk, if that is known."""
    manifest = None if checkpoint_dir is None else find_manifest(Path(checkpoint_dir))
    size = None if manifest is None else manifest.facts.get("world_size")
    return size if isinstance(size, int) else None


def _wanted(spec: RunSpec, room: int | None) -> str:
    scaling = spec.scaling
    each = ", ".join(f"{name} {amount:g}" for name, amount in scaling.on_nodes()[0].items())
    is_enough = room is None or room >= (scaling.min_workers or 1)
    why = "the policy waits" if is_enough else f"num_workers={scaling.num_workers} needs at least {scaling.min_workers}"
    there_is = "any number of workers" if room is None else counted(room, "worker")
    return f"there is room for {there_is} with {each}, and {why}"
