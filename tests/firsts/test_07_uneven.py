"""First 7: rows that do not divide by the workers, under each policy; evaluation sees every row exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline import data, train
from paceline.air import DatasetConfig, Result, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError, DataError
from paceline.data.ingest.prepare import prepare
from paceline.data.iterator import DataIterator
from paceline.train import DataParallelTrainer

ROWS, BATCH = 101, 8
WORKERS = [2, 3, 4]


def shards(uneven: Any, workers: int, rows: int = ROWS) -> list[DataIterator]:
    """What each rank has; with the notes that a run would print."""
    config = DatasetConfig(split=True, uneven=uneven, transform=True)
    ready = prepare({"train": data.range(rows)}, {"train": config}, None, workers)
    return [DataIterator(ready.datasets["train"], rank, workers) for rank in range(workers)]


def batches(shard: DataIterator, **options: Any) -> list[dict[str, np.ndarray]]:
    return list(shard.iter_batches(batch_size=BATCH, **options))


def ids(given: list[dict[str, np.ndarray]]) -> list[int]:
    """The real rows."""
    return [int(row) for batch in given for row in batch["id"][batch.get("__valid__", np.ones(len(batch["id"]), bool))]]


@pytest.mark.parametrize("workers", WORKERS)
def test_equal_gives_all_ranks_the_same_and_says_what_is_left_out(workers: int) -> None:
    """G3"""
    config = DatasetConfig(split=True, uneven="equal")
    ready = prepare({"train": data.range(ROWS)}, {"train": config}, None, workers)
    ranks = [DataIterator(ready.datasets["train"], rank, workers) for rank in range(workers)]
    given = [batches(shard) for shard in ranks]
    assert len({tuple(len(batch["id"]) for batch in each) for each in given}) == 1, "the same steps on all ranks"
    left_out = ranks[0].rows_left_out(0)
    assert len(left_out) == ROWS % workers
    assert sorted([*(row for each in given for row in ids(each)), *left_out]) == list(range(ROWS))
    assert any(f"leaves out {ROWS % workers} row" in note for note in ready.notes) is bool(left_out)


@pytest.mark.parametrize("workers", WORKERS)
def test_all_gives_every_row_once(workers: int) -> None:
    given = [batches(shard) for shard in shards("all", workers)]
    assert sorted(row for each in given for row in ids(each)) == list(range(ROWS))


@pytest.mark.parametrize("workers", WORKERS)
def test_error_refuses(workers: int) -> None:
    with pytest.raises(DataError, match="do not divide"):
        shards("error", workers)


@pytest.mark.parametrize("shuffle", [None, 16])
@pytest.mark.parametrize("rows", [ROWS, 97, 3, 1])
@pytest.mark.parametrize("workers", WORKERS)
def test_pad_mask_gives_full_batches_and_every_row_once(workers: int, rows: int, shuffle: int | None) -> None:
    ranks = shards("pad_mask", workers, rows)
    counts = {len(shard.iter_batches(batch_size=BATCH)) for shard in ranks}
    given = [batches(shard, local_shuffle_buffer_size=shuffle) for shard in ranks]
    assert {len(each) for each in given} == counts, "as many batches on each rank as were announced"
    assert len(counts) == 1
    assert {len(batch["id"]) for each in given for batch in each} == {BATCH}
    assert sorted(row for each in given for row in ids(each)) == list(range(rows))
    assert all(batch["__valid__"].dtype == bool for each in given for batch in each)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("uneven", ["equal", "all", "pad_mask"])
def test_a_local_shuffle_has_no_short_batch_in_the_middle(workers: int, uneven: str) -> None:
    """The buffer is no multiple of the batch, and the blocks are none of either."""
    config = DatasetConfig(split=True, uneven=uneven)
    rows = data.range(ROWS, override_num_blocks=7)
    ready = prepare({"train": rows}, {"train": config}, None, workers)
    for rank in range(workers):
        shard = DataIterator(ready.datasets["train"], rank, workers)
        sizes = [len(batch["id"]) for batch in batches(shard, local_shuffle_buffer_size=13)]
        assert set(sizes[:-1]) == {BATCH}
        assert 0 < sizes[-1] <= BATCH


# -- whole runs ---------------------------------------------------------------------------


def run(loop: Any, workers: int, uneven: Any, name: str, trainer: Any = DataParallelTrainer) -> Result:
    result: Result = trainer(
        loop,
        datasets={name: data.range(ROWS)},
        dataset_config={name: DatasetConfig(split=True, uneven=uneven)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
    ).fit()
    return result


def loss_of(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(rows.astype(np.float64) + 0.1)


def evaluate() -> None:
    total, count = 0.0, 0
    for batch in train.get_dataset_shard("valid").iter_batches(batch_size=BATCH):
        real = batch["id"][batch["__valid__"]] if "__valid__" in batch else batch["id"]
        total, count = total + float(loss_of(real).sum()), count + len(real)
    train.report({"loss": total / count, "rows": count}, reduce={"loss": ("mean", count), "rows": "sum"})


@pytest.mark.parametrize(("workers", "uneven"), [(2, None), (3, "pad_mask"), (4, None)])
def test_an_evaluation_is_that_of_one_process(workers: int, uneven: str | None) -> None:
    """The default of datasets that are not for training, and padded batches: no row is left out or counted twice."""
    metrics = run(evaluate, workers, uneven, "valid").metrics
    assert metrics["rows"] == ROWS
    assert metrics["loss"] == pytest.approx(loss_of(np.arange(ROWS)).mean(), rel=1e-12)


def evaluate_with_loaders() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline.train.torch import prepare_data_loader

    rows = DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=BATCH)
    seen = [int(row) for (batch,) in prepare_data_loader(rows, uneven="all") for row in batch]
    padded = sum(len(batch) for (batch,) in prepare_data_loader(rows))
    loss = float(loss_of(np.array(seen)).mean())
    train.report(
        {"loss": loss, "rows": len(seen), "padded": padded},
        reduce={"loss": ("mean", len(seen)), "rows": "sum", "padded": "sum"},
    )


def test_an_evaluation_with_loaders_reads_each_row_once_or_says_what_it_repeats() -> None:
    from paceline.train.torch import TorchTrainer

    result = run(evaluate_with_loaders, 2, None, "valid", TorchTrainer)
    assert result.metrics["rows"] == ROWS
    assert result.metrics["loss"] == pytest.approx(loss_of(np.arange(ROWS)).mean(), rel=1e-12)
    assert result.metrics["padded"] == ROWS + 1
    (notice,) = result.warnings
    assert "1 row is read twice" in notice


def train_jointly() -> None:
    """In each step the ranks exchange gradients; one of them has a step more. Rank 0 evaluates after each pass."""
    import torch

    from paceline.train.torch import prepare_model

    shard = train.get_dataset_shard("train")
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        rows, steps = [], 0
        for batch in shard.iter_torch_batches(batch_size=5):
            optimizer.zero_grad()
            model(batch["id"].float().unsqueeze(1)).square().mean().backward()
            optimizer.step()
            rows, steps = rows + batch["id"].tolist(), steps + 1
        if train.get_context().get_world_rank() == 0:
            with torch.no_grad():
                model(torch.ones(1, 1))
        weights = [float(parameter.sum()) for parameter in model.parameters()]
        train.report({"rows": rows, "steps": steps, "weights": weights})


def test_join_lets_ranks_with_fewer_batches_take_part(tmp_path: Any) -> None:
    """101 rows are 51 and 50: 11 batches of 5 on one rank, and 10 on the other."""
    from paceline.train.torch import TorchTrainer

    result = run(train_jointly, 2, "join", "train", TorchTrainer)
    last = result.rank_metrics
    assert [last[rank]["steps"] for rank in (0, 1)] == [11, 10]
    assert sorted([*last[0]["rows"], *last[1]["rows"]]) == list(range(ROWS)), "every row once"
    assert last[0]["weights"] == last[1]["weights"], "the model is the same on all ranks"


def _uses_two_models() -> None:
    import torch

    from paceline.train.torch import prepare_model

    models = [prepare_model(torch.nn.Linear(1, 1)), prepare_model(torch.nn.Bilinear(1, 1, 1))]
    for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=5):
        models[0](batch["id"].float().unsqueeze(1)).sum().backward()


def _calls_it_twice() -> None:
    import torch

    from paceline.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(1, 1))
    for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=5):
        rows = batch["id"].float().unsqueeze(1)
        (model(rows) - model(rows + 1)).square().mean().backward()


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (_uses_two_models, r"works with one model, and prepare_model\(\) has wrapped 2: Linear, Bilinear"),
        (_calls_it_twice, r"one call of the model.*Linear was called a second time"),
    ],
)
def test_join_refuses_loops_that_would_wait_for_ever(loop: Any, message: str) -> None:
    from paceline.train.torch import TorchTrainer

    with pytest.raises(DataError, match=message):
        run(loop, 2, "join", "train", TorchTrainer)


def _makes_models_in_turn() -> None:
    """Folds of a cross-validation: the model before is gone."""
    import torch

    from paceline.train.torch import prepare_model

    shard = train.get_dataset_shard("train")
    for _ in range(2):
        model, rows = prepare_model(torch.nn.Linear(1, 1)), 0
        for batch in shard.iter_torch_batches(batch_size=5):
            model(batch["id"].float().unsqueeze(1)).sum().backward()
            rows += len(batch["id"])
            if rows == 20:
                break
        train.report({"rows": rows})
        del model


def test_join_takes_one_model_after_the_other() -> None:
    from paceline.train.torch import TorchTrainer

    assert run(_makes_models_in_turn, 2, "join", "train", TorchTrainer).metrics["rows"] == 20


def test_join_is_refused_where_ranks_cannot_join() -> None:
    with pytest.raises(ConfigError, match=r"'train' has uneven='join'.*Use uneven='equal' or 'pad_mask'"):
        run(evaluate, 2, "join", "train")


def test_join_without_a_prepared_model_is_refused() -> None:
    with pytest.raises(DataError, match=r"Call prepare_model\(\) before the loop"):
        batches(shards("join", 2)[0])
