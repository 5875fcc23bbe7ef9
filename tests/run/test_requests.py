"""A driver is asked from outside to stop, and for the stacks of its ranks."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import RequestError, RestoreError, StartCancelledError
from paceline.air.result import Result
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.inline import InlineEngine
from paceline.run.backend import Backend, BackendConfig
from paceline.run.decisions import StopRequest
from paceline.run.found_runs import summary_of
from paceline.run.inbox import Inbox, Request
from paceline.run.request_desk import RequestDesk
from paceline.run.requests import request_stacks, request_stop
from paceline.storage import lock
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.testing.scripts import Action, make_trainer
from paceline.train import DataParallelTrainer
from tests.faults.laboratory import Laboratory

FOREVER = 1_000_000
INTERRUPTED = (-signal.SIGINT, 130)


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


@pytest.fixture
def live(lab: Laboratory) -> Iterator[tuple[Laboratory, Driver]]:
    """A run of two ranks that counts for ever, with a checkpoint now and then."""
    with lab.drive(lab.plan(iterations=FOREVER, every=20, checkpoints={"num_to_keep": 2}, verbose=1)) as driver:
        lab.marks.wait("saved", rank=0)
        yield lab, driver


class TestStop:
    def test_all_ranks_stop_at_one_report_and_the_run_can_be_continued(self, live: tuple[Laboratory, Driver]) -> None:
        lab, driver = live
        request_stop(lab.trial_dir)
        assert driver.wait() in INTERRUPTED, "as after Ctrl-C"
        assert f"requested from outside, by process {os.getpid()}" in driver.text()
        last = {max(mark["iteration"] for mark in lab.marks.read("reported", rank=rank)) for rank in (0, 1)}
        assert len(last) == 1
        summary = summary_of(lab.trial_dir)
        assert (summary.status, summary.alive) == ("interrupted", False)
        assert not (lab.trial_dir / "requests").exists()
        more = int(summary.reached.iteration) + 2
        plan = lab.plan(iterations=more, restore=str(lab.trial_dir))
        assert make_trainer(plan).fit().status == "finished", "the request does not concern the next driver"

    def test_asked_twice_at_once(self, live: tuple[Laboratory, Driver]) -> None:
        lab, driver = live
        asking = [
            subprocess.Popen(
                [sys.executable, "-c", f"from paceline.run.requests import *; request_stop({str(lab.trial_dir)!r})"],
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        problems = [process.communicate(timeout=60)[1] for process in asking]
        assert driver.wait() in INTERRUPTED
        assert [process.returncode for process in asking].count(0) >= 1, problems
        for problem in filter(None, problems):  # it came when the run had ended already
            assert "RequestError" in problem
        assert not (lab.trial_dir / "requests").exists()

    def test_a_run_of_the_inline_engine(self, tmp_path: Path) -> None:
        marks = Marks(tmp_path / "marks")

        def loop() -> None:
            for step in range(FOREVER):
                session.report({"step": step})
                marks.say("reported")

        outcome: list[Any] = []

        def fit() -> None:
            config = RunConfig(name="inline", storage_path=str(tmp_path / "results"), verbose=0, engine="inline")
            try:
                DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
            except KeyboardInterrupt as interruption:
                outcome.append(interruption)

        thread = threading.Thread(target=fit)
        thread.start()
        marks.wait("reported")
        (path,) = (tmp_path / "results" / "inline").iterdir()
        assert "loop" in request_stacks(path)[0], "asked from the same process"
        request_stop(path)
        thread.join(60)
        assert outcome[0].result.status == "interrupted"


class TestStacks:
    def test_of_ranks_that_work_and_hang(self, lab: Laboratory) -> None:
        with lab.drive(lab.plan(Action("block", 4, 1), every=0, iterations=FOREVER)):
            lab.marks.wait("action", do="block")
            stacks = request_stacks(lab.trial_dir)
            assert list(stacks) == [0, 1]
            assert "_block" in stacks[1]
            assert "counting_loop" in stacks[0]
            assert not (lab.trial_dir / "requests").exists()

    def test_of_a_rank_that_is_stopped_and_of_one_that_has_returned(self, lab: Laboratory) -> None:
        plan = lab.plan(Action("wait", 3, 1, argument=str(lab.marks.directory)), every=0, iterations=3)
        with lab.drive(plan) as driver:
            (waiting,) = lab.marks.wait("action", do="wait")
            lab.marks.wait("returning", rank=0)
            stacks = wait_for(
                lambda: (found := request_stacks(lab.trial_dir)) and "has returned" in found[0] and found,
                "rank 0 has returned",
            )
            assert "pass_gate" in stacks[1]
            os.kill(waiting["pid"], signal.SIGSTOP)
            try:
                assert "did not answer" in request_stacks(lab.trial_dir)[1]
            finally:
                os.kill(waiting["pid"], signal.SIGCONT)
            lab.marks.open_gate("worker")
            assert driver.wait() == 0


class Gate(BackendConfig):
    """Workers come up when the test says so."""

    marks = ""

    @property
    def backend_cls(self) -> type[Backend]:
        return SlowStart


class SlowStart(Backend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        marks = Marks(Gate.marks)
        marks.say("starting")
        marks.pass_gate("start")


def test_a_run_whose_workers_come_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(tmp_path)
    monkeypatch.setattr(Gate, "marks", str(lab.marks.directory))
    outcome: list[Any] = []

    def fit() -> None:
        try:
            make_trainer(lab.plan(iterations=FOREVER, workers=1, every=0), backend=Gate()).fit()
        except KeyboardInterrupt as interruption:
            outcome.append(interruption)

    thread = threading.Thread(target=fit)
    thread.start()
    lab.marks.wait("starting")
    with pytest.raises(RequestError, match="workers are coming up"):
        request_stacks(lab.trial_dir)
    request_stop(lab.trial_dir)
    lab.marks.open_gate("start")
    thread.join(60)
    result: Result = outcome[0].result
    assert result.status == "interrupted"
    assert result.metrics["training_iteration"] < FOREVER


class FullEngine(InlineEngine):
    """There is never room."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def start_group(self, placement: Placement) -> WorkerGroup:
        assert placement.is_unwanted is not None
        self.waits.set()
        wait_for(placement.is_unwanted, "a run that is not wanted any more")
        raise StartCancelledError("there was no room")


