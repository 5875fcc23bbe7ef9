"""What a PyTorch train function calls: prepare_model, prepare_data_loader, mixed precision, reproducibility.

Drivers import this module for the sake of their train functions, so torch is only
imported inside the functions.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from paceline.air import session
from paceline.air.errors import ConfigError, SessionMisuseError
from paceline.run.backend import WorkerState
from paceline.train.sampler_notice import warn_of_samplers
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.profiler import profile
    from torch.utils.data import DataLoader

    from paceline.air.session import SessionProtocol
    from paceline.train.torch.accelerator import Accelerator


T = TypeVar("T")
OptimizerType = TypeVar("OptimizerType", bound="Optimizer")


@dataclass
class Chosen(WorkerState):
    """The accelerator in use and the session it belongs to: one process can see several sessions, in turn."""

    session: SessionProtocol | None = None
    accelerator: Accelerator | None = None


def accelerate(amp: bool = False) -> None:
    """Choose how this worker trains; to be called once, before anything is prepared.

    With ``amp=True`` prepared models run in mixed precision: bfloat16 on CPU, float16 with
    a scaled loss on GPU. Use `prepare_optimizer` and `backward` with it.
    """
    active = active_session("accelerate")
    if Chosen.here().session is active:
        raise RuntimeError(
            "accelerate() was called a second time, or after something had been prepared. Call it once, at the top of "
            "the train function."
        )
    _make_accelerator(active, amp)


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | bool | Callable[..., Any] | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,
    *,
    wrap_ddp: bool | None = None,
    ddp_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Put the model on this worker's device and wrap it for training together with the other workers.

    `parallel_strategy` is "ddp", "fsdp2", "fsdp" or None, and `parallel_strategy_kwargs` are arguments of
    DistributedDataParallel, fully_shard or FullyShardedDataParallel. "fsdp2" shards each member of a
    ModuleList on its own, or of the outermost Sequential if there is none. To shard other parts, pass a
    function instead: it is called with the model, the device mesh and the arguments. What is on the meta
    device gets memory layer by layer. With one worker the model is not wrapped, except by FSDP2.
    `wrap_ddp` and `ddp_kwargs` are the older names of the two.
    """
    accelerator = _accelerator("prepare_model")
    if isinstance(parallel_strategy, bool):  # wrap_ddp had this position
        wrap_ddp, parallel_strategy = parallel_strategy, None
    if wrap_ddp is not None:
        parallel_strategy = "ddp" if wrap_ddp else None
    if parallel_strategy_kwargs and ddp_kwargs:
        raise ConfigError("prepare_model() got parallel_strategy_kwargs and ddp_kwargs: give one of them.")
    if parallel_strategy is not None:
        need_process_group("prepare_model")
    options = dict(parallel_strategy_kwargs or ddp_kwargs or {})
    return accelerator.prepare_model(model, _target(move_to_device, accelerator), parallel_strategy, options)


def prepare_data_loader(
    data_loader: DataLoader[T],
    add_dist_sampler: bool = True,
    move_to_device: bool | torch.device = True,
    auto_transfer: bool = True,
    *,
    uneven: Literal["equal", "all"] | None = None,
) -> DataLoader[T]:
    """Deal the data of the loader over the workers, and put its batches on this worker's device.

    Every worker gets its own part, in another order in every epoch if the loader shuffles;
    `loader.sampler.set_epoch(n)` is not needed, and works. A resumed run continues with the
    epoch that follows the last complete one. A sampler or batch sampler of
    your own is dealt as well; one that is already distributed, and an iterable-style dataset, are
    left alone. All other settings of the loader are kept. `batch_size` is that of one worker.
    With `auto_transfer`, the next batch is copied to the GPU while this one is computed on.

    `uneven` is for rows that do not divide by the workers. With "equal", the default, some rows are read twice, so that
    all workers have equally many batches; a loader that does not shuffle says so unless "equal" is given. With "all",
    each row is read once, and some workers may have a batch less than others.
    """
    from torch.utils.data import IterableDataset

    from paceline.train.torch import data_loader as implementation

    accelerator = _accelerator("prepare_data_loader")
    active = active_session("prepare_data_loader")
    if uneven not in ("equal", "all", None):
        raise ConfigError(f"prepare_data_loader(uneven={uneven!r}): choose 'equal' or 'all'.")
    if add_dist_sampler:
        need_process_group("prepare_data_loader")
        if not isinstance(getattr(data_loader, "dataset", None), IterableDataset):
            warn_of_samplers(active)
    prepared = implementation.prepare(
        data_loader,
        active.world_rank,
        active.world_size,
        _target(move_to_device, accelerator),
        add_dist_sampler,
        auto_transfer,
        active.clock,
        active.loader_epochs,
        pads=uneven != "all",
    )
    if uneven is None and add_dist_sampler:
        implementation.warn_if_it_repeats(prepared, active)
    return prepared


def prepare_optimizer(optimizer: OptimizerType) -> OptimizerType:
    """Make the optimizer work with mixed precision; needed with ``accelerate(amp=True)``."""
    _accelerator("prepare_optimizer").prepare_optimizer(optimizer)
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Compute the gradients of a loss; replaces ``loss.backward()`` with mixed precision."""
    _accelerator("backward").backward(tensor)


def enable_reproducibility(seed: int = 0) -> None:
    """Limit what makes two runs differ: seed all generators and use deterministic algorithms.

    Every worker uses the same seed. Results can still differ between machines, versions of
    PyTorch and numbers of workers.
    """
    active_session("enable_reproducibility")
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # cuBLAS is only deterministic with a fixed workspace.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def _target(move_to_device: bool | torch.device, accelerator: Accelerator) -> torch.device | None:
    if isinstance(move_to_device, bool):
        return accelerator.device if move_to_device else None
    return move_to_device


def active_session(function: str) -> SessionProtocol:
    return session.required(
        f"paceline.train.torch.{function}() works inside of a train function only: call it in the function that "
        "you pass to TorchTrainer."
    )


def need_process_group(function: str) -> None:
    """Peers that are not connected would each train a model of their own, and nobody would notice."""
    world_size = active_session(function).world_size
    if world_size > 1 and not are_connected():
        raise SessionMisuseError(
            f"paceline.train.torch.{function}(): the {world_size} workers are not connected, there is no process group "
            "of torch.distributed. Use TorchTrainer, which makes one; a DataParallelTrainer does not."
        )


def are_connected() -> bool:
    """Whether this worker has a process group with the others."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _accelerator(function: str) -> Accelerator:
    active = active_session(function)
    chosen = Chosen.here()
    if chosen.session is active and chosen.accelerator is not None:
        return chosen.accelerator
    return _make_accelerator(active, amp=False)


def _make_accelerator(active: SessionProtocol, amp: bool) -> Accelerator:
    from paceline.train.torch.accelerator import Accelerator

    accelerator = Accelerator(main_device(), active.world_size, amp)
    if active.clock is not None and active.world_size > 1:
        active.clock.measure_collectives(accelerator.collective_waits)
    chosen = Chosen.here()
    chosen.session, chosen.accelerator = active, accelerator
    return accelerator


# -- profiling -------------------------------------------------------------------------------------


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
