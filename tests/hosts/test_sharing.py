"""What is shared is asked of the hosts, for one directory and one group: equal names and copies do not count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import data, train
from paceline.air import CheckpointConfig
from paceline.air.errors import DataError, DataNotFoundError
from paceline.run.checkpoint_target import Relayed
from paceline.testing.engine_tools import placement_in
from paceline.testing.invariants import check_checkpoints, check_clean
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from tests.data.ingest_runs import write_parquet
from tests.engine.remote.engine import AgentsEngine
from tools.hosts import Hosts

Shared = tuple[AgentsEngine, Hosts, Path]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """An engine on two hosts, and a directory that both of them share with the driver."""
    from tests.hosts.conftest import make_hosts

    folder = tmp_path_factory.mktemp("shared")
    hosts = make_hosts(2, folder)
    try:
        with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
            yield engine, hosts, folder
    finally:
        hosts.down()


def start(engine: AgentsEngine, folder: Path) -> tuple[bool, list[str]]:
    """Whether a group shares the directory, and where its workers run."""
    group = engine.start_group(placement_in(folder, 2))
    try:
        return group.shares_directory, group.execute(os.getcwd)
    finally:
        group.shutdown()


def test_workers_run_in_a_directory_that_they_share(shared: Shared) -> None:
    engine, _, folder = shared
    assert start(engine, folder) == (True, [str(folder / "rank_0"), str(folder / "rank_1")])
    assert sorted(os.listdir(folder)) == ["rank_0", "rank_1"], "the file that was looked for is gone"


def test_a_directory_of_the_same_name_is_another_one(shared: Shared, tmp_path: Path) -> None:
    engine, hosts, _ = shared
    for name in hosts.names:
        hosts.run(name, ["mkdir", "-p", str(tmp_path)])
    is_shared, cwds = start(engine, tmp_path)
    assert not is_shared
    assert not any(cwd.startswith(str(tmp_path)) for cwd in cwds)
    assert os.listdir(tmp_path) in ([], ["logs"])


def count_to_two(config: dict[str, int]) -> None:
    checkpoint = train.get_checkpoint()
    first = 0 if checkpoint is None else checkpoint.to_dict()["count"]
    for done in range(first + 1, 3):
        train.report({"count": done, "first": first}, checkpoint=Checkpoint.from_dict({"count": done}))


@pytest.mark.parametrize("place", ["shared", "local"])
def test_only_checkpoints_that_hosts_cannot_write_are_relayed(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """They start from one on the driver's own disk in both cases."""
    engine, _, folder = shared
    pieces: list[object] = []
    received = Relayed.received
    monkeypatch.setattr(Relayed, "received", lambda *arguments: (pieces.append(arguments), received(*arguments))[1])
    given = Checkpoint.from_dict({"count": 1}).to_directory(tmp_path / "given")
    result = DataParallelTrainer(
        count_to_two,
        scaling_config=ScalingConfig(num_workers=2),
        resume_from_checkpoint=Checkpoint.from_directory(given),
        run_config=RunConfig(
            engine=engine,
            verbose=0,
            storage_path=str(folder / "runs" if place == "shared" else tmp_path / "runs"),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    assert (result.metrics["count"], result.metrics["first"]) == (2, 1)
    assert bool(pieces) == (place == "local")
    check_checkpoints(Path(result.path), result)
    check_clean(Path(result.path), result)


def read_all(config: dict[str, int]) -> None:
    rows = sum(len(batch["id"]) for batch in train.get_dataset_shard("train").iter_batches())
    train.report({"rows": rows})


def read_on(engine: AgentsEngine, dataset: data.Dataset) -> int:
    result = DataParallelTrainer(
        read_all,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(engine=engine, verbose=0),
        datasets={"train": dataset},
    ).fit()
    return sum(int(metrics["rows"]) for metrics in result.rank_metrics.values())


def test_files_of_datasets_are_looked_for_before_the_training(shared: Shared, tmp_path: Path) -> None:
    engine, hosts, folder = shared
    assert read_on(engine, data.read_parquet(write_parquet(folder / "rows", 1000))) == 1000
    own = write_parquet(tmp_path / "rows", 1000, files=2)
    dataset = data.read_parquet(own)
    with pytest.raises(DataNotFoundError, match=r"h[12] \(10\.231\.0\.[12]\) does not see .*-0.parquet, nor 1 more"):
        read_on(engine, dataset)
    assert read_on(engine, dataset.materialize()) == 1000
    for name in hosts.names:
        hosts.run(name, ["mkdir", "-p", own])
        hosts.run(name, ["cp", f"{folder}/rows/part-0.parquet", f"{folder}/rows/part-1.parquet", own])
    with pytest.raises(DataError, match=r"has another version of .*part-0.parquet"):
        read_on(engine, dataset)