def test_a_run_that_waits_for_room(tmp_path: Path) -> None:
    engine, outcome = FullEngine(), []

    def fit() -> None:
        config = RunConfig(name="waits", storage_path=str(tmp_path), verbose=0, engine=engine)
        try:
            DataParallelTrainer(print, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
        except KeyboardInterrupt as interruption:
            outcome.append(interruption)

    thread = threading.Thread(target=fit)
    thread.start()
    assert engine.waits.wait(60)
    (path,) = (tmp_path / "waits").iterdir()
    with pytest.raises(RequestError, match="workers are coming up"):
        request_stacks(path)
    request_stop(path)
    thread.join(60)
    engine.close()
    result: Result = outcome[0].result
    assert (result.status, result.error) == ("interrupted", None)
    assert any("no longer waiting for room" in text for text in result.warnings)
    assert summary_of(path).status == "interrupted"


class TestNobodyToAsk:
    def test_a_run_that_has_ended(self, lab: Laboratory) -> None:
        path = lab.succeed(lab.plan(iterations=1, workers=1)).path
        for ask in (request_stop, request_stacks):
            with pytest.raises(RequestError, match=r"is not running \(it has finished\)"):
                ask(path)
        assert not Path(path, "requests").exists()

    def test_a_run_whose_driver_was_killed(self, live: tuple[Laboratory, Driver]) -> None:
        lab, driver = live
        driver.kill()
        with pytest.raises(RequestError, match=r"is not running \(it was killed\)"):
            request_stop(lab.trial_dir)

    def test_a_driver_that_does_not_answer(self, live: tuple[Laboratory, Driver]) -> None:
        lab, driver = live
        driver.send(signal.SIGSTOP)
        try:
            with pytest.raises(RequestError, match=r"did not answer within 0\.3 s.*withdrawn"):
                request_stop(lab.trial_dir, timeout_s=0.3)
        finally:
            driver.send(signal.SIGCONT)
        assert not (lab.trial_dir / "requests").exists()
        assert request_stacks(lab.trial_dir), "it goes on"
        assert summary_of(lab.trial_dir).status == "running"

    def test_a_driver_that_dies_meanwhile(self, live: tuple[Laboratory, Driver]) -> None:
        lab, driver = live
        driver.send(signal.SIGSTOP)
        asked: list[Any] = []

        def ask() -> None:
            try:
                request_stop(lab.trial_dir, timeout_s=60)
            except RequestError as error:
                asked.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for((lab.trial_dir / "requests").exists, "the request")
        driver.kill()
        thread.join(60)
        assert "ended before it answered" in str(asked[0])
        assert not (lab.trial_dir / "requests").exists()

    def test_places_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(RestoreError, match="neither a run nor a search"):
            request_stop(tmp_path)
        with pytest.raises(RestoreError, match="does not exist"):
            request_stop(tmp_path / "gone")
        with pytest.raises(RequestError, match="no driver on this machine"):
            request_stop("s3://bucket/run")


@pytest.fixture
def held(run_dir: RunDir) -> Iterator[tuple[RunDir, Inbox]]:
    """A run that this process drives, without a loop."""
    run_dir.journal.touch()
    with RunLock(run_dir.lock) as held:
        yield run_dir, Inbox(run_dir.requests, held.holder)


def put(run_dir: RunDir, **changes: Any) -> Path:
    run_dir.requests.mkdir(mode=0o700, exist_ok=True)
    path = run_dir.requests / f"{secrets.token_hex(16)}.request"
    request = Request(what="stop", driver=lock.holder_of(run_dir.lock), pid=1)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(request, **changes)))
    return path


