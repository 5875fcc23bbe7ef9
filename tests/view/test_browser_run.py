"""The page of a run in a real browser, while it trains and after it failed, was killed or finished."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import expect

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.run.records import CheckpointCommitted, CheckpointRetired, Ended
from paceline.run.timing import StepTimes
from paceline.storage.run_dir import RunDir
from paceline.train import DataParallelTrainer
from paceline.view import dash
from tests.view.browsing import PATIENCE_MS, Tab
from tests.view.journals import STARTED, attempt, header, row, write
from tests.web.client import until

Open = Callable[..., Tab]

TRAINING = """
import sys, time
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer

def train(config):
    step = 0
    while True:
        step += 1
        print(f"rank {session.get_world_rank()} is at step {step}", flush=True)
        session.report({"loss": 1 / step})
        time.sleep(0.05)

root, name = sys.argv[1:]
DataParallelTrainer(
    train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name=name, storage_path=root, verbose=0)
).fit()
"""


def start_training(root: Path, name: str) -> subprocess.Popen[bytes]:
    """A driver of its own, which trains until it is stopped."""
    program = root.parent / f"{name}.py"
    program.write_text(TRAINING)
    return subprocess.Popen([sys.executable, program, str(root), name], stdout=subprocess.DEVNULL)


def train(config: dict[str, Any]) -> None:
    for step in range(1, 5):
        print(f"rank {session.get_world_rank()} is at step {step}")
        session.report({"loss": 1 / step}, checkpoint=Checkpoint.from_dict({"step": step, "bytes": bytes(5000)}))
        if session.get_world_rank() == 1 and step == 3:
            if config.get("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if config.get("raises"):
                broken_batch(step)


def broken_batch(step: int) -> None:
    raise ValueError(f"the batch of step {step} is broken")


def fit(root: Path, name: str, **config: Any) -> Path:
    scored = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    result = DataParallelTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name=name, storage_path=str(root), verbose=0, checkpoint_config=scored),
    ).fit(raise_on_error=False)
    return Path(str(result.path))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training") / "results"


@pytest.fixture(scope="module")
def server(root: Path, training: None) -> Iterator[Any]:
    with dash(root, port=0, blocking=False) as running:
        yield running


@pytest.fixture(scope="module")
def training(root: Path, no_process_left: None) -> Iterator[None]:
    """A run called "training" that is alive until a test stops it."""
    root.mkdir(parents=True)
    driver = start_training(root, "training")
    try:
        until(lambda: any(root.glob("training/*/journal.jsonl")))
        yield
    finally:
        driver.kill()
        driver.wait()


def wait_for_points(tab: Tab, metric: str, least: int) -> None:
    tab.page.wait_for_function(
        "([metric, least]) => Number(document.querySelector("
        "`.chart[data-metric='${metric}'] .plot`)?.dataset.points) >= least",
        arg=[metric, least],
        timeout=PATIENCE_MS,
    )


def test_a_curve_grows_while_the_run_trains(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    expect(tab.row("training")).to_contain_text("running")
    tab.go_to("training")
    wait_for_points(tab, "loss", 1)
    begin = tab.points("loss")
    wait_for_points(tab, "loss", begin + 15)
    expect(tab.find(".reading")).to_have_text(re.compile(r"^0\.\d+|^\d\.\d+e-"))
    tab.page.get_by_label("Smoothing").fill("0.5")
    wait_for_points(tab, "loss", begin + 25)
    assert len(tab.asked_for("^/api/series.*metric=loss")) <= 2  # once in the list, once here; then it only grows
    steps = tab.find(".facts div", has_text="Iteration").locator("dd")
    expect(steps).not_to_have_text(str(begin))


def test_a_followed_log(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    tab.go_to("training")
    tab.page.get_by_role("tab", name="Logs").click()
    last = tab.find(".line").last
    expect(last).to_have_text(re.compile(r"rank 0 is at step \d+"))
    seen = str(last.text_content())
    expect(last).not_to_have_text(seen)  # it goes on by itself
    tab.page.get_by_label("Rank", exact=True).select_option("all")
    expect(tab.find(".line", has_text="rank 1 is at").last).to_be_visible()
    expect(tab.find(".line", has_text="rank 0 is at").last).to_be_visible()
    tab.page.get_by_label("Search the log").fill("at step 3")
    tab.page.get_by_label("Search the log").press("Enter")
    tab.find(".hits button", has_text="rank 1 is at step 3").first.click()
    expect(tab.find(".line").first).to_have_text("rank 1 is at step 3")
    expect(tab.page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
    expect(tab.page).to_have_url(re.compile("[?&]at="))  # the address follows within a fraction of a second
    tab.page.reload()
    expect(tab.find(".line").first).to_have_text("rank 1 is at step 3")
    tab.page.keyboard.press("f")
    expect(tab.find(".line").last).not_to_have_text("rank 1 is at step 3")


def test_ranks_and_their_stacks(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    tab.go_to("training")
    tab.page.get_by_role("tab", name="Ranks").click()
    expect(tab.find("table tbody tr")).to_have_count(2)
    tab.page.get_by_role("button", name="Show the stacks of all ranks").click()
    expect(tab.find(".stack .own", has_text="in train").first).to_be_visible()
    assert sorted(re.findall(r"\d+", " ".join(tab.find(".stack h4").all_text_contents()))) == ["0", "1"]


def test_where_the_time_of_ranks_went(tmp_path: Path, show: Any, tab_of: Open) -> None:
    times = {0: StepTimes(1, 60_000, 600, 45_000), 1: StepTimes(1, 150_000, 120_000)}
    rows = [row(index, {}, rank=rank, times=times[rank]) for index in (1, 2, 3) for rank in (0, 1)]
    write(tmp_path / "uneven" / "run", [header("uneven"), attempt(), *rows, Ended(status="finished")])
    tab = tab_of(show(tmp_path))
    tab.open()
    tab.go_to("uneven")
    tab.page.get_by_role("tab", name="Ranks").click()
    expect(tab.find("table.plain th")).to_have_text(
        ["Rank", "State", "Last report", "Step time", "Data wait", "Report wait"]
    )
    expect(tab.find("table.plain tbody tr").first.locator("td")).to_have_text(
        ["0", "ended", "3", "60 ms", "0.6 ms 1 %", "45 ms 75 %"]
    )
    expect(tab.find("table.plain tbody tr").last.locator("td")).to_have_text(
        ["1", "ended", "3", "150 ms", "120 ms 80 %", "0 ms 0 %"]
    )
    expect(tab.find("table.plain td.slow")).to_have_text(["150 ms", "120 ms 80 %"])


def test_stopping_a_run_needs_a_yes(server: Any, tab_of: Open, root: Path) -> None:
    """The last test that needs the live run: it is over afterwards, and another one begins for whoever comes later."""
    tab = tab_of(server)
    driver = start_training(root, "stopped")
    try:
        tab.open()
        expect(tab.row("stopped")).to_contain_text("running")
        tab.go_to("stopped")
        tab.page.get_by_role("button", name="Stop …").click()
        tab.page.get_by_role("button", name="Cancel").click()
        expect(tab.find(".headline .status")).to_have_text("running")
        tab.page.get_by_role("button", name="Stop …").click()
        tab.page.get_by_role("button", name="Stop the run").click()
        expect(tab.find(".headline .status")).not_to_have_text("running")
        driver.wait(timeout=PATIENCE_MS / 1000)
    finally:
        driver.kill()
        driver.wait()


def test_the_page_of_a_run_with_a_killed_rank(tmp_path: Path, show: Any, tab_of: Open) -> None:
    path = fit(tmp_path, "killed", killed=True)
    tab = tab_of(show(tmp_path), permissions=["clipboard-read", "clipboard-write"])
    tab.open()
    expect(tab.row("killed")).to_contain_text("rank 1: the process was killed by SIGKILL")
    tab.go_to("killed")
    verdict = tab.find(".verdict")
    expect(verdict).to_contain_text("Rank 1: the process was killed by SIGKILL")
    expect(verdict).to_contain_text("rank 1 of 2")
    expect(verdict).to_contain_text(re.compile(r"Rank 0 reported \d iterations? in 1 attempt"))
    expect(verdict.locator(".last-report")).to_have_text("Last report of rank 1: iteration 3: loss 0.3333")
    expect(verdict).to_contain_text(re.compile(r"can continue from checkpoint \d+, after iteration \d\."))
    expect(verdict.locator("code")).to_contain_text(f"DataParallelTrainer.restore('{path}'")
    expect(tab.find(".tail")).to_contain_text("rank 1 is at step 3")
    verdict.get_by_role("button", name="Copy").click()
    expect(verdict.get_by_role("button", name="Copied")).to_be_visible()
    assert str(path) in tab.page.evaluate("navigator.clipboard.readText()")
    tab.page.get_by_role("tab", name="Logs").click()
    expect(tab.page.get_by_label("Rank", exact=True)).to_have_value("1")  # the one that failed
    tab.page.get_by_role("tab", name="Failure").click()
    tab.page.get_by_role("button", name="Log of rank 1").click()
    expect(tab.find(".line").last).to_contain_text("rank 1 is at step 3")


def test_a_traceback_shows_which_frames_are_the_users(tmp_path: Path, show: Any, tab_of: Open) -> None:
    fit(tmp_path, "raises", raises=True)
    tab = tab_of(show(tmp_path))
    tab.open()
    tab.go_to("raises")
    expect(tab.find(".verdict")).to_contain_text("ValueError: the batch of step 3 is broken")
    expect(tab.find(".trace .own").last).to_contain_text("in broken_batch")
    expect(tab.find(".trace .said").last).to_have_text("ValueError: the batch of step 3 is broken")


def test_a_run_whose_driver_was_killed(tmp_path: Path, show: Any, tab_of: Open) -> None:
    root = tmp_path / "results"
    root.mkdir()
    driver = start_training(root, "cut-off")
    tab = tab_of(show(root))
    try:
        tab.open()
        expect(tab.row("cut-off")).to_contain_text("running")
        tab.go_to("cut-off")
        wait_for_points(tab, "loss", 2)
    finally:
        driver.kill()
        driver.wait()
    expect(tab.find(".headline .status")).to_have_text("killed")
    expect(tab.find(".verdict")).to_contain_text("driver of this run is gone")
    expect(tab.find(".verdict")).to_contain_text("was last seen at 20")
    expect(tab.find(".verdict")).to_contain_text("It has no checkpoint")
    expect(tab.find(".verdict code")).to_contain_text("DataParallelTrainer.restore(")


def test_checkpoints_are_verified_and_downloaded(tmp_path: Path, show: Any, tab_of: Open) -> None:
    path = fit(tmp_path, "saved")
    tab = tab_of(show(tmp_path))
    tab.open()
    tab.go_to("saved")
    tab.page.get_by_role("tab", name="Checkpoints 2").click()
    lines = tab.find("tbody tr")
    expect(lines).to_have_count(4)
    expect(lines.nth(0)).to_contain_text("0.2500")
    expect(lines.nth(3)).to_contain_text("deleted")
    lines.nth(0).get_by_role("button", name="Verify").click()
    expect(lines.nth(0)).to_contain_text("intact")
    damaged = max(path.glob("checkpoint_*2"), key=lambda each: each.name)
    largest = max((file for file in damaged.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"?")
    lines.nth(1).get_by_role("button", name="Verify").click()
    expect(lines.nth(1).locator(".bad")).to_have_text("damaged")
    expect(lines.nth(2)).to_contain_text(largest.name)  # what is wrong, on a line of its own
    assert tab.find(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
    with tab.page.expect_download() as download:
        lines.nth(0).get_by_role("link", name="Download").click()
    archive = tmp_path / "download.tar"
    download.value.save_as(archive)
    with tarfile.open(archive) as tar:
        assert tar.getnames()


def test_many_ranks_and_checkpoints_that_are_gone(tmp_path: Path, show: Any, tab_of: Open) -> None:
    run = tmp_path / "wide" / "run"
    saved = [CheckpointCommitted(number=number, iteration=number, time=STARTED) for number in (1, 2, 3)]
    gone = [CheckpointRetired(number=1), CheckpointRetired(number=2, reason="damaged")]
    write(run, [header("wide"), attempt(), row(1, {"loss": 1.0}), *saved, *gone])
    logs = [RunDir(run).log(rank) for rank in range(100)]
    logs[0].parent.mkdir()
    for rank, log in enumerate(logs):
        log.write_text(f"rank {rank} has begun\n")
    tab = tab_of(show(tmp_path))
    tab.open()
    tab.go_to("wide")
    tab.page.get_by_role("tab", name="Logs").click()
    tab.page.get_by_label("Rank", exact=True).select_option("all")
    expect(tab.find(".text .line", has_text="rank 99 has begun")).to_be_visible()
    with logs[99].open("a") as log:
        log.write("rank 99 goes on\n")
    expect(tab.find(".text .line", has_text="rank 99 goes on")).to_be_visible()
    tab.page.get_by_role("tab", name="Checkpoints").click()
    expect(tab.find("table.plain tbody tr td:nth-last-child(2)")).to_have_text(
        ["missing", "damaged, put aside", "deleted"]
    )
