"""What is seen of live runs from outside. Here the driver is this process, so the runs are those of threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from paceline import train
from paceline.run.records import Row
from paceline.storage.journal import Journal
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.view.live import LiveRun, live_runs, local_directory, recent_rate


def wait_for(path: str) -> None:
    import subprocess
    import sys

    # A child that writes elsewhere belongs to its rank all the same.
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    step = 0
    while not Path(path).exists():
        step += 1
        train.report({"step": step})
        time.sleep(0.02)
        if step > 3000:
            raise TimeoutError
    child.communicate()


def test_a_run_of_two_ranks(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        lambda config: wait_for(config["path"]),
        train_loop_config={"path": str(tmp_path / "release")},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    )
    thread = threading.Thread(target=trainer.fit)
    thread.start()
    try:
        found = _until_it_runs(tmp_path)
    finally:
        (tmp_path / "release").touch()
        thread.join()
    assert (found.summary.name, found.summary.status, list(found.ranks)) == ("run", "running", [0])
    assert found.ranks[0].processes == 2
    assert found.usage.memory > 1_000_000
    assert found.rate is not None
    assert found.rate > 0
    assert [each for each in live_runs() if each.summary.path.startswith(str(tmp_path))] == []


def _until_it_runs(root: Path) -> LiveRun:
    deadline = time.monotonic() + 60
    while True:
        own = [each for each in live_runs() if each.summary.path.startswith(str(root))]
        if own and own[0].rate is not None and own[0].ranks and own[0].ranks[0].processes == 2:
            return own[0]
        assert time.monotonic() < deadline, own
        time.sleep(0.05)


def test_the_rate_is_that_of_the_last_attempt_and_falls_when_nothing_comes(tmp_path: Path) -> None:
    journal, now = Journal(tmp_path / "journal.jsonl"), time.time()
    assert recent_rate(journal.path) is None

    def add(attempt: int, index: int, stamp: float) -> None:
        journal.append(Row(attempt=attempt, index=index, rank=0, stamp=stamp, elapsed=0.0, metrics={}))
        journal.flush()

    add(0, 1, now - 100)
    add(0, 2, now - 99)
    add(1, 1, now - 5)
    assert recent_rate(journal.path) is None
    add(1, 2, now)
    rate = recent_rate(journal.path)
    assert rate is not None
    assert abs(rate - 0.2) < 0.05
    quiet = Journal(tmp_path / "quiet.jsonl")
    for number in range(5):
        quiet.append(Row(attempt=0, index=number, rank=0, stamp=now - 1000 + number, elapsed=0.0, metrics={}))
    quiet.flush()
    rate = recent_rate(quiet.path)
    assert rate is not None
    assert rate < 0.01
    for each in (journal, quiet):
        each.close()


def test_a_uri_that_nobody_works_on_has_no_directory_here() -> None:
    assert local_directory("s3://bucket/nothing/here") is None
