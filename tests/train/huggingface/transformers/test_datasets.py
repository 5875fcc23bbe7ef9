"""How rows of the run reach a transformers.Trainer: as values, and dealt over workers."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
from torch.utils.data import DataLoader

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.train.huggingface.transformers import prepare_trainer
from paceline.train.huggingface.transformers.datasets import EvaluationRows, ReadyEvaluation, WorkerRows
from paceline.train.huggingface.transformers.loaders import EvaluationLoader, training_loader


def shard(rows: int) -> DataIterator:
    return DataIterator.over(paceline.data.from_items([{"number": number} for number in range(rows)]))


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["number"] for row in rows]


def test_rows_have_the_values_that_collators_expect() -> None:
    images = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    dataset = paceline.data.from_items(
        [
            {"image": image, "label": label, "text": text}
            for image, label, text in zip(images, (3, 4), "ab", strict=True)
        ]
    )
    ragged = paceline.data.from_items([{"ids": [1, 2, 3]}, {"ids": [4]}])
    first, second = WorkerRows(DataIterator.over(dataset))
    assert torch.equal(second["image"], torch.tensor([[4.0, 5.0], [6.0, 7.0]]))
    assert (first["label"], first["text"]) == (3, "a")
    assert type(first["label"]) is int
    assert [row["ids"] for row in WorkerRows(DataIterator.over(ragged))] == [[1, 2, 3], [4]]


def test_training_reads_no_batch_ahead() -> None:
    """The position that a checkpoint stores is that of the rows that were trained on."""
    source = shard(10)
    rows = WorkerRows(source)
    loader = training_loader(DataLoader(rows, batch_size=4, collate_fn=numbers), rows, drop_last=False)
    batches = iter(loader)
    assert next(batches) == [0, 1, 2, 3]
    again = shard(10)
    again.load_state_dict(source.state_dict())
    rest = WorkerRows(again)
    rest.batch_size = 4
    assert rest.go_to(0, 1, per_epoch=3)
    resumed = training_loader(DataLoader(rest, batch_size=4, collate_fn=numbers), rest, drop_last=False)
    assert list(resumed) == [{}, [4, 5, 6, 7], [8, 9]]
    assert list(resumed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(resumed) == 3
    assert len(training_loader(DataLoader(rest, batch_size=4), rest, drop_last=True)) == 2


def test_rows_before_an_unknown_position_are_passed_over() -> None:
    """As with the files of a training that was not one of the run."""
    rows = WorkerRows(shard(10))
    assert rows.go_to(2, 1, per_epoch=3)
    loader = training_loader(DataLoader(rows, batch_size=4, collate_fn=numbers), rows, drop_last=False)
    assert list(loader) == [{}, [4, 5, 6, 7], [8, 9]]
    assert rows.shard.epoch == 3


def rows_at(epoch: int, handed_out: list[int] | None, batch_size: int, of: DataIterator | None = None) -> WorkerRows:
    """A worker's rows with a position in them, as a checkpoint has it."""
    worker = of or shard(10)
    legs = [] if handed_out is None else [[len(handed_out), handed_out, 0, 0, True]]
    worker.load_state_dict({**worker.state_dict(), "epoch": epoch, "legs": legs, "workers": worker.workers})
    rows = WorkerRows(worker)
    rows.batch_size = batch_size
    return rows


def test_a_whole_epoch_without_its_last_short_batch_is_followed_by_the_next() -> None:
    """With drop_last the rest of the rows is never handed out, and must not be taken for an epoch of its own."""
    rows = rows_at(1, [8], batch_size=4)
    assert rows.go_to(2, 0, per_epoch=2)
    loader = training_loader(DataLoader(rows, batch_size=4, collate_fn=numbers), rows, drop_last=True)
    assert rows.shard.epoch == 2
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_steps_of_another_size_are_not_taken_for_the_position() -> None:
    assert rows_at(1, None, batch_size=4).go_to(1, 0, per_epoch=3)
    assert not rows_at(1, None, batch_size=2).go_to(0, 3, per_epoch=5)  # step 3, with 3 or with 5 steps per epoch
    assert not rows_at(1, [4], batch_size=2).go_to(0, 4, per_epoch=5)
    assert not rows_at(0, [4], batch_size=8).go_to(0, 1, per_epoch=2)  # half of a batch
    assert rows_at(0, [8], batch_size=4).go_to(0, 2, per_epoch=3)
    dataset = prepared("dataset", paceline.data.from_items([{"number": 0}] * 12), split=True, uneven="equal")
    of_two = DataIterator(dataset, 0, 2)
    assert rows_at(0, [4, 4], 4, of_two).go_to(0, 1, per_epoch=2)
    of_one = DataIterator(dataset, 0, 1)
    of_one.load_state_dict([{**of_two.state_dict(), "rank": rank} for rank in range(2)])
    rest = WorkerRows(of_one)
    rest.batch_size = 4
    assert not rest.go_to(0, 1, per_epoch=3)


def test_a_training_from_the_start_reads_a_whole_pass() -> None:
    rows = rows_at(1, [4], batch_size=4)
    rows.begin_pass()
    assert numbers(list(rows)) == list(range(10))


@pytest.mark.parametrize(
    ("rows", "batch_size", "workers"),
    [(rows, 3, workers) for rows, workers in itertools.product((1, 2, 3, 5, 6, 7, 12, 17, 18, 20), (1, 2, 3, 4))],
)
@pytest.mark.parametrize("ready", [False, True])
def test_an_evaluation_has_every_row_once_and_in_order(rows: int, batch_size: int, workers: int, ready: bool) -> None:
    """As the trainer does it: gather the batches of a round, and keep what the loader says of them."""
    everyone = []
    for rank in range(workers):
        dataset: Any = EvaluationRows(shard(rows))
        if ready:
            dataset = ReadyEvaluation(shard(rows).iter_torch_batches(batch_size=batch_size), batch_size)
        args: Any = SimpleNamespace(process_index=rank, world_size=workers, average_tokens_across_devices=True)
        loader = EvaluationLoader(dataset, batch_size, numbers, args)
        rounds = []
        for batch in loader:
            values = batch["number"].tolist() if ready else batch
            rounds.append((values, loader.remainder if loader.end_of_dataloader else None))
            assert not args.average_tokens_across_devices
        assert args.average_tokens_across_devices
        assert len(rounds) == len(loader)
        assert len(loader.dataset) == rows
        everyone.append(rounds)
    gathered: list[int] = []
    for together in zip(*everyone, strict=True):
        assert len({len(values) for values, _ in together}) == 1, "what is gathered must have one shape"
        kept = together[0][1]
        values = [value for values, _ in together for value in values]
        gathered += values if not kept else values[:kept]
    assert gathered == list(range(rows))
    assert everyone[0][-1][1] is not None, "the trainer must know the last round"


def test_processes_of_a_loader_cannot_read_rows() -> None:
    loader = DataLoader(WorkerRows(shard(4)), batch_size=None, num_workers=1)
    with pytest.raises(DataError, match="dataloader_num_workers=0"):
        next(iter(loader))


def test_only_trainers_are_prepared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"transformers\.Trainer.*Linear"):
        prepare_trainer(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
