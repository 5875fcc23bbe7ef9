"""The driver dies, or two of them want the same run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import textwrap
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Result, ScalingConfig
from paceline.air.errors import RunLockedError
from paceline.run.records import AttemptStarted, RunRecords
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.testing.invariants import check_run, journal_records
from paceline.testing.processes import Driver, children, process, wait_for
from paceline.testing.scripts import Action, ScriptPlan, counting_loop, make_trainer
from paceline.train import DataParallelTrainer
from tests.faults.cases import long_run, mostly_slow, rounds
from tests.faults.laboratory import Laboratory


def waiting(lab: Laboratory, iteration: int, workers: int = 2) -> list[Action]:
    """Every rank stands still before this iteration until the gate "worker" opens."""
    return [Action("wait", iteration, rank, str(lab.marks.directory)) for rank in range(workers)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """A run whose driver was killed while the workers stood before iteration 4."""
    lab = Laboratory(tmp_path_factory.mktemp("killed"))
    with lab.drive(lab.plan(*waiting(lab, 4))) as driver:
        lab.marks.wait("action", 2, do="wait")
        driver.kill()
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    return lab


@pytest.fixture
def orphan(killed: Laboratory, lab: Laboratory) -> Laboratory:
    """A copy of that run, to damage and to continue."""
    shutil.copytree(killed.storage, lab.storage)
    shutil.copytree(killed.marks.directory, lab.marks.directory, dirs_exist_ok=True)
    return lab


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize("repeats", [1, long_run(rounds(10))])
def test_killed_driver_leaves_nothing_and_its_run_continues(lab: Laboratory, repeats: int) -> None:
    """C1."""
    for repeat in range(repeats):
        turn = Laboratory(lab.root / f"turn_{repeat}")
        daemons = [Action("daemons", 3, rank, str(turn.marks.directory)) for rank in range(4)]
        plan = turn.plan(*daemons, *waiting(turn, 4, 4), workers=4)
        with turn.drive(plan) as driver:
            turn.marks.wait("action", 4, do="wait")
            said = [*turn.marks.read("started"), *turn.marks.read("daemon")]
            alive = [found for mark in said if (found := process(mark["pid"]))]
            assert len(alive) == 16
            driver.kill()
            check_run(turn.trial_dir, processes=[*driver.known(), *alive], swept=False)
        assert DataParallelTrainer.can_restore(str(turn.trial_dir))
        turn.succeed(plan.continued(turn.trial_dir))
        assert {mark["after"] for mark in turn.marks.read("started")} == {0, 3}


@pytest.mark.parametrize("then", mostly_slow(["restore", "another run"], everyday=["another run"]))
def test_what_a_driver_killed_with_its_warden_left_is_ended_by_the_next(lab: Laboratory, then: str) -> None:
    daemons = [Action("daemons", 3, rank, str(lab.marks.directory)) for rank in range(2)]
    plan = lab.plan(*daemons, *waiting(lab, 4))
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 2, do="wait")
        left = [found for mark in lab.marks.wait("daemon", 6) if (found := process(mark["pid"]))]
        assert len(left) == 6
        first = lab.trial_dir
        driver.send(signal.SIGSTOP)  # so that neither can react to the end of the other
        for warden in children(driver.pid):
            os.kill(warden.pid, signal.SIGKILL)
            wait_for(lambda warden=warden: not warden.alive, "the warden's end")
        driver.kill()
        assert all(each.alive for each in left)
        assert DataParallelTrainer.can_restore(str(first))
        Result.from_path(str(first))
        assert all(each.alive for each in left), "who only looks ends nothing"
        if then == "restore":
            lab.succeed(plan.continued(first))
        else:
            elsewhere = Laboratory(lab.root / "elsewhere")
            elsewhere.succeed(elsewhere.plan())
        assert [each for each in left if each.alive] == []


def test_journal_torn_within_its_last_record_is_read(orphan: Laboratory) -> None:
    """C2."""
    trial_dir = orphan.trial_dir
    journal = trial_dir / "journal.jsonl"
    whole = journal.read_bytes()
    records = len(list(journal_records(trial_dir)))
    rows = Result.from_path(str(trial_dir)).metrics_dataframe
    assert len(rows) == 3
    last_record = whole[:-1].rindex(b"\n") + 1
    for end in range(last_record, len(whole), 3):
        journal.write_bytes(whole[:end])
        assert len(list(journal_records(trial_dir))) == records - 1
        assert DataParallelTrainer.can_restore(str(trial_dir))
        if end % 32 == 0:  # a dataframe takes its time
            assert len(Result.from_path(str(trial_dir)).metrics_dataframe) >= 2, f"cut at byte {end}"


CUTS = [1, 2, 10, 50, "last record", "two records", "inside the record before"]


@pytest.mark.parametrize("cut", mostly_slow(CUTS, everyday=[10, "two records", "inside the record before"]))
def test_torn_journal_is_continued(orphan: Laboratory, cut: int | str) -> None:
    """C2."""
    journal = orphan.trial_dir / "journal.jsonl"
    whole = journal.read_bytes()
    starts = [0, *[place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]]
    ends = {"last record": starts[-2], "two records": starts[-3], "inside the record before": starts[-2] - 7}
    journal.write_bytes(whole[: ends[cut]] if isinstance(cut, str) else whole[:-cut])
    orphan.succeed(orphan.plan().continued(orphan.trial_dir))
    resumed_after = orphan.marks.read("started", rank=0)[-1]["after"]
    assert resumed_after == 3 or (resumed_after == 2 and isinstance(cut, str)), "more was lost than was cut off"


DEATHS = {
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "exit at once": ("import os; os._exit(5)", 5),
    "system exit": ("raise SystemExit(6)", 6),
}


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize("death", mostly_slow(DEATHS, everyday=["segmentation fault"]))
def test_run_continues_after_its_driver_died_in_a_callback(lab: Laboratory, death: str) -> None:
    """C3."""
    statement, status = DEATHS[death]
    in_lockstep = {"keep_all_ranks": True}
    plan = lab.plan(Action("daemons", 2, 1, str(lab.marks.directory)), checkpoints=in_lockstep)
    script = f"""
        import sys
        from paceline.testing.scripts import ScriptPlan, make_trainer
        from paceline.tune.callback import Callback

        class Deadly(Callback):
            def on_trial_result(self, iteration, trials, trial, result, **info):
                if result["training_iteration"] == 4:
                    {statement}

        make_trainer(ScriptPlan.load(sys.argv[1]), callbacks=[Deadly()]).fit()
    """
    with run_script(lab, script, plan.save(lab.root / "plan.json")) as driver:
        lab.marks.wait("daemon", 3)
        driver.family()
        assert driver.wait() == status
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    lab.succeed(plan.continued(lab.trial_dir))


def test_workers_outlive_the_thread_that_started_their_engine(lab: Laboratory) -> None:
    """C3: A death signal tied to a thread would kill them when that thread ends."""
    plan = lab.plan(iterations=3)
    script = """
        import sys, threading
        from paceline.testing.scripts import ScriptPlan, make_trainer
        from paceline.testing.processes import Marks, descendants
        import os

        plan = ScriptPlan.load(sys.argv[1])
        first = threading.Thread(target=lambda: make_trainer(plan).fit())
        first.start()
        first.join()
        wardens = descendants(os.getpid())
        second = make_trainer(plan).fit()
        assert all(warden.alive for warden in wardens)
        assert wardens and set(descendants(os.getpid())) == set(wardens)
        Marks(plan.marks).say("both done", rows=len(second.metrics_dataframe))
    """
    with run_script(lab, script, plan.save(lab.root / "plan.json")) as driver:
        assert driver.wait() == 0
    assert [mark["rows"] for mark in lab.marks.read("both done")] == [3]
    assert len(lab.trial_dirs()) == 2
    for trial_dir in lab.trial_dirs():
        check_run(trial_dir)


@pytest.mark.usefixtures("fault_engine")
def test_second_driver_on_one_trial_is_refused(lab: Laboratory) -> None:
    """C8."""
    plan = lab.plan(*waiting(lab, 4))
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 2, do="wait")
        with pytest.raises(RunLockedError) as caught:
            make_trainer(plan.continued(lab.trial_dir)).fit()
        assert str(driver.pid) in str(caught.value)
        lab.marks.open_gate("worker")
        assert driver.wait() == 0
    check_run(lab.trial_dir)
    assert lab.outcome()["outcome"] == "finished"
    assert len(lab.marks.read("started")) == 2, "the second driver started workers"


def test_what_the_other_driver_wrote_before_it_let_go_is_seen(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other driver finishes the run between the first look at it and the lock."""
    plan = lab.plan(*waiting(lab, 4))
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 2, do="wait")
        acquire = RunLock.acquire

        def acquire_late(lock: RunLock) -> None:
            lab.marks.open_gate("worker")
            assert driver.wait() == 0
            acquire(lock)

        monkeypatch.setattr(RunLock, "acquire", acquire_late)
        result = lab.succeed(plan.continued(lab.trial_dir), attempts=1)
    assert len(result.best_checkpoints) == plan.iterations
    assert len(lab.marks.read("started")) == 2, "a finished run was run again"


