"""A worker that stops moving without dying."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from paceline.air import FailureConfig, session
from paceline.air.errors import EngineError, ReportMismatchError, TrainingFailedError
from paceline.run.backend import Backend, BackendConfig
from paceline.testing.invariants import check_cause, check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import Action, make_trainer
from tests.faults.laboratory import Laboratory


@pytest.mark.usefixtures("fault_engine")
def test_no_progress_is_an_error_when_asked_for(lab: Laboratory) -> None:
    """B1."""

    def loop(config: dict[str, Any]) -> None:
        session.report({"iteration": 1})
        if session.get_world_rank() == 1:
            wait_in_vain(config)
        session.report({"iteration": 2}, reduce={"iteration": "mean"})

    def wait_in_vain(config: dict[str, Any]) -> None:
        Marks(config["marks"]).pass_gate("never")

    error = lab.failure_of(loop, failure_config=FailureConfig(hang_timeout_s=1.0))
    check_cause(error, {"rank": 1, "kind": "hang"})
    assert "wait_in_vain" in str(error) + error.failures[-1].root_cause.traceback


def test_a_rank_that_asks_for_ever_makes_no_progress(lab: Laboratory) -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"iteration": 1})
        while session.get_world_rank() == 1 and not Marks(config["marks"]).read("never"):
            session.should_checkpoint()
        session.report({"iteration": 2})

    error = lab.failure_of(loop, failure_config=FailureConfig(hang_timeout_s=1.0))
    check_cause(error, {"rank": 1, "kind": "hang"})


@pytest.mark.usefixtures("fault_engine")
def test_a_rank_that_never_reports_may_not_hang_after_rank_zero_has_returned(lab: Laboratory) -> None:
    def loop(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 1:
            Marks(config["marks"]).pass_gate("never")
        session.report({"iteration": 1})

    error = lab.failure_of(loop, failure_config=FailureConfig(hang_timeout_s=1.0))
    check_cause(error, {"rank": 1, "kind": "hang"})


@pytest.mark.usefixtures("fault_engine")
def test_a_rank_that_reported_before_a_retry_may_not_hang_after_it(lab: Laboratory) -> None:
    """Rank 0 is alone in reporting then, as if the program left it to rank 0."""

    def loop(config: dict[str, Any]) -> None:
        marks = Marks(config["marks"])
        is_second = not marks.claim(f"first attempt of rank {session.get_world_rank()}")
        if session.get_world_rank() == 1 and is_second:
            marks.pass_gate("never")
        session.report({"iteration": 1})
        session.report({"iteration": 2}, reduce={"iteration": "mean"})
        if session.get_world_rank() == 1:
            raise ValueError("on purpose")
        marks.pass_gate("never")

    failures = FailureConfig(hang_timeout_s=1.0, max_failures=1)
    error = lab.failure_of(loop, attempts=2, failure_config=failures)
    check_cause(error, {"rank": 1, "kind": "hang"})
    assert [failure.root_cause.kind for failure in error.failures] == ["exception", "hang"]


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize(
    "action",
    [
        pytest.param(Action("signal", 3, 1, signal.SIGSTOP), id="stopped", marks=pytest.mark.slow),
        pytest.param(Action("hold the interpreter", 3, 1), id="gil"),
    ],
)
def test_unresponsive_worker_is_the_cause(lab: Laboratory, action: Action) -> None:
    """B2."""
    lab.fail(lab.plan(action, failures={"heartbeat_timeout_s": 1.5}), {"rank": 1, "kind": "unresponsive"})


@pytest.mark.usefixtures("fault_engine")
def test_unresponsive_worker_is_retried(lab: Laboratory) -> None:
    """B2."""
    plan = lab.plan(Action("signal", 3, 1, signal.SIGSTOP), failures={"heartbeat_timeout_s": 1.5, "max_failures": 1})
    lab.succeed(plan, attempts=2)


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize("short", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_unequal_report_counts_are_told_as_soon_as_a_rank_finished(lab: Laboratory, short: int) -> None:
    """B3."""

    def loop(config: dict[str, Any]) -> None:
        rank = session.get_world_rank()
        for iteration in range(1, 5 if rank == config["short"] else 6):
            session.report({"iteration": iteration})
        if rank != config["short"]:
            Marks(config["marks"]).pass_gate("never")

    error = lab.failure_of(loop, config={"short": short})
    assert error.root_cause is not None
    assert error.root_cause.kind == "report_mismatch"
    assert isinstance(error.__cause__, ReportMismatchError)
    assert f"rank {short}: 4" in str(error)
    assert f"rank {1 - short}: 5" in str(error)


@pytest.mark.usefixtures("fault_engine")
def test_reports_of_rank_zero_alone_are_accepted(lab: Laboratory) -> None:
    """B4."""

    def loop() -> None:
        if session.get_world_rank() == 0:
            for iteration in range(1, 4):
                session.report({"iteration": iteration})

    result = lab.trainer(loop).fit()
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert any("rank 0" in warning for warning in result.warnings)


@pytest.mark.usefixtures("fault_engine")
def test_worker_that_does_not_stop_is_killed_and_the_run_succeeds(lab: Laboratory) -> None:
    """B7."""
    plan = lab.plan(
        Action("block", 3, 1), iterations=10, every=0, stop={"training_iteration": 4}, failures={"stop_grace_s": 0.5}
    )
    result = make_trainer(plan).fit()
    check_run(result.path, result=result, iterations=4, attempts=1)
    assert result.error is None


@pytest.mark.usefixtures("fault_engine")
def test_worker_that_swallows_the_stop_is_killed(lab: Laboratory) -> None:
    def loop(config: dict[str, Any]) -> None:
        iteration = 0
        while True:
            iteration += 1
            try:
                session.report({"iteration": iteration})
            except BaseException:
                Marks(config["marks"]).say("swallowed", rank=session.get_world_rank())

    trainer = lab.trainer(
        loop,
        stop={"training_iteration": 3},
        failure_config=FailureConfig(stop_grace_s=0.5),
    )
    result = trainer.fit()
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert {mark["rank"] for mark in lab.marks.read("swallowed")} == {0, 1}


class HangingBackend(Backend):
    preload = ("module_that_never_loads",)


class HangingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return HangingBackend


@pytest.fixture
def module_that_never_loads(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = lab.root / "modules"
    modules.mkdir()
    (modules / "module_that_never_loads.py").write_text(
        "import os, signal\n"
        "def wait_in_vain():\n    while True:\n        signal.pause()\n"
        "def loop():\n    pass\n"
        "if not os.environ.get('LOADED_BY_THE_TEST'):\n    wait_in_vain()\n"
    )
    monkeypatch.syspath_prepend(str(modules))


@pytest.mark.usefixtures("module_that_never_loads")
def test_hang_while_preloading_names_the_module(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """B9."""
    monkeypatch.setenv("PACELINE_ENGINE", "local")  # An earlier test may have connected to Ray.
    trainer = lab.trainer(
        lambda: None,
        backend=HangingConfig(),
        failure_config=FailureConfig(start_timeout_s=1.0, max_failures=2),
    )
    with pytest.raises((EngineError, TrainingFailedError)) as caught:
        trainer.fit()
    assert "module_that_never_loads" in str(caught.value)
    check_run(lab.trial_dir)


@pytest.mark.usefixtures("fault_engine", "module_that_never_loads")
def test_hang_while_the_function_is_loaded_names_the_rank(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """B9."""
    monkeypatch.setenv("LOADED_BY_THE_TEST", "yes")
    import module_that_never_loads  # type: ignore[import-not-found]

    monkeypatch.delenv("LOADED_BY_THE_TEST")
    trainer = lab.trainer(
        module_that_never_loads.loop,
        failure_config=FailureConfig(start_timeout_s=1.0, max_failures=2),
    )
    with pytest.raises((EngineError, TrainingFailedError)) as caught:
        trainer.fit()
    assert "wait_in_vain" in str(caught.value)
    assert "rank 0" in str(caught.value)
    check_run(lab.trial_dir)
