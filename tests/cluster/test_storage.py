"""Checkpoints of workers on three hosts: on a path that they share, in a bucket, and on the driver's own disk."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
import paceline.data
from paceline.air import (
    Checkpoint,
    CheckpointConfig,
    DatasetConfig,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    session,
)
from paceline.storage.filesystem import FsspecFilesystem
from paceline.testing.invariants import check_checkpoints, check_clean
from paceline.testing.processes import wait_for
from paceline.train import DataParallelTrainer
from tests.cluster.conftest import make_ray_hosts
from tests.cluster.places import S3_PORT, Places, connect, make_bucket
from tests.cluster.ray_hosts import RESULTS
from tests.cluster.test_data import ROWS, tell_ids
from tests.train.saving import SIZE, STEPS, check, saving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
KINDS = ["shared", "bucket", "local"]
LARGE = 500 << 20
HALF_WAY = "/tmp/half-way"
HEARTBEAT_S = 8.0


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    pytest.importorskip("moto")
    shared = tmp_path_factory.mktemp("shared")
    ray_hosts = make_ray_hosts(3, shared)
    server = None
    try:
        address = ray_hosts.hosts["h1"].address
        command = [sys.executable, "-m", "moto.server", "-H", address, "-p", str(S3_PORT)]
        quiet = subprocess.DEVNULL
        server = ray_hosts.hosts.popen("h1", command, stdout=quiet, stderr=quiet)
        variables = {
            "AWS_ENDPOINT_URL": f"http://{address}:{S3_PORT}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield Places(ray_hosts, shared, variables)
    finally:
        ray_hosts.down()
        if server is not None:
            server.wait(30)


def trainer(storage: str, config: dict[str, Any], **settings: Any) -> DataParallelTrainer:
    """Three workers, one on each host, unless `settings` say otherwise."""
    return DataParallelTrainer(
        settings.pop("loop", saving),
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=settings.pop("workers", 3), resources_per_worker={"CPU": 2}),
        resume_from_checkpoint=settings.pop("resume", None),
        run_config=run_config(storage_path=storage, **settings),
    )


def run_config(
    *, retries: int = 0, engine: str | None = None, storage_path: str | None = None, **keep: Any
) -> RunConfig:
    return RunConfig(
        storage_path=storage_path,
        engine=engine,
        verbose=0,
        checkpoint_config=CheckpointConfig(**keep),
        failure_config=FailureConfig(max_failures=retries, start_timeout_s=120, heartbeat_timeout_s=HEARTBEAT_S),
    )


def facts_of(result: Result) -> dict[str, Any]:
    ranks = result.rank_metrics.values()
    return {
        "attempts": result.attempts,
        "path": result.path,
        "hosts": sorted({metrics["host"] for metrics in ranks}),
        "cwds": [metrics["cwd"] for metrics in ranks],
        "kept": [row["step"] for _, row in result.best_checkpoints],
    }


def check_storage(result: Result) -> None:
    """All that is committed is sound, and nothing half done is left."""
    if "://" in result.path:
        store = FsspecFilesystem(result.path)
        assert not store.list(".staging")
    else:
        check_checkpoints(Path(result.path), result)
        check_clean(Path(result.path), result)


# What drivers do


def save_in_all_ways(store: dict[str, str], storage: str) -> dict[str, Any]:
    make_bucket()
    connect(store)
    facts = {}
    killed = trainer(storage, {"dies_at": 3}, retries=1, num_to_keep=1).fit()
    check(killed)
    check_storage(killed)
    facts["killed"] = facts_of(killed)

    background = trainer(storage, {"in_background": True}, async_save=True).fit()
    check(background)
    check_storage(background)
    facts["background"] = facts_of(background)

    all_ranks = trainer(storage, {"all_ranks": True}, keep_all_ranks=True).fit()
    check(all_ranks)
    check_storage(all_ranks)
    assert all_ranks.checkpoint is not None
    with all_ranks.checkpoint.as_directory() as folder:
        facts["parts"] = sorted(name for name in os.listdir(folder) if name.startswith("of-"))

    in_memory = trainer(storage, {"dies_at": 3}, retries=1, num_to_keep=0).fit()
    check(in_memory)
    check_storage(in_memory)
    facts["in_memory"] = {**facts_of(in_memory), "on_disk": list_checkpoints(in_memory)}
    return facts


def list_checkpoints(result: Result) -> list[str]:
    if "://" in result.path:
        return [name for name in FsspecFilesystem(result.path).list() if name.startswith("checkpoint_")]
    return [path.name for path in Path(result.path).glob("checkpoint_*")]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_seen_kept_and_continued(places: Places, kind: str) -> None:
    facts = places.run(save_in_all_ways, storage=places.storage(kind))
    assert facts["killed"]["attempts"] == facts["in_memory"]["attempts"] == 2
    assert facts["killed"]["kept"] == [STEPS]
    assert facts["background"]["kept"] == list(range(1, STEPS + 1))
    assert facts["parts"] == ["of-rank-0", "of-rank-1", "of-rank-2"]
    assert facts["in_memory"]["on_disk"] == []
    assert facts["killed"]["hosts"] == ["h1", "h2", "h3"]
    for cwd in facts["killed"]["cwds"]:
        assert cwd.startswith(facts["killed"]["path"]) == (kind == "shared"), "workers run in the run's directory"


def continue_elsewhere(store: dict[str, str], storage: str) -> list[dict[str, Any]]:
    """Each attempt makes one step, and then another engine with another number of workers continues."""
    make_bucket()
    connect(store)
    failed = trainer(storage, {"one_step_per_attempt": True}, workers=1, engine="local").fit(raise_on_error=False)
    facts = [{**facts_of(failed), "step": failed.metrics["step"]}]
    for engine, workers in [("ray", 3), ("local", 1), ("ray", 2)]:
        failed = DataParallelTrainer.restore(
            failed.path,
            train_loop_per_worker=saving,
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 2}),
            run_config=run_config(engine=engine),
        ).fit(raise_on_error=False)
        facts.append({**facts_of(failed), "step": failed.metrics["step"]})
    check(failed)
    check_storage(failed)
    return facts


@pytest.mark.parametrize("kind", KINDS)
def test_one_machine_and_a_cluster_continue_each_others_runs(places: Places, kind: str) -> None:
    facts = places.run(continue_elsewhere, storage=places.storage(kind))
    assert [each["step"] for each in facts] == [1, 2, 3, 4]
    assert [len(each["cwds"]) for each in facts] == [1, 3, 1, 2]
    assert facts[1]["hosts"] == ["h1", "h2", "h3"]
    assert [facts[0]["hosts"], facts[2]["hosts"]] == [["h1"], ["h1"]]


def start_from_a_checkpoint(store: dict[str, str], storage: str) -> list[int]:
    """Of another run, and of the driver's own disk, which the workers do not see whatever the storage is."""
    make_bucket()
    connect(store)
    first = trainer(storage, {"one_step_per_attempt": True}).fit(raise_on_error=False)
    second = trainer(storage, {}, resume=first.checkpoint, workers=2).fit()
    check(second)
    given = Path(RESULTS, uuid.uuid4().hex)
    (given / "deep" / "empty").mkdir(parents=True)
    (given / "step").write_text(str(STEPS - 1))
    (given / "deep" / "large").write_bytes(b"x" * SIZE)
    third = trainer(storage, {}, resume=Checkpoint.from_directory(given)).fit()
    check(third)
    for result in (first, second, third):
        check_storage(result)
    assert second.metrics_dataframe is not None
    assert third.metrics_dataframe is not None
    return [len(second.metrics_dataframe), len(third.metrics_dataframe)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_run_starts_from_a_checkpoint_wherever_that_is(places: Places, kind: str) -> None:
    rows = places.run(start_from_a_checkpoint, storage=places.storage(kind))
    assert rows == [STEPS - 1, 1]


def read_from_the_bucket(store: dict[str, str]) -> list[int]:
    make_bucket()
    connect(store)
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    paceline.data.range(ROWS).write_parquet(uri)
    result = DataParallelTrainer(
        tell_ids,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2}),
        run_config=run_config(),
        datasets={"train": paceline.data.read_parquet(uri)},
        dataset_config={"train": DatasetConfig(split=True, uneven="all")},
    ).fit()
    return [number for metrics in result.rank_metrics.values() for number in metrics["ids"]]


