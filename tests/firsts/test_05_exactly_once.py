"""Each row exactly once per epoch, though workers are killed, nodes are lost, and the number of workers changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import DatasetConfig, ScalingConfig
from paceline.run.callbacks import Callback
from paceline.run.records import AttemptStarted, RunRecords
from paceline.storage.run_dir import RunDir
from paceline.testing.elastic_engine import ElasticEngine
from paceline.testing.invariants import check_run
from tests.data.ingest_runs import (
    ROWS,
    assert_each_row_once,
    ids_by_rank,
    surviving,
    told_trainer,
    write_parquet,
)
from tests.faults.cases import long_run, rounds


class Weather(Callback):
    """Changes the cluster, one change after the other: each after so many rows of a group of a certain size."""

    def __init__(self, engine: ElasticEngine, *changes: tuple[int, int, Callable[[], None]]) -> None:
        self._engine = engine
        self._changes = list(changes)
        self._rows = 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if self._changes and self._engine.workers == self._changes[0][0]:
            self._rows += 1
            if self._rows >= self._changes[0][1]:
                self._rows = 0
                self._changes.pop(0)[2]()


@pytest.fixture
def engine() -> Iterator[ElasticEngine]:
    engine = ElasticEngine({"a": 1, "b": 1})
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_parquet(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("seed", [0, *(long_run(seed, seconds=600) for seed in range(1, rounds(5)))])
def test_each_row_once_while_the_number_of_workers_changes(
    parquet: str, tmp_path: Path, engine: ElasticEngine, seed: int
) -> None:
    """One run: 2 workers, then 1, 3 and 2. Besides, a worker is killed at each of three random steps."""
    chance = random.Random(seed)

    def grow() -> None:
        engine.add_node("c", 1)
        engine.add_node("d", 1)

    changes = Weather(
        engine,
        (2, chance.randint(2, 9), lambda: engine.lose_node("b")),
        (1, chance.randint(2, 9), grow),
        (3, chance.randint(2, 9), lambda: engine.lose_node("d")),
    )
    kills = [(0, step, chance.choice(["before", "after"])) for step in chance.sample(range(2, 40), 3)]
    trainer = told_trainer(
        paceline.data.read_parquet(parquet),
        tmp_path,
        workers=1,
        batch_size=80,
        kills=kills,
        dataset_config={"train": DatasetConfig(split=True, uneven="all", seed=seed)},
        engine=engine,
        callbacks=[changes],
    )
    trainer.scaling_config = ScalingConfig(num_workers=(1, 3), elastic_resize_monitor_interval_s=0.02)
    result = trainer.fit()
    check_run(result.path, result=result)
    started = [each for each in RunRecords.read(RunDir(Path(result.path))) if isinstance(each, AttemptStarted)]
    assert [size for size, _ in itertools.groupby(each.world_size for each in started)] == [2, 1, 3, 2]
    assert_each_row_once(surviving(result), range(ROWS))


def test_the_order_is_that_of_an_uninterrupted_run_with_as_many_workers(parquet: str, tmp_path: Path) -> None:
    dataset = paceline.data.read_parquet(parquet)
    settings: dict[str, Any] = {
        "workers": 2,
        "epochs": 1,
        "batch_size": 200,
        "dataset_config": {"train": DatasetConfig(split=True, uneven="all", seed=5)},
    }
    calm = told_trainer(dataset, tmp_path / "calm", **settings).fit()
    killed = told_trainer(dataset, tmp_path / "killed", kills=[(1, 5, "before"), (0, 9, "after")], **settings).fit()
    assert killed.attempts == 3
    assert ids_by_rank(surviving(killed)) == ids_by_rank(surviving(calm))
