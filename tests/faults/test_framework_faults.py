"""A rank ends in every way while its peer is in a training step of its framework.

The peer's framework tells that it lost somebody, in words of its own or by ending its process: never the cause.
"""

from __future__ import annotations

import importlib
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.testing.backend_contract import BackendExperiment, ShortBackendContract
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import Action
from tests.contracts import test_backends as frameworks
from tests.faults.cases import long_run
from tests.faults.laboratory import Laboratory

pytestmark = pytest.mark.usefixtures("fault_engine")

WAYS = {
    Action("exit", 2, 1, 3): "exit",
    Action("exit at once", 3, 1, 0): "premature_exit",
    Action("segfault", 4, 1): "signal",
    Action("signal", 5, 1, signal.SIGABRT): "signal",
    Action("raise", 6, 0, "rank 0 this time"): "exception",
    Action("signal", 7, 0, signal.SIGKILL): "signal",
}
"""How a rank ends, one way per attempt, and what the cause is called."""
FEWER_WAYS = {
    Action("exit at once", 2, 1, 0): "premature_exit",
    Action("raise", 3, 1, "the culprit"): "exception",
    Action("signal", 4, 0, signal.SIGKILL): "signal",
}
"""For frameworks that every attempt has to import again."""


@pytest.fixture(
    scope="module",
    params=[
        frameworks.TestTorch,
        pytest.param(frameworks.TestHorovodTorch, marks=pytest.mark.slow),
        *(
            long_run(framework, seconds=600)
            for framework in (
                frameworks.TestAccelerate,
                frameworks.TestTransformers,
                frameworks.TestLightning,
                frameworks.TestTensorflow,
                frameworks.TestHorovodTensorflowInFull,
            )
        ),
    ],
)
def framework(request: pytest.FixtureRequest) -> ShortBackendContract:
    if request.param is frameworks.TestLightning:  # sets variables when it is imported
        importlib.import_module("tests.contracts.lightning_training")
    contract: ShortBackendContract = request.param()
    return contract


def test_the_rank_that_ended_is_the_cause_and_its_peer_the_echo(
    framework: ShortBackendContract, tmp_path: Path
) -> None:
    """A9."""
    is_imported_anew = isinstance(framework, (frameworks.TestTensorflow, frameworks.TestHorovodTensorflowInFull))
    ways = FEWER_WAYS if is_imported_anew else WAYS
    experiment = BackendExperiment(framework, tmp_path)
    result = experiment.succeed(*ways, epochs=len(ways) + 2, others_train=True)
    assert experiment.causes(result) == [(action.rank, kind) for action, kind in ways.items()]
    assert [experiment.done_at_start(rank) for rank in (0, 1)] == [list(range(len(ways) + 1))] * 2
    experiment.check_ranks_agree(2)


def leave_horovod_and_raise(config: dict[str, Any]) -> None:
    """Rank 1 says goodbye before its exception is known to anybody; rank 0 hears of that in its collective."""
    import horovod.torch as hvd
    import torch

    marks = Marks(config["marks"])
    hvd.init()
    hvd.allreduce(torch.ones(1))
    try:
        if hvd.rank() == 1:
            raise ValueError("the culprit")
        try:
            hvd.allreduce(torch.ones(1))
        except hvd.HorovodInternalError:
            marks.say("heard")
            raise
    finally:
        leaves = hvd.rank() == 1
        hvd.shutdown()
        if leaves:
            marks.wait("heard")


@pytest.mark.slow
def test_a_rank_that_leaves_before_its_exception_is_known_is_the_cause(lab: Laboratory) -> None:
    from paceline.train.horovod import HorovodTrainer

    trainer = HorovodTrainer(
        leave_horovod_and_raise,
        train_loop_config={"marks": str(lab.marks.directory)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(lab.storage), verbose=0),
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    cause = {"rank": 1, "kind": "exception", "exception_type": "builtins.ValueError"}
    check_run(lab.trial_dir, error=caught.value, cause=cause, attempts=1)