def test_workers_read_a_dataset_from_the_bucket(places: Places) -> None:
    assert sorted(places.run(read_from_the_bucket)) == list(range(ROWS))


# What goes wrong on the way


def spoil_a_piece(config: dict[str, Any]) -> None:
    """One byte of a piece changes after the rank has hashed it, in the first attempt only."""
    from paceline.air.attachment import Attachment
    from paceline.run import rank_target

    if session.get_checkpoint() is None and session.get_world_rank() == 0:

        def spoiled(content: bytes) -> Attachment:
            return Attachment(content[:-1] + bytes([content[-1] ^ 1]))

        if config["spoils"]:
            vars(rank_target)["Attachment"] = spoiled
    saving(config)


def save_spoiled(store: dict[str, str], storage: str) -> str:
    connect(store)
    result = trainer(storage, {"spoils": True}, loop=spoil_a_piece).fit(raise_on_error=False)
    assert result.checkpoint is None
    assert list_checkpoints(result) == []
    check_clean(Path(result.path), result)
    return str(result.error)


def test_a_piece_that_changes_on_the_way_is_noticed(places: Places) -> None:
    error = places.run(save_spoiled, storage=places.storage("local"))
    assert "did not arrive as it was sent" in error


def save_large(config: dict[str, Any]) -> None:
    own = Path("own")
    own.mkdir()
    portion = os.urandom(1 << 20)
    with open(own / "large", "wb") as file:
        for _ in range(config["size"] >> 20):
            file.write(portion)
    session.report({"size": config["size"]}, checkpoint=Checkpoint.from_directory(own))


