"""A host that is cut off while workers wait for each other: it is named, in time, whatever the framework says of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.train import FailureConfig, RunConfig, ScalingConfig
from paceline.train.base_trainer import BaseTrainer
from paceline.tune import Callback
from tests.contracts import framework_trainings as trainings
from tests.engine.remote.engine import AgentsEngine
from tests.train.trees.libraries import LIGHTGBM, XGBOOST, Library, binary
from tools.hosts import Hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEARTBEAT_S = 8.0
ENOUGH_S = HEARTBEAT_S + 20.0
"""Until the run has ended: the heartbeat, its second look, and the end of workers that cannot be reached."""
TWO = ScalingConfig(num_workers=2)


def add_up_for_ever(config: dict[str, Any]) -> None:
    while True:
        config["sum"](1.0)
        train.report({"added": 1})


def add_up_with_horovod(config: dict[str, Any]) -> None:
    import horovod.torch as hvd

    hvd.init()
    add_up_for_ever({"sum": trainings.horovod_torch_sum})


def torch_trainer(run_config: RunConfig, **torch_settings: Any) -> BaseTrainer:
    from paceline.train.torch import TorchConfig, TorchTrainer

    return TorchTrainer(
        add_up_for_ever,
        train_loop_config={"sum": trainings.torch_sum},
        torch_config=TorchConfig(**torch_settings),
        scaling_config=TWO,
        run_config=run_config,
    )


def impatient_torch_trainer(run_config: RunConfig) -> BaseTrainer:
    """The other rank fails long before the heartbeat finds out."""
    return torch_trainer(run_config, timeout_s=2)


def tensorflow_trainer(run_config: RunConfig) -> BaseTrainer:
    from paceline.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(
        add_up_for_ever,
        train_loop_config={"sum": trainings.tensorflow_sum},
        scaling_config=TWO,
        run_config=run_config,
    )


def horovod_trainer(run_config: RunConfig) -> BaseTrainer:
    from paceline.train.horovod import HorovodTrainer

    return HorovodTrainer(add_up_with_horovod, train_loop_config={}, scaling_config=TWO, run_config=run_config)


def tree_trainer(library: Library) -> Callable[[RunConfig], BaseTrainer]:
    def make(run_config: RunConfig) -> BaseTrainer:
        trainer: BaseTrainer = library.trainer(binary(), num_boost_round=1_000_000, run_config=run_config)
        return trainer

    return make


class CutHost(Callback):
    """Takes a host off the network when the run has its first row."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self.name = name
        self.time: float | None = None

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if self.time is None:
            self._hosts.cut(self.name)
            self.time = time.monotonic()


@pytest.mark.parametrize(
    "make_trainer",
    [
        torch_trainer,
        impatient_torch_trainer,
        tensorflow_trainer,
        horovod_trainer,
        pytest.param(tree_trainer(XGBOOST), id="xgboost"),
        pytest.param(tree_trainer(LIGHTGBM), id="lightgbm"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_host_that_was_cut_off_is_the_cause(
    make_trainer: Callable[[RunConfig], BaseTrainer], rank: int, own_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = own_hosts(2, names=True)
    cut = CutHost(hosts, f"h{rank + 1}")
    with contextlib.closing(AgentsEngine(hosts=hosts)) as engine:
        result = make_trainer(
            RunConfig(
                engine=engine,
                storage_path=str(tmp_path),
                callbacks=[cut],
                failure_config=FailureConfig(heartbeat_timeout_s=HEARTBEAT_S, start_timeout_s=240),
            )
        ).fit(raise_on_error=False)
        ended = time.monotonic()
    assert cut.time is not None, f"nothing was reported: {result.error}"
    assert ended - cut.time < ENOUGH_S
    first_line = str(result.error).splitlines()[0]
    assert f"rank {rank}: h{rank + 1} (10.231.0.{rank + 1}) has given no sign of life for 8 s" in first_line