def test_lock_of_a_dead_driver_is_taken_over(orphan: Laboratory) -> None:
    """C8."""
    lock = orphan.trial_dir / "lock"
    assert lock.exists()
    stale = json.loads(lock.read_text())
    lock.write_text(json.dumps({**stale, "boot_id": "another boot of the machine"}))
    orphan.succeed(orphan.plan().continued(orphan.trial_dir))


@pytest.mark.slow
@pytest.mark.parametrize("fewer", [1, 2, 3])
def test_a_run_continues_with_fewer_workers(lab: Laboratory, fewer: int) -> None:
    """C7: the run of a killed driver continues with 1 to 3 workers less, and its journal has both sizes."""
    plan = lab.plan(*waiting(lab, 4, 4), workers=4)
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 4, do="wait")
        driver.kill()
    result = continue_with(lab, plan, ScalingConfig(num_workers=4 - fewer))
    check_run(result.path, result=result, iterations=plan.iterations)
    assert sizes(lab.trial_dir) == [4, 4 - fewer]
    assert result.warnings == []


def test_a_run_continues_with_another_version(orphan: Laboratory) -> None:
    """C7: the killed driver was of another version, by what it has written; that is a warning and no more."""
    journal = orphan.trial_dir / "journal.jsonl"
    journal.write_bytes(b"".join(map(_of_version_99, journal_records(orphan.trial_dir))))
    result = continue_with(orphan, orphan.plan(), ScalingConfig(num_workers=2))
    check_run(result.path, result=result, iterations=orphan.plan().iterations)
    assert any(re.search(r"paceline 99\.0 -> \d", warning) for warning in result.warnings)