def memory() -> int:
    """What this process has, and what is in files without a name that it holds."""
    in_files = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:"):
                in_files += os.fstat(int(descriptor)).st_size
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + in_files


def relay_large(store: dict[str, str], storage: str, size: int) -> dict[str, float]:
    connect(store)
    trainer(storage, {"size": 1 << 20}, loop=save_large).fit()
    before, began = memory(), time.monotonic()
    peak, is_over = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.01):
            peak = max(peak, memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = trainer(storage, {"size": size}, loop=save_large).fit()
    seconds = time.monotonic() - began
    is_over.set()
    watcher.join()
    assert result.checkpoint is not None
    result.checkpoint.verify()
    return {"grown": peak - before, "seconds": seconds}


def test_a_large_file_does_not_pass_through_the_drivers_memory(places: Places) -> None:
    facts = places.run(relay_large, storage=places.storage("local"), size=LARGE)
    print(f"relayed {LARGE >> 20} MB in {facts['seconds']:.1f} s; the driver grew by {facts['grown'] / 2**20:.0f} MB")
    assert facts["grown"] < 150 << 20


def stop_half_way(config: dict[str, Any]) -> None:
    """On one host, in the first attempt, the second checkpoint gets stuck within a file."""
    from paceline.air.attachment import Attachment
    from paceline.run import rank_target

    sent = 0

    def stuck(content: bytes) -> Attachment:
        nonlocal sent
        sent += len(content) == rank_target.PIECE_BYTES  # Each checkpoint has two such pieces.
        if sent == 4:
            Path(HALF_WAY).touch()
            time.sleep(1000)
        return Attachment(content)

    if session.get_checkpoint() is None and socket.gethostname() == config["host"]:
        vars(rank_target)["Attachment"] = stuck
    saving(config)


def lose_a_host_half_way(store: dict[str, str], storage: str) -> dict[str, Any]:
    connect(store)
    config = {"all_ranks": True, "host": "h3"}
    failed = trainer(storage, config, loop=stop_half_way, keep_all_ranks=True).fit(raise_on_error=False)
    check_storage(failed)
    facts = {"error": str(failed.error), "kept_then": list_checkpoints(failed)}
    wait_for_nodes(2)
    restored = DataParallelTrainer.restore(
        failed.path,
        train_loop_per_worker=stop_half_way,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}),
    ).fit()
    check(restored)
    check_storage(restored)
    return {**facts, **facts_of(restored)}


def wait_for_nodes(count: int) -> None:
    """Ray takes its time to notice that a host is gone."""
    import ray

    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == count, f"{count} nodes", 60)


def test_a_host_that_dies_while_it_sends_leaves_nothing_half_committed(places: Places) -> None:
    """The last one: it costs the cluster a host."""
    ray_hosts = places.ray_hosts
    driver = ray_hosts.start_driver(
        "h1",
        lose_a_host_half_way,
        variables=places.variables,
        store=places.variables,
        storage=places.storage("local"),
    )
    wait_for(ray_hosts.path("h3", HALF_WAY).exists, "a rank half way", 120)
    ray_hosts.kill("h3")
    facts = driver.result(240)
    assert "h3" in facts["error"]
    assert facts["kept_then"] == ["checkpoint_000000"]
    assert facts["hosts"] == ["h1", "h2"]
    assert facts["kept"] == list(range(1, STEPS + 1))
