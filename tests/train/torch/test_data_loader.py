from __future__ import annotations

import random
from collections import namedtuple
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from paceline.air.errors import ConfigError, SessionMisuseError
from paceline.air.loader_epochs import LoaderEpochs
from paceline.run.timing import RankClock
from paceline.train.torch import prepare_data_loader
from paceline.train.torch.data_loader import DeviceDataLoader
from tests.train.torch.conftest import InstallSession

ROWS = 12


def rows_dataset(rows: int = ROWS) -> TensorDataset:
    return TensorDataset(torch.arange(rows))


def epoch(loader: DataLoader[Any]) -> list[int]:
    return [int(row) for (batch,) in loader for row in batch]


def prepared(install: InstallSession, make: Any, world_size: int = 2, **kwargs: Any) -> list[DataLoader[Any]]:
    """The loader as every rank would prepare it."""
    loaders = []
    for rank in range(world_size):
        install(rank, world_size)
        loaders.append(prepare_data_loader(make(), **kwargs))
    return loaders


def test_outside_a_train_function_it_is_refused() -> None:
    with pytest.raises(SessionMisuseError, match=r"prepare_data_loader.*train function"):
        prepare_data_loader(DataLoader(rows_dataset()))


def test_in_an_elastic_run_it_says_what_samplers_cannot_do(install_session: InstallSession) -> None:
    said: list[str] = []
    session = install_session()
    session.warn = said.append
    prepare_data_loader(DataLoader(rows_dataset()))
    assert said == []
    session.is_elastic = True
    prepare_data_loader(DataLoader(rows_dataset()))
    assert "exactly once" in said[0]
    assert "get_dataset_shard()" in said[0]


def test_shards_are_disjoint_and_complete_and_epochs_differ(install_session: InstallSession) -> None:
    loaders = prepared(install_session, lambda: DataLoader(rows_dataset(), batch_size=2, shuffle=True), 3)
    epochs = []
    for _ in range(3):
        shards = [epoch(loader) for loader in loaders]
        assert sorted(row for shard in shards for row in shard) == list(range(ROWS))
        assert [len(shard) for shard in shards] == [4, 4, 4]
        epochs.append(shards[0])
    assert epochs[0] != epochs[1] != epochs[2]


def test_sequential_order_is_kept(install_session: InstallSession) -> None:
    first, second = prepared(install_session, lambda: DataLoader(rows_dataset(), batch_size=2))
    for _ in range(2):
        assert epoch(first) == [0, 2, 4, 6, 8, 10]
        assert epoch(second) == [1, 3, 5, 7, 9, 11]


def test_set_epoch_of_the_user_wins(install_session: InstallSession) -> None:
    (loader, _) = prepared(install_session, lambda: DataLoader(rows_dataset(), shuffle=True))
    assert isinstance(loader.sampler, DistributedSampler)
    loader.sampler.set_epoch(7)
    seventh = epoch(loader)
    assert epoch(loader) != seventh
    loader.sampler.set_epoch(7)
    assert epoch(loader) == seventh


def test_every_other_setting_is_kept(install_session: InstallSession) -> None:
    def collate(rows: list[Any]) -> Any:
        return torch.stack([row[0] for row in rows])

    def init(worker_id: int) -> None: ...

    original = DataLoader(
        rows_dataset(),
        batch_size=5,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        pin_memory=False,
        drop_last=True,
        timeout=9,
        worker_init_fn=init,
        multiprocessing_context="fork",
        generator=torch.Generator(),
        prefetch_factor=3,
        persistent_workers=True,
    )
    install_session(0, 2)
    loader = prepare_data_loader(original)
    changed = {"sampler", "batch_sampler", "worker_init_fn", "_iterator"}
    for name, value in vars(original).items():
        if name not in changed:
            assert vars(loader)[name] is value, name
    assert loader.multiprocessing_context is original.multiprocessing_context
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (5, True)
    assert len(loader) == 1
    assert isinstance(original.sampler, RandomSampler)


def test_one_worker_keeps_its_loader(install_session: InstallSession) -> None:
    install_session(0, 1)
    loader = DataLoader(rows_dataset(), shuffle=True)
    assert prepare_data_loader(loader) is loader


