"""Ctrl-C and other signals to the driver, and a terminal that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pexpect
import pytest

from paceline.air import Result
from paceline.run.backend import Backend, BackendConfig
from paceline.testing.invariants import check_no_processes, check_run, committed_checkpoints
from paceline.testing.processes import Driver, Marks, Process, fault, process, wait_for
from paceline.testing.scripts import Action, ScriptPlan, make_trainer, read_state
from paceline.train import DataParallelTrainer
from tests.faults.cases import long_run, mostly_slow
from tests.faults.laboratory import Laboratory

FOREVER = 1_000_000
INTERRUPTED = (-signal.SIGINT, 130)
"""How a shell sees a program that Ctrl-C ended: killed by SIGINT, or the exit code that stands for it."""


def continue_run(lab: Laboratory, plan: ScriptPlan, more: int = 3) -> Result:
    """Restore the one run of the laboratory and let it count a little further."""
    done = len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
    return lab.succeed(ScriptPlan(**{**vars(plan.continued(lab.trial_dir)), "iterations": done + more}))


def test_one_interrupt_stops_all_ranks_at_one_report(lab: Laboratory) -> None:
    """C4."""
    plan = lab.plan(iterations=FOREVER, every=5, checkpoints={"num_to_keep": 2})
    with lab.drive(plan) as driver:
        lab.marks.wait("saved", 2, rank=0)
        driver.family()
        driver.send(signal.SIGINT)
        assert driver.wait() in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    assert {mark["rank"] for mark in lab.marks.read("stopping")} == {0, 1}
    last = {max(mark["iteration"] for mark in lab.marks.read("reported", rank=rank)) for rank in (0, 1)}
    assert len(last) == 1, f"the ranks stopped at different reports: {last}"
    assert lab.outcome()["outcome"] == "interrupted"
    rows = Result.from_path(str(lab.trial_dir)).metrics_dataframe
    assert len(rows) == last.pop() + 1  # the report that raised is a row as well
    continue_run(lab, plan)


def test_interrupt_from_a_keyboard_reaches_only_the_driver(lab: Laboratory) -> None:
    plan = lab.plan(iterations=FOREVER, every=5, checkpoints={"num_to_keep": 2}, verbose=2)
    path = plan.save(lab.root / "plan.json")
    shell = pexpect.spawn(
        sys.executable, ["-m", "paceline.testing.scripts", str(path)], timeout=60, dimensions=(40, 120)
    )
    try:
        shell.delaybeforesend = None
        lab.marks.wait("saved", 2, rank=0)
        shell.sendcontrol("c")
        shell.expect(pexpect.EOF)
        shell.wait()
        status = shell.exitstatus if shell.exitstatus is not None else -shell.signalstatus
        assert status in INTERRUPTED
    finally:
        shell.close(force=True)
    check_run(lab.trial_dir)
    assert {mark["rank"] for mark in lab.marks.read("stopping")} == {0, 1}, "the workers got the signal themselves"


@pytest.mark.faults
def test_worker_that_never_reports_again_is_killed(lab: Laboratory) -> None:
    """It has half a minute to come to its next report."""
    plan = lab.plan(Action("block", 4, 1))
    with lab.drive(plan) as driver:
        lab.marks.wait("action", do="block")
        driver.family()
        driver.send(signal.SIGINT)
        assert driver.wait(90) in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    continue_run(lab, plan)


def test_worker_that_dies_while_the_run_stops_is_not_waited_for(lab: Laboratory) -> None:
    plan = lab.plan(Action("block", 4, 1), iterations=FOREVER, verbose=1)
    with lab.drive(plan) as driver:
        (mark,) = lab.marks.wait("action", do="block")
        driver.family()
        driver.send(signal.SIGINT)
        wait_for(lambda: "SIGINT" in driver.text(), "the driver to say that it stops")
        os.kill(mark["pid"], signal.SIGKILL)
        assert driver.wait(15) in INTERRUPTED  # and not after the half minute that a live rank would have
        check_run(lab.trial_dir, processes=driver.known())
    continue_run(lab, plan)


def test_second_interrupt_does_not_wait(lab: Laboratory) -> None:
    """C5."""
    plan = lab.plan(Action("block", 4, 1), iterations=FOREVER, failures={"stop_grace_s": 600.0}, verbose=1)
    with lab.drive(plan) as driver:
        lab.marks.wait("action", do="block")
        driver.family()
        driver.send(signal.SIGINT)
        wait_for(lambda: "SIGINT" in driver.text(), "the driver to say that it stops")
        driver.send(signal.SIGINT)
        assert driver.wait() in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    assert lab.outcome()["outcome"] == "interrupted"
    continue_run(lab, plan)


@pytest.mark.slow
def test_second_interrupt_ends_workers_that_are_given_time_to_end(lab: Laboratory) -> None:
    """Their exit hangs; the driver lives on as in a notebook, so nobody else would clean up after it."""
    script = """
        import sys
        from pathlib import Path
        from paceline.air import RunConfig, ScalingConfig, session
        from paceline.testing.processes import Marks
        from paceline.testing.invariants import check_no_processes
        from paceline.train import DataParallelTrainer

        def loop(config):
            import atexit, signal
            marks = Marks(config["marks"])

            def hang():
                marks.say("exiting")
                signal.pause()

            atexit.register(hang)
            session.report({"iteration": 1})

        marks = Marks(sys.argv[1])
        trainer = DataParallelTrainer(
            loop,
            train_loop_config={"marks": sys.argv[1]},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=sys.argv[2], verbose=0),
        )
        try:
            trainer.fit()
        except KeyboardInterrupt:
            check_no_processes(Path(sys.argv[2]))
            marks.say("clean")
    """
    path = lab.root / "script.py"
    path.write_text(textwrap.dedent(script))
    arguments = [str(path), str(lab.marks.directory), str(lab.storage)]
    with Driver(arguments, output=lab.root / "script.txt") as driver:
        lab.marks.wait("exiting", 2)
        driver.family()
        driver.send(signal.SIGINT)
        wait_for(lambda: not _pending(driver.pid, signal.SIGINT), "the first interrupt to be taken")
        driver.send(signal.SIGINT)
        assert driver.wait() == 0
    assert lab.marks.read("clean")


DRIVER_STEPS = ["before_commit_rename", "after_commit_rename", "before_ack", "before_trash", "after_trash"]


@pytest.mark.parametrize("point", mostly_slow(DRIVER_STEPS, everyday=["after_commit_rename"]))
def test_run_continues_after_an_interrupt_while_the_driver_commits_or_deletes(lab: Laboratory, point: str) -> None:
    """C6: The driver stops itself exactly there; the interrupt is the first thing it finds on waking."""
    plan = lab.plan(iterations=FOREVER, checkpoints={"num_to_keep": 1})
    with lab.drive(plan, env=fault(point, "stop", rank="driver", times=2)) as driver:
        at_the_point = process(driver.pid)
        assert at_the_point is not None
        wait_until_stopped(at_the_point)
        driver.family()
        driver.send(signal.SIGINT)
        driver.send(signal.SIGCONT)
        assert driver.wait() in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    assert [read_state(path) for path in committed_checkpoints(lab.trial_dir)]
    continue_run(lab, plan)


@pytest.mark.parametrize("wakes", [pytest.param(True, marks=pytest.mark.slow), long_run(False)])
def test_run_continues_after_an_interrupt_while_a_worker_writes_a_checkpoint(lab: Laboratory, wakes: bool) -> None:
    plan = lab.plan(iterations=FOREVER)
    with lab.drive(plan, env=fault("after_stage_file", "stop", rank=0, attempt=0, times=5)) as driver:
        pid = lab.marks.wait("started", rank=0)[0]["pid"]
        writer = process(pid)
        assert writer is not None
        wait_until_stopped(writer)
        driver.family()
        driver.send(signal.SIGINT)
        if wakes:
            os.kill(writer.pid, signal.SIGCONT)
        assert driver.wait(90) in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    continue_run(lab, plan)


@pytest.mark.slow
def test_run_continues_after_an_interrupt_while_a_checkpoint_is_uploaded(lab: Laboratory) -> None:
    """C6: the upload never ends. The driver leaves it, and nothing torn can be seen in the store."""
    from tests.faults.gated_store import GatedStore, counting

    place = f"gated://{lab.root / 'store'}"
    program = ["-m", "tests.faults.gated_store", place, str(lab.marks.directory)]
    with Driver(program, output=lab.root / "driver.txt", cwd=Path(__file__).parents[2]) as driver:
        lab.marks.wait("uploading")
        driver.family()
        driver.send(signal.SIGINT)
        wait_for(lambda: not _pending(driver.pid, signal.SIGINT), "the interrupt to be taken")
        driver.send(signal.SIGINT)
        assert driver.wait() in INTERRUPTED, driver.text()
        check_no_processes(lab.root, driver.known())
    (stored,) = (lab.root / "store" / "gated").glob("DataParallelTrainer_*")
    assert [path.parent.name for path in stored.rglob("MANIFEST.json")] == []
    trainer = DataParallelTrainer.restore(
        f"{place}/gated/{stored.name}", counting, train_loop_config={"steps": 3}, storage_filesystem=GatedStore()
    )
    result = trainer.fit()
    assert list(result.metrics_dataframe["iteration"]) == [1, 2, 3]
    assert sorted(path.parent.name for path in stored.rglob("MANIFEST.json"))[-1] >= "checkpoint_000002"
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_one_interrupt_leaves_an_upload_that_never_ends_after_the_grace(lab: Laboratory) -> None:
    """C6: without a second Ctrl-C the driver waits for the upload for 30 s; asserted at ten times that."""
    place = f"gated://{lab.root / 'store'}"
    program = ["-m", "tests.faults.gated_store", place, str(lab.marks.directory)]
    results = {"PACELINE_RESULTS_DIR": str(lab.root / "results")}
    with Driver(program, output=lab.root / "driver.txt", cwd=Path(__file__).parents[2], env=results) as driver:
        lab.marks.wait("uploading")
        driver.family()
        began = time.monotonic()
        driver.send(signal.SIGINT)
        assert driver.wait(timeout=300) in INTERRUPTED, driver.text()
        print(f"it took {time.monotonic() - began:.1f} s")
        (journal,) = (lab.root / "results").rglob("journal.jsonl")
        check_run(journal.parent, processes=driver.known(), attempts=1)
    assert list((lab.root / "store").rglob("MANIFEST.json")) == []


class GateBackend(Backend):
    """Stands still in the driver while the group of one attempt starts."""

    def on_start(self, worker_group: object, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, GateConfig)
        marks = Marks(backend_config.marks)
        marks.say("group starts")
        if len(marks.read("group starts")) == backend_config.attempt:
            marks.say("at the gate")
            marks.pass_gate("start")


class GateConfig(BackendConfig):
    def __init__(self, marks: str, attempt: int) -> None:
        self.marks = marks
        self.attempt = attempt

    @property
    def backend_cls(self) -> type[Backend]:
        return GateBackend


@pytest.mark.parametrize("attempt", mostly_slow([1, 2], everyday=[2]))
def test_run_continues_after_an_interrupt_while_a_group_starts(lab: Laboratory, attempt: int) -> None:
    """C6."""
    plan = lab.plan(Action("exit", 3, 1, 9), failures={"max_failures": 3})
    script = lab.root / "script.py"
    script.write_text(
        "import sys\n"
        "from paceline.testing.scripts import ScriptPlan, make_trainer\n"
        "from tests.faults.test_interrupts import GateConfig\n"
        "plan = ScriptPlan.load(sys.argv[1])\n"
        "make_trainer(plan, backend=GateConfig(plan.marks, int(sys.argv[2]))).fit()\n"
    )
    arguments = [str(script), str(plan.save(lab.root / "plan.json")), str(attempt)]
    with Driver(arguments, output=lab.root / "script.txt") as driver:
        lab.marks.wait("at the gate")
        driver.family()
        driver.send(signal.SIGINT)
        lab.marks.open_gate("start")
        assert driver.wait() in INTERRUPTED
        check_run(lab.trial_dir, processes=driver.known())
    lab.succeed(plan.continued(lab.trial_dir), backend=GateConfig(plan.marks, attempt))


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize("number", mostly_slow([signal.SIGTERM, signal.SIGHUP], everyday=[signal.SIGTERM]))
def test_hangup_and_termination_leave_a_run_that_can_be_continued(lab: Laboratory, number: signal.Signals) -> None:
    plan = lab.plan(iterations=FOREVER, every=5, checkpoints={"num_to_keep": 2})
    with lab.drive(plan) as driver:
        lab.marks.wait("saved", 2, rank=0)
        driver.family()
        driver.send(number)
        assert driver.wait() in (-number, 128 + number)
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    continue_run(lab, plan)


@pytest.mark.slow
def test_nohup_is_respected(lab: Laboratory) -> None:
    """C9."""
    plan = lab.plan(*[Action("wait", 3, rank, str(lab.marks.directory)) for rank in (0, 1)])
    with lab.drive(plan, prefix=("nohup",)) as driver:
        lab.marks.wait("action", 2, do="wait")
        driver.send(signal.SIGHUP)
        lab.marks.open_gate("worker")
        assert driver.wait() == 0
    check_run(lab.trial_dir)


@pytest.mark.usefixtures("fault_engine")
def test_signal_handlers_come_back(lab: Laboratory) -> None:
    """C9."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD]
    before = [signal.getsignal(number) for number in numbers]
    lab.succeed(lab.plan(iterations=2))
    assert [signal.getsignal(number) for number in numbers] == before
    lab.fail(lab.plan(Action("exit", 2, 1, 3)), {"kind": "exit"})
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.usefixtures("fault_engine")
def test_fit_works_in_a_thread_and_in_an_event_loop(lab: Laboratory) -> None:
    """C9."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(make_trainer(lab.plan(iterations=2)).fit()))
    thread.start()
    thread.join()

    async def notebook_cell() -> None:
        results.append(make_trainer(lab.plan(iterations=2)).fit())
        results.append(await asyncio.to_thread(make_trainer(lab.plan(iterations=2)).fit))

    asyncio.run(notebook_cell())
    for result in results:
        check_run(result.path, result=result, iterations=2, attempts=1)


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize("closed", mostly_slow(["stdout", "stderr", "both"], everyday=["both"]))
def test_run_finishes_though_the_reader_of_its_output_goes_away(lab: Laboratory, closed: str) -> None:
    """C10: Like ``| head -1``: whoever reads the output has left before the first line is written."""
    plan = lab.plan(iterations=50, every=0, verbose=3)
    path = plan.save(lab.root / "plan.json")
    reading, writing = os.pipe()
    os.close(reading)
    program = subprocess.Popen(
        [sys.executable, "-m", "paceline.testing.scripts", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=writing if closed in ("stdout", "both") else subprocess.DEVNULL,
        stderr=writing if closed in ("stderr", "both") else subprocess.DEVNULL,
    )
    os.close(writing)
    program.wait(60)
    assert lab.outcome()["outcome"] == "finished"
    check_run(lab.trial_dir)
    assert len(Result.from_path(str(lab.trial_dir)).metrics_dataframe) == 50


def wait_until_stopped(target: Process) -> None:
    wait_for(lambda: target.state == "T", f"process {target.pid} to stop itself")


def _pending(pid: int, number: signal.Signals) -> bool:
    """True while the kernel still holds a signal for the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
