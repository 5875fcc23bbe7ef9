"""An elastic run on a Ray cluster: a host is killed, and comes back. Rows of its dataset are read exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import CheckpointConfig, DatasetConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.run.records import AttemptFailed, AttemptStarted, RunRecords
from paceline.storage.run_dir import RunDir
from paceline.train import Checkpoint, DataParallelTrainer
from paceline.tune import Callback
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RESULTS, DriverProcess, RayHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HEARTBEAT_S = 8.0
PHASE_S = 120.0
ROWS = 500
MOST_EPOCHS = 2_000
"""A guard: a loop that is never given the workers it waits for ends here, and the test fails."""


def read_epochs(config: dict[str, Any]) -> None:
    """Until the group has been smaller and is whole again: then the epoch that is under way is the last."""
    shard = session.get_dataset_shard("train")
    size = session.get_world_size()
    step = 0
    for _ in shard.iter_epochs(MOST_EPOCHS):
        epoch = shard.epoch
        for batch in shard.iter_batches(batch_size=10, drop_last=False):
            step += 1
            row = {"epoch": epoch, "ids": batch["id"].tolist(), "size": size}
            saved = Checkpoint.from_dict({"step": step}) if step % 5 == 0 else None
            session.report({**row, "rows": len(batch["id"])}, checkpoint=saved, reduce={"rows": "sum"})
        if (session.get_previous_world_size(), size) == tuple(config["until"]):
            return


class TellRows(Callback):
    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        tell("row", size=result["size"])


def run_elastic(until: tuple[int, int]) -> dict[str, Any]:
    """max_failures is 0: a lost host is not charged."""
    result = DataParallelTrainer(
        read_epochs,
        train_loop_config={"until": list(until)},
        scaling_config=ScalingConfig(
            num_workers=(1, 3), resources_per_worker={"CPU": 2}, elastic_resize_monitor_interval_s=1.0
        ),
        run_config=RunConfig(
            storage_path=RESULTS,
            verbose=2,
            callbacks=[TellRows()],
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(heartbeat_timeout_s=HEARTBEAT_S, start_timeout_s=120),
        ),
        datasets={"train": paceline.data.range(ROWS)},
        dataset_config={"train": DatasetConfig(split=True, uneven="equal", seed=3)},
    ).fit()
    records = list(RunRecords.read(RunDir(Path(result.path))))
    frame = result.rank_dataframe
    ids: dict[int, list[int]] = {}
    for row in frame.to_dict("records"):
        ids.setdefault(row["epoch"], []).extend(row["ids"])
    return {
        "sizes": [each.world_size for each in records if isinstance(each, AttemptStarted)],
        "failures": [[each.cause, each.charged] for each in records if isinstance(each, AttemptFailed)],
        "twice": {epoch: len(given) - len(set(given)) for epoch, given in ids.items() if len(set(given)) < len(given)},
        "rows": sorted({len(given) for given in ids.values()}),
        "warnings": result.warnings,
    }


def wait_for_size(driver: DriverProcess, size: int) -> None:
    while driver.wait_for("row", PHASE_S)["size"] != size:
        pass


def test_a_run_shrinks_when_a_host_is_killed_and_grows_when_one_joins(own_ray_hosts: Callable[..., RayHosts]) -> None:
    ray_hosts = own_ray_hosts(3, driver_hosts=1)
    driver = ray_hosts.start_driver("h4", run_elastic, until=[2, 3])
    wait_for_size(driver, 3)
    ray_hosts.kill("h3")
    wait_for_size(driver, 2)
    ray_hosts.revive("h3")
    outcome = driver.result(PHASE_S)
    assert outcome["sizes"] == [3, 2, 3]
    assert outcome["failures"] == [["node_lost", False]]
    assert outcome["twice"] == {}
    assert set(outcome["rows"]) <= {ROWS - 2, ROWS - 1, ROWS}  # Equal shares leave out at most two rows of an epoch.
    ray_hosts.wait_until_clean()
