"""prepare_data_loader: give every rank its own part of a DataLoader's data, on its device."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler
from torch.utils.data.sampler import RandomSampler

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError
from paceline.air.loader_epochs import LoaderEpochs
from paceline.air.session import SessionProtocol
from paceline.air.timing import BatchClock
from paceline.train.sampler_notice import warn_of_repeated_rows
from paceline.train.torch.devices import move_to
from paceline.train.torch.timed_loader import Passes, timed

READ_EACH_ONCE = (
    'prepare_data_loader(..., uneven="all") reads each row once; workers may then have unequally many batches. '
    'uneven="equal" is what happens now, without this notice.'
)


def prepare(
    loader: DataLoader[Any],
    rank: int,
    world_size: int,
    device: torch.device | None,
    add_dist_sampler: bool,
    auto_transfer: bool,
    clock: BatchClock | None = None,
    epochs: LoaderEpochs | None = None,
    *,
    pads: bool = True,
) -> DataLoader[Any]:
    """The loader for one rank; `device` None leaves batches where they are. `clock` measures waiting for batches, and
    `epochs` says with which pass a resumed run begins.

    If it `pads`, all ranks have equally many rows, some of which are read twice.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"prepare_data_loader() takes a torch DataLoader, not {type(loader).__name__}.")
    source = loader
    if world_size > 1:
        source = _copy_with(loader, worker_init_fn=SeededWorkerInit(loader.worker_init_fn, rank))
        if add_dist_sampler and isinstance(loader.dataset, IterableDataset):
            _warn_that_all_read_all(loader.dataset, rank)
        elif add_dist_sampler and not _is_distributed(loader):
            source = _copy_with(source, **_dealt_samplers(loader, rank, world_size, pads))
    if device is not None and device.type != "cpu":
        source = DeviceDataLoader(source, device, auto_transfer)
    if clock is None:
        return source
    passes = Passes(0 if epochs is None else epochs.first_epoch(), _own_sampler(source))
    if epochs is not None:
        epochs.add(passes.epoch)
    return timed(source, clock, passes)


def _own_sampler(loader: DataLoader[Any]) -> EpochSampler | None:
    """The one that deals the rows, if it is ours: whoever brings a DistributedSampler sets its epoch."""
    samplers = (loader.sampler, loader.batch_sampler)
    return next((sampler for sampler in samplers if isinstance(sampler, EpochSampler)), None)


def _warn_that_all_read_all(dataset: IterableDataset[Any], rank: int) -> None:
    if rank == 0:  # once per run
        warn_at_users_line(
            f"prepare_data_loader() cannot deal {type(dataset).__name__} over the workers, because it is an "
            "IterableDataset: every rank reads all of it. Let its __iter__ give each rank its part (get_world_rank(), "
            "get_world_size() of paceline.train.get_context()) and pass add_dist_sampler=False."
        )


def _copy_with(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A copy with other samplers: all other settings are kept, those of a subclass included.

    DataLoader refuses to set a sampler on a finished loader, hence the way around.
    """
    changed = copy.copy(loader)
    changed.__dict__.update(changes, _iterator=None)
    return changed


def _is_distributed(loader: DataLoader[Any]) -> bool:
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


def _dealt_samplers(loader: DataLoader[Any], rank: int, world_size: int, pads: bool) -> dict[str, Any]:
    """The loader's sampler, and batch sampler if it has one, dealt over the ranks."""
    if loader.batch_size is None and loader.batch_sampler is not None:  # batches of the user's own
        return {"batch_sampler": DealtSampler(loader.batch_sampler, rank, world_size, pads)}
    sampler: DistributedSampler[Any]
    if type(loader.sampler) is SequentialSampler:
        sampler = EpochSampler(loader.dataset, world_size, rank, shuffle=False, pads=pads)
    elif type(loader.sampler) is RandomSampler and _draws_each_once(loader.sampler):
        sampler = EpochSampler(loader.dataset, world_size, rank, shuffle=True, pads=pads)
    else:
        sampler = DealtSampler(loader.sampler, rank, world_size, pads)
    if loader.batch_sampler is None:
        return {"sampler": sampler}
    return {"sampler": sampler, "batch_sampler": BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)}


