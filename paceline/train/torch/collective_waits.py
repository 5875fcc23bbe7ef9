"""For how long a rank waits in the all-reduce of DistributedDataParallel, from what that measures of itself.

PyTorch times the first ten iterations and then one in a hundred, whether or not anybody asks. A rank that is faster
than the others waits for them here, and nowhere else: without it, all ranks seem to be equally fast.
"""

from __future__ import annotations

import weakref

from torch.nn.parallel import DistributedDataParallel

_FIRST, _EVERY = 10, 100
"""PyTorch times all of the first iterations, and then every so many."""
_LATE = 2
"""The times of an iteration are known after the next one."""
_LEAST_SHARE = 0.7
"""Of the steps that are iterations of the model; the others may be those of an evaluation."""


class CollectiveWaits:
    """The models that a worker trains. Models that are trained together are expected to be so in each step."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self._iterations: dict[int, int] = {}
        """The last one that is known, by the place of the model."""
        self._is_off = False

    def add(self, model: DistributedDataParallel) -> None:
        self._models.append(weakref.ref(model))

    def __call__(self, steps: int) -> float | None:
        """Seconds of the newest step that was timed, of all that this worker has taken; None if nothing is new."""
        if self._is_off:
            return None
        waited_s, is_new = 0.0, False
        for place, reference in enumerate(self._models):
            model = reference()
            if model is None:
                continue
            try:
                times = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
                iteration, backward_ns = times.get("iteration", 0), times.get("backward_comm_time", 0)
                waited_s += max(0, backward_ns - times.get("backward_compute_comm_overlap_time", 0)) / 1e9
            except (AttributeError, RuntimeError):  # it is not a public function
                self._is_off = True
                return None
            is_new |= iteration > self._iterations.get(place, 0)
            self._iterations[place] = iteration
            if not _fits(iteration, steps):
                self._is_off = True
                return None
        return waited_s if is_new else None


def _fits(iteration: int, steps: int) -> bool:
    """Whether a step is about one iteration. Not if gradients are accumulated over several steps, or if a step is a
    whole epoch: then the times of an iteration do not say how long a step waits."""
    expected = _LEAST_SHARE * steps
    return max(min(expected, _FIRST) - _LATE, expected - _EVERY) <= iteration <= steps + _LATE