def _of_version_99(record: dict[str, Any]) -> bytes:
    if "versions" in record:
        record["versions"]["paceline"] = "99.0"
    body = json.dumps(record).encode()
    return b"%08x %d %s\n" % (zlib.crc32(body), len(body), body)


def counting_otherwise(config: dict[str, Any]) -> None:
    """Another function than the killed driver had; what it does is the same."""
    counting_loop(config)


def test_a_run_continues_with_changed_code(orphan: Laboratory, capsys: pytest.CaptureFixture[str]) -> None:
    """C7: the code is another one than the killed driver had, which the run says and uses."""
    plan = orphan.plan()
    trainer = make_trainer(plan.continued(orphan.trial_dir), loop=counting_otherwise)
    trainer.run_config = replace(trainer.run_config, verbose=1)
    result = trainer.fit()
    check_run(result.path, result=result, iterations=plan.iterations)
    assert "What differs: code (new: counting_otherwise" in capsys.readouterr().out


def continue_with(lab: Laboratory, plan: ScriptPlan, scaling: ScalingConfig) -> Result:
    trainer = make_trainer(plan.continued(lab.trial_dir))
    trainer.scaling_config = scaling
    return trainer.fit()


def sizes(trial_dir: Path) -> list[int]:
    """Of the attempts, as the journal has them."""
    return [record.world_size for record in RunRecords.read(RunDir(trial_dir)) if isinstance(record, AttemptStarted)]


def test_same_name_again_is_another_trial(lab: Laboratory) -> None:
    plan = lab.plan(*waiting(lab, 4))
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 2, do="wait")
        first = lab.trial_dir
        second = lab.succeed(lab.plan())
        assert second.path != str(first)
        assert Path(second.path).parent == first.parent
        lab.marks.open_gate("worker")
        assert driver.wait() == 0
    check_run(first)


def run_script(lab: Laboratory, source: str, *arguments: Path) -> Driver:
    """Run a program of the test's own."""
    script = lab.root / "script.py"
    script.write_text(textwrap.dedent(source))
    return Driver([str(script), *map(str, arguments)], output=lab.root / "script.txt")