def _draws_each_once(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


class EpochSampler(DistributedSampler[Any]):
    """A DistributedSampler that goes on to the next epoch by itself.

    Without that every epoch has the same order unless the loop calls `set_epoch`, which
    still works here and wins. All ranks must iterate equally often to stay in step.

    Without `pads`, each item is given to one rank only, and some ranks have one less than others.
    """

    def __init__(self, source: Any, world_size: int, rank: int, *, shuffle: bool, pads: bool = True) -> None:
        super().__init__(source, world_size, rank, shuffle=shuffle)
        self.pads = pads

    def __iter__(self) -> Iterator[Any]:
        indices = itertools.islice(super().__iter__(), len(self))  # what fills up comes last
        self.epoch += 1
        return indices

    def __len__(self) -> int:
        return self.num_samples if self.pads else len(range(self.rank, _length(self.dataset), self.num_replicas))


class DealtSampler(EpochSampler):
    """Deals what a sampler of the user's draws (indices or whole batches) over the ranks.

    Every rank lets the sampler draw the whole epoch from the same random state, and takes
    each `world_size`-th item. If it `pads`, the last round is filled up from the start, so that all
    ranks get equally many.
    """

    def __init__(self, source: Iterable[Any], rank: int, world_size: int, pads: bool = True) -> None:
        if not hasattr(source, "__len__"):
            raise ConfigError(
                f"prepare_data_loader() cannot deal {type(source).__name__} over the workers, because it has no "
                "len(). Give it one, or deal it yourself and pass add_dist_sampler=False."
            )
        super().__init__(source, world_size, rank, shuffle=False, pads=pads)
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        with _random_state(self.seed + self.epoch):
            items = list(self.source)
        self.epoch += 1
        rounds = -(-len(items) // self.num_replicas)
        end = rounds * self.num_replicas if self.pads else len(items)
        for position in range(self.rank, end, self.num_replicas):
            yield items[position % len(items)]


def warn_if_it_repeats(
    loader: DataLoader[Any],
    session: SessionProtocol,
    advice: str = READ_EACH_ONCE,
    dealt_by: type[DistributedSampler[Any]] | None = None,
) -> None:
    """Tell the user, if the loader does not shuffle, and not all ranks have as many rows of their own.

    `dealt_by` is the class of the sampler that was put into it: one of the user's own is the user's choice.
    """
    sampler: Any = loader.sampler
    if type(sampler) is (dealt_by or EpochSampler) and not (sampler.shuffle or loader.drop_last):
        warn_of_repeated_rows(session, _length(sampler.dataset), advice)


def _length(dataset: Any) -> int:
    return len(dataset)


@contextmanager
def _random_state(seed: int) -> Iterator[None]:
    """The global random generators start from `seed` inside and are as before afterwards."""
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        _seed_everything(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)


def _seed_everything(seed: int) -> None:
    torch.manual_seed(seed % 2**63)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


class SeededWorkerInit:
    """Seeds a loading process differently on every rank, then calls the user's own function.

    Ranks start from the same torch seed, and a loading process derives its seeds from that:
    random augmentation would be the same on all ranks.
    """

    def __init__(self, user_function: Callable[[int], Any] | None, rank: int) -> None:
        self.user_function = user_function
        self.rank = rank

    def __call__(self, worker_id: int) -> None:
        _seed_everything(torch.initial_seed() + self.rank * 1_000_003)
        if self.user_function is not None:
            self.user_function(worker_id)


class DeviceDataLoader(DataLoader[Any]):
    """A DataLoader whose batches are on a device; everything else is that of the loader inside."""

    def __init__(self, source: DataLoader[Any], device: torch.device, auto_transfer: bool) -> None:
        self.__dict__.update(source.__dict__)
        self.__dict__.update(source_loader=source, device=device, auto_transfer=auto_transfer)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = iter(self.__dict__["source_loader"])
        device: torch.device = self.__dict__["device"]
        if self.__dict__["auto_transfer"] and device.type == "cuda":
            return prefetch_to_gpu(batches, device)
        return (move_to(batch, device) for batch in batches)

    def __len__(self) -> int:
        return len(self.__dict__["source_loader"])


# -- copying batches to a GPU ahead ----------------------------------------------------------------


def prefetch_to_gpu(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The batches on `device`, each copied on a stream of its own one step ahead.

    Only batches in pinned memory are really copied in the background
    (`DataLoader(pin_memory=True)`).
    """
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead = _copy(next(batches, _END), device, copying)
    while ahead is not _END:
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(copying)
        batch = ahead
        _mark_in_use(batch, computing)
        ahead = _copy(next(batches, _END), device, copying)
        yield batch


_END = object()


def _copy(batch: Any, device: torch.device, stream: torch.cuda.Stream) -> Any:
    if batch is _END:
        return _END
    with torch.cuda.stream(stream):
        return move_to(batch, device)


def _mark_in_use(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator who uses the tensors: their memory must not be given to the next copy before that is done."""
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _mark_in_use(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _mark_in_use(value, stream)
