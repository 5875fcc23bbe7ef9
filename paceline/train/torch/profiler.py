"""TorchWorkerProfiler: keeps the traces of PyTorch's profiler as files of the run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air import session

if TYPE_CHECKING:
    from torch.profiler import profile

TRACES_KEY = "profiler_traces"


class TorchWorkerProfiler:
    """Writes each trace of a profiler to a file, and names the new files for the next report.

        profiler = TorchWorkerProfiler()
        with torch.profiler.profile(schedule=..., on_trace_ready=profiler.trace_handler) as p:
            for batch in loader:
                ...
                p.step()
                train.report({"loss": loss, **profiler.get_and_clear_profile_traces()})

    Traces are large, so metrics carry their paths only. Show them with TensorBoard's profiler
    plugin, chrome://tracing or Perfetto.
    """

    def __init__(self, trace_dir: str | None = None) -> None:
        """`trace_dir` is `pytorch_profiler` in the worker's directory (`<trial>/rank_k`) by default."""
        self.trace_dir = Path(trace_dir or "pytorch_profiler").absolute()
        self.trace_dir.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()
        self._new: list[str] = []

    def trace_handler(self, profiler: profile) -> None:
        """To be passed to the profiler as `on_trace_ready`."""
        active = session.current()
        rank = active.world_rank if active is not None else 0
        # The ending is the one TensorBoard's plugin looks for.
        path = self.trace_dir / f"rank_{rank}_{next(self._numbers):06d}.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        self._new.append(str(path))

    def get_and_clear_profile_traces(self) -> dict[str, Any]:
        """The files written since the last call, as a metric to report; empty if there are none."""
        traces, self._new = self._new, []
        return {TRACES_KEY: traces} if traces else {}