class TestWhatIsIgnored:
    """Files that somebody else may have put there."""

    def test_a_request_is_taken_once(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        put(run_dir)
        ((request, name),) = inbox.take()
        assert request.what == "stop"
        assert list(Inbox(run_dir.requests, lock.holder_of(run_dir.lock)).take()) == []
        assert len(name) == 32

    def test_mostly_nobody_looks(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        stop = StopRequest()
        desk = RequestDesk(inbox, stop)
        desk.look(None, "it waits")
        put(run_dir)
        desk.look(None, "it waits")
        assert not stop.pending, "at most one look per second"

    def test_whoever_looks_finds_what_is_there(self, held: tuple[RunDir, Inbox]) -> None:
        """A search looks at the inboxes of all its trials, and says itself how often."""
        run_dir, inbox = held
        assert list(inbox.take()) == []
        put(run_dir)
        assert len(list(inbox.take())) == 1

    def test_links_large_files_and_what_is_not_a_file(self, held: tuple[RunDir, Inbox], tmp_path: Path) -> None:
        run_dir, inbox = held
        real = put(run_dir)
        real.rename(tmp_path / "elsewhere")
        real.symlink_to(tmp_path / "elsewhere")
        put(run_dir, host="x" * 10_000)
        os.mkfifo(run_dir.requests / f"{'0' * 32}.request")
        (run_dir.requests / f"{'1' * 32}.request").mkdir()
        (run_dir.requests / f"{'2' * 32}.request").write_text("{}")
        (run_dir.requests / f"{'3' * 32}.request").write_text(json.dumps({"what": "delete", "driver": {}, "pid": 1}))
        (run_dir.requests / "../../x.request").touch()
        assert list(inbox.take()) == []
        assert (tmp_path / "elsewhere").exists()

    def test_a_link_in_the_place_of_the_folder(self, held: tuple[RunDir, Inbox], tmp_path: Path) -> None:
        run_dir, inbox = held
        put(run_dir)
        run_dir.requests.rename(tmp_path / "elsewhere")
        run_dir.requests.symlink_to(tmp_path / "elsewhere")
        assert list(inbox.take()) == []
        inbox.clear()
        assert len(list((tmp_path / "elsewhere").iterdir())) == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_files_of_another_user(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        os.chown(put(run_dir), 65534, 65534)
        assert list(inbox.take()) == []
        put(run_dir)
        os.chown(run_dir.requests, 65534, 65534)
        assert list(Inbox(run_dir.requests, lock.holder_of(run_dir.lock)).take()) == []
        os.chown(run_dir.root, 65534, 65534)
        with pytest.raises(RequestError, match="belongs to uid 65534"):
            request_stop(run_dir.root)

    def test_what_others_left_does_not_hide_a_request(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        put(run_dir)
        for number in range(200):
            (run_dir.requests / f".{number}.answer").touch()
        assert len(list(inbox.take())) == 1

    def test_a_request_to_an_earlier_driver(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        put(run_dir, driver={**lock.holder_of(run_dir.lock), "pid": 1})
        assert list(inbox.take()) == []
        inbox.clear()
        assert not run_dir.requests.exists()

    def test_a_request_to_this_driver_survives_its_start(self, held: tuple[RunDir, Inbox]) -> None:
        run_dir, inbox = held
        put(run_dir)
        put(run_dir, driver={})
        inbox.clear()
        assert len(list(inbox.take())) == 1


def test_requests_that_a_killed_driver_left_do_not_stop_the_next_one(live: tuple[Laboratory, Driver]) -> None:
    lab, driver = live
    driver.send(signal.SIGSTOP)
    request = put(RunDir(lab.trial_dir))
    driver.kill()
    more = int(summary_of(lab.trial_dir).reached.iteration) + 2
    assert request.exists()
    assert make_trainer(lab.plan(iterations=more, restore=str(lab.trial_dir))).fit().status == "finished"
    assert not request.parent.exists()


def test_a_damaged_answer_is_named(held: tuple[RunDir, Inbox]) -> None:
    run_dir, _ = held

    def answer() -> None:
        wait_for(lambda: list(run_dir.requests.glob("*.request")), "the request")
        (request,) = run_dir.requests.glob("*.request")
        half = request.with_suffix(".half")
        half.write_bytes(b'{"refused": ')
        half.rename(request.with_suffix(".answer"))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(RequestError, match=r"requests/\w+\.answer is damaged"):
        request_stop(run_dir.root)
    thread.join(60)
    assert not run_dir.requests.exists()
