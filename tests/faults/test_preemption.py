"""SIGTERM and SIGUSR1, to the driver, to workers and to all of them: a checkpoint, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, Result, session
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Marks, fault, process, wait_for
from paceline.testing.scripts import Action, ScriptPlan, read_state, saved_iteration
from tests.faults.cases import mostly_slow, rounds
from tests.faults.laboratory import Laboratory

FOREVER = 1_000_000
TERMINATED = 128 + signal.SIGTERM


def last_reports(lab: Laboratory, ranks: int = 2) -> set[int]:
    """The last iterations that ranks have come to; the report that raised is said by nobody, so one is added."""
    return {max(mark["iteration"] for mark in lab.marks.read("reported", rank=rank)) + 1 for rank in range(ranks)}


def continued(lab: Laboratory, plan: ScriptPlan, more: int = 3) -> Result:
    """Restore the one run of the laboratory and let it count a little further."""
    done = len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
    return lab.succeed(ScriptPlan(**{**vars(plan.continued(lab.trial_dir)), "iterations": done + more}))


@pytest.mark.parametrize("number", mostly_slow([signal.SIGTERM, signal.SIGUSR1], everyday=[signal.SIGTERM]))
def test_d1_driver_saves_and_stops_all_ranks_at_one_report(lab: Laboratory, number: signal.Signals) -> None:
    """D1: the checkpoint is that of the last iteration, so that nothing is done twice. The exit code is 143."""
    plan = lab.plan(iterations=FOREVER, every=0, asks=True)
    with lab.drive(plan) as driver:
        lab.marks.wait("reported", 5, rank=0)
        driver.family()
        driver.send(number)
        assert driver.wait() == TERMINATED
        check_run(lab.trial_dir, processes=driver.known())
    (last,) = last_reports(lab)
    (checkpoint,) = committed_checkpoints(lab.trial_dir)
    assert read_state(checkpoint) == last
    assert Result.from_path(str(lab.trial_dir)).status == "interrupted"
    continued(lab, plan)
    assert {mark["after"] for mark in lab.marks.read("started")} == {0, last}


@pytest.mark.slow
def test_loop_that_never_asks_stops_at_its_next_report(lab: Laboratory) -> None:
    """D1 without should_checkpoint(): what was saved before counts."""
    plan = lab.plan(iterations=FOREVER, every=5, checkpoints={"num_to_keep": 2})
    with lab.drive(plan) as driver:
        lab.marks.wait("saved", 2, rank=0)
        driver.send(signal.SIGTERM)
        assert driver.wait() == TERMINATED
    assert len(last_reports(lab)) == 1
    continued(lab, plan)


def _is_preempted(config: dict[str, Any]) -> None:
    """In each of the first attempts a rank gets a signal, and the loop runs on until it is stopped."""
    marks, rank = Marks(config["marks"]), session.get_world_rank()
    last = session.get_checkpoint()
    start = 0 if last is None else last.to_dict()["step"]
    marks.say("started", rank=rank, after=start)
    attempt = len(marks.read("started", rank=rank))
    is_last = attempt > config["times"]
    for step in range(start + 1, start + 4 if is_last else FOREVER):
        if not is_last and step == start + 3 and rank == (config["rank"] + attempt) % 2:
            os.kill(os.getpid(), config["signal"])
        saves = session.should_checkpoint()
        marks.say("step", rank=rank, step=step)
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)


def preempt(lab: Laboratory, times: int, rank: int = 0, number: int = signal.SIGTERM) -> Result:
    """A run whose ranks get the signal in turn; no step of it may be done twice, or left out."""
    trainer = lab.trainer(_is_preempted, config={"times": times, "rank": rank, "signal": int(number)})
    result = trainer.fit()
    check_run(result.path, result=result, attempts=times + 1)
    for each in (0, 1):
        steps = [mark["step"] for mark in lab.marks.read("step", rank=each)]
        assert steps == list(range(1, len(steps) + 1)), "a step was done twice, or left out"
        assert len(steps) == result.metrics["training_iteration"]
    return result


@pytest.mark.parametrize("number", mostly_slow([signal.SIGTERM, signal.SIGUSR1], everyday=[signal.SIGTERM]))
@pytest.mark.parametrize("rank", mostly_slow([0, 1], everyday=[1]))
def test_d2_worker_is_preempted_and_the_run_continues(lab: Laboratory, rank: int, number: signal.Signals) -> None:
    """D2: all ranks save and stop at one report; new ones continue after it, and max_failures=0 allows that."""
    result = preempt(lab, 1, rank, number)
    assert any("New workers continue, unless the driver is told to stop as well" in text for text in result.warnings)


class _Signals(Callback):
    """Sends one signal to the driver, which is this process, at its third row."""

    def __init__(self, number: int) -> None:
        self._number = number

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result["training_iteration"] == 3:
            os.kill(os.getpid(), self._number)


def _reports() -> None:
    for step in range(FOREVER):
        session.report({"step": step})


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (signal.SIGTERM, "A second signal stops it immediately."),
        (signal.SIGUSR1, "A second SIGTERM stops it immediately."),
    ],
)
def test_how_to_stop_sooner(lab: Laboratory, number: int, advice: str) -> None:
    """SIGUSR1 may come several times."""
    with pytest.raises(SystemExit) as caught:
        lab.trainer(_reports, workers=1, callbacks=[_Signals(number)]).fit()
    warnings = getattr(caught.value, "result").warnings  # noqa: B009
    assert [text for text in warnings if text.endswith(advice)]


def test_d2_worker_of_a_loop_that_never_asks(lab: Laboratory) -> None:
    plan = lab.plan(Action("signal", 6, 1, signal.SIGTERM), iterations=FOREVER, every=2)
    with lab.drive(plan) as driver:
        lab.marks.wait("started", 4)
        driver.send(signal.SIGTERM)
        assert driver.wait() == TERMINATED
        check_run(lab.trial_dir, processes=driver.known(), attempts=2)
    assert {mark["after"] % 2 for mark in lab.marks.read("started")} == {0}


def test_signal_to_every_process_is_one_preemption(lab: Laboratory) -> None:
    """As a batch system sends it: to the driver, to the workers, and to the processes in between."""
    plan = lab.plan(iterations=FOREVER, every=0, asks=True)
    with lab.drive(plan) as driver:
        lab.marks.wait("reported", 5, rank=0)
        for member in driver.family():
            os.kill(member.pid, signal.SIGTERM)
        driver.send(signal.SIGTERM)
        assert driver.wait() == TERMINATED
        check_run(lab.trial_dir, processes=driver.known())
    starts = {mark["after"] for mark in lab.marks.read("started")}
    newest = read_state(committed_checkpoints(lab.trial_dir)[-1])
    assert newest == len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
    assert len(starts) <= 2  # The workers' signals may have been heard, and answered, before the driver's own.
    continued(lab, plan)


def test_d3_workers_that_ignore_the_signal_are_killed_at_the_end_of_the_grace_period(lab: Laboratory) -> None:
    """D3: the run continues after the newest checkpoint that was committed."""
    plan = lab.plan(Action("block", 8, 0), iterations=FOREVER, every=3, asks=True, failures={"preemption_grace_s": 0.5})
    with lab.drive(plan) as driver:
        lab.marks.wait("action", do="block")
        driver.family()
        driver.send(signal.SIGTERM)
        assert driver.wait() == TERMINATED
        check_run(lab.trial_dir, processes=driver.known())
    assert read_state(committed_checkpoints(lab.trial_dir)[-1]) == 6
    continued(lab, plan)


@pytest.mark.faults
def test_d3_the_grace_period_is_kept(lab: Laboratory) -> None:
    """D3: not shorter than the grace, and not longer than that and a second; asserted at ten times the bound."""
    grace_s = 3.0
    plan = lab.plan(
        Action("block", 8, 0), iterations=FOREVER, every=3, asks=True, failures={"preemption_grace_s": grace_s}
    )
    with lab.drive(plan) as driver:
        lab.marks.wait("action", do="block")
        driver.family()
        began = time.monotonic()
        driver.send(signal.SIGTERM)
        assert driver.wait() == TERMINATED
        took = time.monotonic() - began
        check_run(lab.trial_dir, processes=driver.known())
    assert grace_s <= took <= 10 * (grace_s + 1), took
    continued(lab, plan)


def test_d3_a_preempted_worker_that_does_not_stop_is_replaced(lab: Laboratory) -> None:
    """D3, of a worker: the others wait for it in vain, and all are killed."""
    plan = lab.plan(
        Action("signal", 5, 1, signal.SIGTERM),
        Action("block", 5, 1),
        iterations=8,
        every=2,
        failures={"preemption_grace_s": 0.5},
    )
    result = lab.succeed(plan, attempts=2)
    assert any("were killed" in text for text in result.warnings)


WRITING = ["after_stage_file", "before_report_send"]
COMMITTING = ["before_commit_rename", "after_commit_rename", "before_ack"]


@pytest.mark.parametrize("point", mostly_slow([*WRITING, *COMMITTING], everyday=["after_stage_file"]))
@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_d4_signal_while_a_checkpoint_is_written(lab: Laboratory, point: str, signals: int) -> None:
    """D4: the save completes or leaves nothing, even if a second signal ends everything at once."""
    plan = lab.plan(iterations=FOREVER, asks=True)
    rank: Any = 0 if point in WRITING else "driver"
    with lab.drive(plan, env=fault(point, "stop", rank=rank, times=5)) as driver:
        pid = lab.marks.wait("started", rank=0)[0]["pid"] if point in WRITING else driver.pid
        at_the_point = process(pid)
        assert at_the_point is not None
        wait_for(lambda: at_the_point.state == "T", f"process {pid} to stop itself")
        driver.family()
        for _ in range(signals):
            driver.send(signal.SIGTERM)
            time.sleep(0.2 * (signals > 1))  # Otherwise the system makes one of two.
        with contextlib.suppress(ProcessLookupError):  # The second signal has ended it.
            os.kill(pid, signal.SIGCONT)
        assert driver.wait() == TERMINATED
        check_run(lab.trial_dir, processes=driver.known())
    newest = read_state(committed_checkpoints(lab.trial_dir)[-1])
    if signals == 1:
        assert newest == len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
    continued(lab, plan)


def test_d4_signal_to_a_worker_in_the_middle_of_its_save(lab: Laboratory) -> None:
    """D4: the signal comes to the process that writes the files."""
    plan = lab.plan(iterations=9)
    with lab.drive(plan, env=fault("after_stage_file", "stop", rank=0, attempt=0, times=5)) as driver:
        pid = lab.marks.wait("started", rank=0)[0]["pid"]
        writer = process(pid)
        assert writer is not None
        wait_for(lambda: writer.state == "T", f"process {pid} to stop itself")
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        assert driver.wait() == 0
        check_run(lab.trial_dir, processes=driver.known(), iterations=9, attempts=2)


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_d5_preempted_twenty_times(lab: Laboratory) -> None:
    """D5: with max_failures=0 the run completes; no iteration is done twice, whenever the signals come."""
    preempt(lab, rounds(20))


def _asks_far_apart(config: dict[str, Any]) -> None:
    """Rank 1 does not ask before rank 0 has been told, and has stopped."""
    marks, rank = Marks(config["marks"]), session.get_world_rank()
    last = session.get_checkpoint()
    start = 0 if last is None else last.to_dict()["step"]
    try:
        for step in range(start + 1, FOREVER if last is None else start + 3):
            if last is None and (step, rank) == (4, 1):
                marks.pass_gate("rank 0 has stopped")
            if last is None and (step, rank) == (10, 0):
                os.kill(os.getpid(), signal.SIGUSR1)
            saves, preemption = session.should_checkpoint(), session.preempted()
            marks.say("told", rank=rank, step=step, saves=saves, reason=preemption and preemption.reason)
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)
    finally:
        if rank == 0:
            marks.open_gate("rank 0 has stopped")


def test_ranks_are_told_the_same_however_far_apart_they_are(lab: Laboratory) -> None:
    """Rank 0 is told long before rank 1 asks the same question; neither waits for the other."""
    result = lab.trainer(_asks_far_apart, failure_config=FailureConfig(preemption_grace_s=60)).fit()
    check_run(result.path, result=result, attempts=2)
    told = [
        [(mark["step"], mark["saves"], mark["reason"]) for mark in lab.marks.read("told", rank=rank)] for rank in (0, 1)
    ]
    assert told[0] == told[1]
    assert [saves for _, saves, _ in told[0]].count(True) == 1
    assert {reason for _, saves, reason in told[0] if saves} == {"SIGUSR1 to rank 0"}


def _only_rank_zero_asks(config: dict[str, Any]) -> None:
    """Rank 1 is several reports ahead when rank 0 saves."""
    marks, rank = Marks(config["marks"]), session.get_world_rank()
    last = session.get_checkpoint()
    start = 0 if last is None else last.to_dict()["step"]
    for step in range(start + 1, FOREVER if last is None else start + 4):
        if last is None and (step, rank) == (3, 0):
            marks.wait("ahead")
            os.kill(os.getpid(), signal.SIGTERM)
        if last is None and (step, rank) == (9, 1):
            marks.say("ahead")
        saves = rank == 0 and session.should_checkpoint()
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)


def test_rank_that_is_ahead_of_the_checkpoint_stops_too(lab: Laboratory) -> None:
    """Nobody waits for the end of the grace period, and nobody is killed."""
    result = lab.trainer(_only_rank_zero_asks, failure_config=FailureConfig(preemption_grace_s=20)).fit()
    check_run(result.path, result=result, attempts=2)
    assert not [text for text in result.warnings if "killed" in text]
    rows = result.metrics_dataframe["step"].tolist()
    assert rows == list(range(1, len(rows) + 1))


def _has_own_handler(config: dict[str, Any]) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    for step in range(5):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        assert not session.should_checkpoint()
        session.report({"heard": len(heard), "step": step})


def test_own_handler_of_the_loop_comes_first(lab: Laboratory) -> None:
    result = lab.trainer(_has_own_handler).fit()
    check_run(result.path, result=result, iterations=5, attempts=1)
    assert result.metrics["heard"] == 1


def _ends_its_children(config: dict[str, Any]) -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    for _ in range(3):
        child = context.Process(target=time.sleep, args=(1000,))
        child.start()
        child.terminate()
        child.join(30)
        assert not session.should_checkpoint()
        session.report({"exit": child.exitcode})


def test_signal_to_a_forked_child_ends_the_child_and_nothing_else(lab: Laboratory) -> None:
    """Such as those that load data, which are ended by SIGTERM."""
    result = lab.trainer(_ends_its_children).fit()
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert result.metrics["exit"] == -signal.SIGTERM


def _dies_of_it(config: dict[str, Any]) -> None:
    marks = Marks(config["marks"])
    start = saved_iteration(None) if (last := session.get_checkpoint()) is None else last.to_dict()["step"]
    for step in range(start + 1, 6):
        if step == 3 and session.get_world_rank() == 1 and marks.claim("once"):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_worker_that_sigterm_kills_is_preempted_too(lab: Laboratory) -> None:
    result = lab.trainer(_dies_of_it).fit()
    check_run(result.path, result=result, iterations=5, attempts=2)
