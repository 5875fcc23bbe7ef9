"""What `hang_timeout_s="auto"` ends, with limits of seconds: B1, B5 and a rank that has returned (A16)."""

from __future__ import annotations

import inspect
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.air import FailureConfig, session
from paceline.air.errors import HangError
from paceline.testing.invariants import check_cause, check_run, journal_records
from paceline.testing.processes import Marks, wait_for
from paceline.train.torch import TorchConfig
from tests.faults.hanging import shorten
from tests.faults.laboratory import Laboratory


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def wait_in_vain() -> None:
    time.sleep(3600)


def second_line(function: Callable[..., Any]) -> str:
    return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1] + 1}"


def sleeper(config: dict[str, Any]) -> None:
    """Rank 1 sleeps after report 1 of the first attempt, and rank 0 waits for it after report 2."""
    import torch
    import torch.distributed as dist

    session.report({"iteration": 1})
    if session.get_world_rank() == 1 and Marks(config["marks"]).claim("sleep"):
        wait_in_vain()
    session.report({"iteration": 2})
    dist.all_reduce(torch.ones(1))


def test_a_rank_that_sleeps_while_others_wait_is_a_hang_by_default(lab: Laboratory) -> None:
    """B1: it is named with its line, and so is what the others wait in."""
    error = lab.failure_of(sleeper, backend=TorchConfig())
    check_cause(error, {"rank": 1, "kind": "hang"})
    assert error.root_cause is not None
    message = error.root_cause.message
    assert f"rank 1 is at {second_line(wait_in_vain)}, in wait_in_vain, after report 1" in message
    assert "rank 0 waits in all_reduce at " in message
    assert "-- rank 0 --" in error.root_cause.traceback
    assert isinstance(error.__cause__, HangError)
    assert error.result is not None
    assert any("rank 1 is at " in warning for warning in error.result.warnings), "it was warned about before"


def sharded_sleeper(config: dict[str, Any]) -> None:
    """Rank 1 sleeps after report 1, and rank 0 waits for its part of the model after report 2."""
    import torch

    from paceline.train.torch import prepare_model

    model: Any = prepare_model(torch.nn.Linear(2, 2), parallel_strategy="fsdp2")
    session.report({"iteration": 1})
    if session.get_world_rank() == 1:
        wait_in_vain()
    session.report({"iteration": 2})
    if config["ahead"]:
        model.unshard(async_op=True).wait()
    model(torch.ones(1, 2))


@pytest.mark.parametrize(("ahead", "called"), [(False, "all_gather_single"), (True, "foreach_all_gather_copy_out")])
def test_a_rank_that_sleeps_while_others_wait_for_its_part_of_a_model(
    lab: Laboratory, ahead: bool, called: str
) -> None:
    """B1 with FSDP2."""
    error = lab.failure_of(sharded_sleeper, backend=TorchConfig(), config={"ahead": ahead})
    check_cause(error, {"rank": 1, "kind": "hang"})
    assert error.root_cause is not None
    message = error.root_cause.message
    assert f"rank 1 is at {second_line(wait_in_vain)}, in wait_in_vain, after report 1" in message
    assert f"rank 0 waits in {called} at {__file__}:" in message


@pytest.mark.faults
def test_a_hang_is_retried(lab: Laboratory) -> None:
    """B1"""
    result = lab.trainer(sleeper, backend=TorchConfig(), failure_config=FailureConfig(max_failures=1)).fit()
    check_run(result.path, result=result, iterations=2, attempts=2)


@pytest.mark.faults
def test_crossed_collective_operations_show_the_stacks_of_both(lab: Laboratory) -> None:
    """B5: by default they cause a warning, as both ranks are at the same report; a time limit ends them."""

    def loop() -> None:
        import torch
        import torch.distributed as dist

        session.report({"iteration": 1})
        group = dist.new_group([0, 1])
        if session.get_world_rank() == 0:
            dist.all_reduce(torch.ones(1))
        else:
            dist.barrier(group=group)

    error = lab.failure_of(loop, backend=TorchConfig(), failure_config=FailureConfig(hang_timeout_s=4.0))
    check_cause(error, {"kind": "hang"})
    assert error.root_cause is not None
    told = "the ranks are in different collective operations: rank 0 waits in all_reduce at "
    assert told in error.root_cause.message
    assert "rank 1 waits in barrier at " in error.root_cause.message
    assert "in all_reduce" in error.root_cause.traceback
    assert "in barrier" in error.root_cause.traceback
    assert error.result is not None
    assert any(told in warning for warning in error.result.warnings)


CROSSED = """
import sys
from paceline.air import RunConfig, ScalingConfig, session
from paceline.testing.scripts import ScriptPlan
from paceline.train import DataParallelTrainer
from paceline.train.torch import TorchConfig

def loop():
    import torch
    import torch.distributed as dist

    session.report({"iteration": 1})
    group = dist.new_group([0, 1])
    if session.get_world_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.barrier(group=group)

plan = ScriptPlan.load(sys.argv[1])
config = RunConfig(storage_path=plan.storage)
DataParallelTrainer(
    loop, backend_config=TorchConfig(), scaling_config=ScalingConfig(num_workers=2), run_config=config
).fit()
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_crossed_collective_operations_are_not_ended_by_default(lab: Laboratory) -> None:
    """B5: nothing is configured or shortened. After a minute there is a warning, and the run is left alone."""
    with lab.program(CROSSED, lab.plan()) as driver:
        wait_for(
            lambda: "the ranks are in different collective operations" in driver.text(),
            "the warning, which comes after a minute",
            300.0,
        )
        time.sleep(90)  # nothing may happen in this time
        assert driver.family(), driver.text()
        kinds = [record["kind"] for record in journal_records(lab.trial_dir)]
        assert "failure" not in kinds
        assert kinds.count("attempt") == 1
        driver.kill()
        check_run(lab.trial_dir, processes=driver.known(), swept=False)


def tensorflow_loop() -> None:
    tempfile.tempdir = os.getcwd()  # A worker that is killed leaves what AutoGraph has written.
    import numpy as np
    import tensorflow as tf
    import tf_keras as keras

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
    rows = np.ones((8, 2), "float32")
    for step in range(2 if session.get_world_rank() else 3):
        model.fit(rows, rows, verbose=0)
        session.report({"iteration": step + 1})


def horovod_loop() -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    for step in range(2 if session.get_world_rank() else 3):
        hvd.allreduce(torch.ones(1), name=f"step-{step}")
        session.report({"iteration": step + 1})


@pytest.mark.faults
@pytest.mark.parametrize("framework", ["tensorflow", "horovod"])
def test_a_rank_that_waits_for_one_that_has_returned_where_none_can_leave(lab: Laboratory, framework: str) -> None:
    """A16: two samples find out."""
    if framework == "tensorflow":
        from paceline.train.tensorflow.backend import TensorflowConfig

        error = lab.failure_of(tensorflow_loop, backend=TensorflowConfig())
    else:
        pytest.importorskip("horovod.torch")
        from paceline.train.horovod.backend import HorovodConfig

        error = lab.failure_of(horovod_loop, backend=HorovodConfig())
    check_cause(error, {"rank": 1, "kind": "report_mismatch"})
    assert error.root_cause is not None
    assert error.root_cause.message.startswith("rank 1 returned after report 2 while rank 0 waited in ")
    assert f" at {__file__}:" in error.root_cause.message