def test_what_is_already_distributed_and_iterable_datasets_are_left_alone(install_session: InstallSession) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    install_session(1, 2)
    sampler: DistributedSampler[Any] = DistributedSampler(rows_dataset(), 2, 1)
    assert prepare_data_loader(DataLoader(rows_dataset(), sampler=sampler)).sampler is sampler
    batches = BatchSampler(sampler, 2, False)
    assert prepare_data_loader(DataLoader(rows_dataset(), batch_sampler=batches)).batch_sampler is batches
    assert [int(row) for row in prepare_data_loader(DataLoader(Stream()))] == [0, 1, 2]
    install_session(0, 2)
    with pytest.warns(UserWarning, match="(?i)stream.*rank") as caught:
        prepare_data_loader(DataLoader(Stream()))
    assert caught[0].filename == __file__
    prepare_data_loader(DataLoader(Stream()), add_dist_sampler=False)
    plain = prepare_data_loader(DataLoader(rows_dataset()), add_dist_sampler=False)
    assert isinstance(plain.sampler, SequentialSampler)


def test_a_sampler_of_the_user_is_dealt_not_replaced(install_session: InstallSession) -> None:
    subset = [1, 3, 5, 7]
    loaders = prepared(install_session, lambda: DataLoader(rows_dataset(), sampler=SubsetRandomSampler(subset)))
    orders = []
    for _ in range(4):
        torch.rand(3)  # the ranks' own random states differ and must not matter
        shards = [epoch(loader) for loader in loaders]
        assert sorted(shards[0] + shards[1]) == subset
        orders.append(shards)
    assert any(order != orders[0] for order in orders)

    weights = [0.0] * 11 + [1.0]
    loaders = prepared(install_session, lambda: DataLoader(rows_dataset(), sampler=WeightedRandomSampler(weights, 6)))
    assert [epoch(loader) for loader in loaders] == [[11, 11, 11], [11, 11, 11]]


def test_a_batch_sampler_of_the_user_is_dealt_by_batches(install_session: InstallSession) -> None:
    class ByNumpy:
        def __iter__(self) -> Any:
            order = numpy.random.permutation(ROWS).tolist()
            return iter([order[at : at + 3] for at in range(0, ROWS, 3)])

        def __len__(self) -> int:
            return 4

    loaders = prepared(install_session, lambda: DataLoader(rows_dataset(), batch_sampler=ByNumpy()))
    shards = [epoch(loader) for loader in loaders]
    assert sorted(shards[0] + shards[1]) == list(range(ROWS))
    assert [len(loader) for loader in loaders] == [2, 2]


def test_uneven_batches_are_filled_up(install_session: InstallSession) -> None:
    batches = [[0], [1], [2]]
    loaders = prepared(install_session, lambda: DataLoader(rows_dataset(), batch_sampler=batches))
    assert [epoch(loader) for loader in loaders] == [[0, 2], [1, 0]]


@pytest.mark.parametrize("rows", [1, 7, 12, 13])
@pytest.mark.parametrize("made", ["in order", "shuffled", "by a sampler", "in batches"])
def test_uneven_all_gives_each_row_to_one_rank(install_session: InstallSession, rows: int, made: str) -> None:
    def make() -> DataLoader[Any]:
        options: dict[str, Any] = {
            "in order": {"batch_size": 2},
            "shuffled": {"batch_size": 2, "shuffle": True},
            "by a sampler": {"batch_size": 2, "sampler": SubsetRandomSampler(range(rows))},
            "in batches": {"batch_sampler": [[row] for row in range(rows)]},
        }[made]
        return DataLoader(rows_dataset(rows), **options)

    loaders = prepared(install_session, make, 3, uneven="all")
    for _ in range(2):
        batches = [list(loader) for loader in loaders]
        assert sorted(int(row) for each in batches for (batch,) in each for row in batch) == list(range(rows))
        assert [len(each) for each in batches] == [len(loader) for loader in loaders]


def test_rows_that_are_read_twice_are_said(install_session: InstallSession) -> None:
    said: list[str] = []

    def prepare(loader: DataLoader[Any], **options: Any) -> None:
        session = install_session(0, 4)
        session.warn = said.append
        prepare_data_loader(loader, **options)

    prepare(DataLoader(rows_dataset(12)))
    prepare(DataLoader(rows_dataset(13), shuffle=True))
    prepare(DataLoader(rows_dataset(13), drop_last=True))
    prepare(DataLoader(rows_dataset(13)), uneven="equal")
    prepare(DataLoader(rows_dataset(13)), uneven="all")
    prepare(DataLoader(rows_dataset(13)), add_dist_sampler=False)
    assert said == []
    prepare(DataLoader(rows_dataset(13)))
    assert "13 rows over 4 workers" in said[0]
    assert "3 rows are read twice" in said[0]
    assert 'uneven="all"' in said[0]
    with pytest.raises(ConfigError, match=r"prepare_data_loader\(uneven='some'\): choose 'equal' or 'all'"):
        prepare(DataLoader(rows_dataset(13)), uneven="some")


def test_a_sampler_without_length_is_refused(install_session: InstallSession) -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(range(3))

    install_session(0, 2)
    with pytest.raises(ConfigError, match=r"Endless.*len\(\).*add_dist_sampler=False"):
        prepare_data_loader(DataLoader(rows_dataset(), sampler=Endless()))
    with pytest.raises(ConfigError, match=r"DataLoader.*list"):
        prepare_data_loader([1, 2])  # type: ignore[arg-type]


def test_a_subclass_stays_itself(install_session: InstallSession) -> None:
    class Doubling(DataLoader[Any]):
        def __iter__(self) -> Any:
            return ((batch * 2,) for (batch,) in super().__iter__())

    first, _ = prepared(install_session, lambda: Doubling(rows_dataset(4)))
    assert epoch(first) == [0, 4]


class RandomRows(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return [torch.rand(()).item(), random.random(), numpy.random.random()]


def seed_numpy(worker_id: int) -> None:
    numpy.random.seed(5)


def test_loading_processes_of_two_ranks_draw_differently(install_session: InstallSession) -> None:
    def first_row(rank: int, worker_init_fn: Any) -> list[float]:
        install_session(rank, 2)
        torch.manual_seed(0)
        loader = prepare_data_loader(DataLoader(RandomRows(), num_workers=1, worker_init_fn=worker_init_fn))
        return [float(value) for value in next(iter(loader))]

    ranks = [first_row(rank, None) for rank in range(2)]
    assert all(one != other for one, other in zip(*ranks, strict=True))
    assert first_row(0, None) == ranks[0]

    by_user = [first_row(rank, seed_numpy) for rank in range(2)]
    assert [one == other for one, other in zip(*by_user, strict=True)] == [False, False, True]


def test_persistent_workers_see_new_epochs(install_session: InstallSession) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(rows_dataset(), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)

    install_session(0, 2)
    loader = prepare_data_loader(make())
    first, second = epoch(loader), epoch(loader)
    assert first != second
    assert len(first) == len(second) == 6


Point = namedtuple("Point", "x y")


def test_batches_are_moved_to_the_device(install_session: InstallSession) -> None:
    install_session(0, 1)
    rows: Any = [{"points": Point(torch.ones(1), [torch.ones(1)]), "name": "a"}]
    source = DataLoader(rows, batch_size=1, shuffle=False)
    loader = prepare_data_loader(source, move_to_device=torch.device("meta"))
    assert isinstance(loader, DeviceDataLoader)
    assert isinstance(loader, DataLoader)
    (batch,) = list(loader)
    assert batch["points"].x.is_meta
    assert batch["points"].y[0].is_meta
    assert type(batch["points"]) is Point
    assert batch["name"] == ["a"]
    assert len(loader) == 1
    assert loader.batch_size == 1
    assert loader.dataset is rows


# -- waiting for batches ---------------------------------------------------------------------------


class Named(DataLoader[Any]):
    """A loader of the user's own."""

    def name(self) -> str:
        return "mine"


@pytest.mark.parametrize("kind", [DataLoader, Named])
@pytest.mark.parametrize("device", [True, torch.device("meta")])
def test_the_session_is_told_how_long_the_loop_waits(
    install_session: InstallSession, kind: type[DataLoader[Any]], device: Any
) -> None:
    clock = RankClock()
    install_session(0, 1).clock = clock
    original = kind(rows_dataset(), batch_size=4)
    loader = prepare_data_loader(original, move_to_device=device)
    assert isinstance(loader, DataLoader)
    if device is True:
        assert isinstance(loader, kind)
        assert type(loader).__name__ == kind.__name__
    assert len(loader) == len(original) == 3
    assert loader.dataset is original.dataset
    for _ in range(2):
        assert len(list(loader)) == 3
    times = clock.reporting()
    assert times is not None
    assert times.steps == 5  # of six batches, the first begins a step
    assert 0 < times.data_us <= times.step_us
    list(original)  # which is as it was
    rest = clock.reporting()
    assert rest is not None
    assert (rest.steps, rest.data_us) == (1, 0)


def test_a_timed_loader_keeps_its_processes(install_session: InstallSession) -> None:
    install_session(0, 1).clock = RankClock()
    loader = prepare_data_loader(DataLoader(rows_dataset(), num_workers=1, persistent_workers=True))
    first = iter(loader)
    assert sum(1 for _ in first) == ROWS
    assert len(first._workers) == 1  # type: ignore[attr-defined]
    again = iter(loader)
    assert again._workers == first._workers  # type: ignore[attr-defined]
    assert sum(1 for _ in again) == ROWS


class Resumable:
    """The loaders of one worker, and the same ones in a later attempt that continues from where they are."""

    def __init__(self, install: InstallSession) -> None:
        self._install = install

    def prepare(self, *loaders: DataLoader[Any], stored: tuple[int, ...] = ()) -> list[DataLoader[Any]]:
        session = self._install(0, 2)
        session.clock, session.loader_epochs = RankClock(), LoaderEpochs(lambda: stored)
        self.epochs = session.loader_epochs
        return [prepare_data_loader(loader) for loader in loaders]

    def shuffled(self, stored: tuple[int, ...] = (), **settings: Any) -> DataLoader[Any]:
        (loader,) = self.prepare(DataLoader(rows_dataset(48), batch_size=4, shuffle=True, **settings), stored=stored)
        return loader


@pytest.mark.parametrize("processes", [0, 1])
def test_a_resumed_run_continues_with_the_next_pass(install_session: InstallSession, processes: int) -> None:
    run = Resumable(install_session)
    loader = run.shuffled(num_workers=processes)
    orders = [epoch(loader) for _ in range(3)]
    assert run.epochs.now() == [3]
    orders.append(epoch(loader))
    resumed = run.shuffled((3,), num_workers=processes)
    assert run.epochs.now() == [3]
    assert epoch(resumed) == orders[3]
    assert orders[3] not in orders[:3]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_pass_that_was_interrupted_is_repeated(install_session: InstallSession, processes: int) -> None:
    run = Resumable(install_session)
    loader = run.shuffled(num_workers=processes)
    epoch(loader)
    seen = []
    for number, (batch,) in enumerate(loader):
        seen += batch.tolist()
        assert run.epochs.now() == [2 if number == 5 else 1], "the loop saves after each batch"
    assert epoch(run.shuffled((1,), num_workers=processes)) == seen


def test_a_pass_that_the_loop_leaves_early_is_over(install_session: InstallSession) -> None:
    run = Resumable(install_session)
    loader = run.shuffled()
    for _ in range(2):
        for _batch in loader:
            break
    assert run.epochs.now() == [2]
    batches = iter(loader)
    next(batches)
    assert run.epochs.now() == [2], "the loop still has the iterator"


def test_loaders_are_known_by_their_order_and_set_epoch_wins(install_session: InstallSession) -> None:
    run = Resumable(install_session)

    def make() -> DataLoader[Any]:
        return DataLoader(rows_dataset(48), batch_size=4, shuffle=True)

    training, validation = run.prepare(make(), make())
    for _ in range(3):
        epoch(training)
    epoch(validation)
    assert run.epochs.now() == [3, 1]
    resumed = run.prepare(make(), make(), stored=(3, 1))
    assert [loader.sampler.epoch for loader in resumed] == [3, 1]  # type: ignore[attr-defined]
    resumed[0].sampler.set_epoch(7)  # type: ignore[attr-defined]
    epoch(resumed[0])
    assert run.epochs.now() == [8, 1]


def test_passes_are_counted_where_the_sampler_is_not_ours(install_session: InstallSession) -> None:
    """An elastic run may have one worker first, and two later; whoever deals rows by themselves sets the epoch."""
    session = install_session(0, 1)
    session.clock, session.loader_epochs = RankClock(), LoaderEpochs(lambda: (2,))
    loader = prepare_data_loader(DataLoader(rows_dataset(), shuffle=True))
    epoch(loader)
    assert session.loader_epochs.now() == [3]
    run = Resumable(install_session)
    own = DistributedSampler(rows_dataset(), 2, 0)
    (dealt,) = run.prepare(DataLoader(rows_dataset(), sampler=own), stored=(5,))
    epoch(dealt)
    assert (own.epoch, run.epochs.now()) == (0, [6])
