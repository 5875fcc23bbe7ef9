"""Commands on runs that are at work: stop, stacks and top."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cli import stop, top
from paceline.run.decisions import KILLED
from paceline.run.found_runs import summary_of
from paceline.run.records import Ended
from paceline.view.live import live_runs
from tests.cli.conftest import DRIVER, WAIT_S, Cli, RemoteRuns, Runs, live_run, until
from tests.view.journals import attempt, header, write


def test_stacks_of_every_rank(runs: Runs, cli: Cli) -> None:
    said = cli("stacks", runs.live)
    assert said.code == 0, said
    assert "rank 0\n" in said.out
    assert "rank 1\n" in said.out
    assert "in steps" in said.out
    rows = json.loads(cli("stacks", runs.live, "--rank", "1", "--json").out)
    assert [row["rank"] for row in rows] == [1]
    assert "driver.py" in rows[0]["stack"]


def test_the_users_frames_are_marked(runs: Runs, cli: Cli) -> None:
    lines = [line for line in cli("stacks", runs.live).out.splitlines() if 'File "' in line]
    marked = [line for line in lines if line.startswith("> ")]
    assert marked
    assert all(str(DRIVER) in line for line in marked)
    text = cli("stacks", runs.live).out
    assert re.search(r"^>     \S.*\n", text, re.MULTILINE), "the source of own lines"
    assert not re.search(r" $", text, re.MULTILINE)
    assert not any(str(DRIVER) in line for line in lines if line not in marked)


def test_a_directory_with_one_live_run_is_enough(runs: Runs, cli: Cli) -> None:
    other = cli("stacks", runs.live, "--rank", "7")
    assert (other.code, other.out) == (2, "")
    assert "has no rank 7: there are ranks 0, 1." in other.err
    assert cli("stacks", Path(runs.live).parent).code == 0
    assert cli("stacks", runs.root).code == 0


def test_stop_ends_a_run_at_its_next_report(cli: Cli, tmp_path: Path) -> None:
    with live_run(tmp_path / "results", "run", tmp_path / "signs") as live:
        said = cli("stop", tmp_path / "results", "--wait")
        assert said.code == 0, said
        assert "has stopped" in said.out
        live.process.wait(WAIT_S)
        summary = summary_of(live.path)
        assert (summary.status, summary.alive) == ("interrupted", False)
        said = cli("stop", live.path)
        assert (said.code, said.out, len(said.err.splitlines())) == (1, "", 1)
        assert "interrupted" in said.err


def test_stop_says_what_it_waits_for_and_whom_it_killed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "PATIENCE_S", 0.0)
    with live_run(tmp_path / "results", "run", tmp_path / "signs") as live:
        said = cli("stop", live.path, "--wait")
        assert "Ranks that come to none within 30 s are killed." in said.err
        assert "were killed" not in said.out
        live.process.wait(WAIT_S)
    path = write(tmp_path / "hung", [header(), attempt(), Ended(status="interrupted", warnings=[KILLED])])
    monkeypatch.setattr(stop, "live_at", lambda _path: summary_of(str(path)))
    monkeypatch.setattr(stop, "request_stop", lambda *_args, **_settings: None)
    assert "has stopped. Ranks that came to no report were killed." in cli("stop", "hung", "--wait").out


def test_stop_as_json_returns_when_the_driver_has_agreed(cli: Cli, tmp_path: Path) -> None:
    with live_run(tmp_path / "results", "run", tmp_path / "signs") as live:
        told = json.loads(cli("stop", live.path, "--json").out)
        assert told == {"path": live.path, "stop": "requested", "ended": False}
        until(lambda: not summary_of(live.path).alive)


def test_a_live_search_is_listed_and_stopped_as_a_whole(cli: Cli, tmp_path: Path) -> None:
    signs = tmp_path / "signs"
    signs.mkdir()
    driver = subprocess.Popen([sys.executable, str(DRIVER), str(tmp_path / "results"), "search", str(signs), "search"])
    try:
        until(lambda: all((signs / f"trial-{x}").exists() for x in (1, 2)) or driver.poll() is not None)
        (row,) = json.loads(cli("ls", tmp_path / "results", "--json").out)
        assert (row["kind"], row["status"], row["trials"]["running"]) == ("search", "running", 2)
        assert cli("show", tmp_path / "results" / "search").code == 0
        said = cli("stacks", tmp_path / "results" / "search")
        assert (said.code, len(said.err.splitlines())) == (1, 1)
        trial = json.loads(cli("ls", tmp_path / "results" / "search", "--json").out)[0]["path"]
        assert cli("stacks", trial).code == 0
        assert "is live" in cli("gc", tmp_path / "results", "--keep", "1").err
        assert cli("stop", tmp_path / "results", "--wait").code == 0
        driver.wait(WAIT_S)
    finally:
        (signs / "release").touch()
        driver.kill()
        driver.wait()
    (row,) = json.loads(cli("ls", tmp_path / "results", "--json").out)
    assert (row["status"], row["alive"]) == ("interrupted", False)
    assert "Tuner.restore" in cli("show", tmp_path / "results" / "search").out


@pytest.mark.parametrize("kind", ["finished", "failed", "killed", "bitten", "rotten", "search"])
def test_what_has_no_driver_cannot_be_stopped(kind: str, runs: Runs, cli: Cli) -> None:
    said = cli("stop", runs.of_kind(kind))
    assert (said.code, said.out, len(said.err.splitlines())) == (1, "", 1), said


def test_a_damaged_run_cannot_be_stopped(runs: Runs, cli: Cli) -> None:
    assert cli("stop", runs.damaged).code == 3


def test_of_several_live_runs_one_must_be_named(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    with live_run(runs.root, "another", tmp_path / "signs"):
        said = cli("stop", runs.root)
        assert (said.code, len(said.err.splitlines())) == (2, 1)
        assert runs.live in said.err

    shutil.rmtree(runs.root / "another")


def test_a_live_run_on_a_store_is_asked_where_its_driver_works(
    remote: RemoteRuns, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "twins"))
    with live_run("s3://bucket/live", "run", tmp_path / "signs") as live:
        uri = f"s3://bucket/live/run/{Path(live.path).name}"
        assert cli("stacks", uri).code == 0
        assert cli("show", uri).code == 0
        assert "running" in cli("ls", "s3://bucket/live").out
        assert cli("stop", uri, "--wait").code == 0
        live.process.wait(WAIT_S)
    assert cli("stop", uri).code == 1


def test_top_shows_ranks_rate_and_memory(runs: Runs, cli: Cli) -> None:
    rows = {row["path"]: row for row in json.loads(cli("top", "--json").out)}
    row = rows[runs.live]
    assert [rank["rank"] for rank in row["ranks"]] == [0, 1]
    assert all(rank["memory"] > 0 and rank["processes"] >= 1 for rank in row["ranks"])
    assert all(0 < rank["memory_at_start"] <= rank["memory_peak"] for rank in row["ranks"])
    assert all(rank["memory"] <= rank["memory_peak"] for rank in row["ranks"])
    assert all(rank["step_time_s"] >= 0.05 and rank["iteration"] > 3 and rank["rate"] > 0 for rank in row["ranks"])
    assert all(0 <= rank["report_wait_s"] < rank["step_time_s"] for rank in row["ranks"])
    assert all(0 <= time.time() - rank["last_report"] < WAIT_S for rank in row["ranks"])
    assert row["rate"] > 0
    assert row["cpu"] is not None
    assert row["driver"] == next(each.driver for each in live_runs() if each.summary.path == runs.live)
    said = cli("top", "--once").out
    assert said.splitlines()[0].split()[:4] == ["RUN", "PROGRESS", "LAST", "RATE"]
    assert "STEP" in said.splitlines()[0]
    assert "MEMORY  AT START" in said.splitlines()[0].replace("   ", "  ")
    assert "  rank 1 " in said
    assert cli("top", "--format", "csv").out.count("\n") == 3


def test_top_says_that_a_run_is_silent() -> None:
    now = time.time()
    ranks = [
        {"rank": 0, "last_report": now - 72.4, "usual_gap_s": 0.3},
        {"rank": 1, "last_report": now - 90.0, "usual_gap_s": 0.2},
        {"rank": 2, "last_report": None, "usual_gap_s": None},
    ]
    said = top._silence({"ranks": ranks})
    assert said == "no report for 1 min 12 s, before one every 300 ms: see paceline stacks"
    ranks[1]["last_report"] = now - 20
    assert top._silence({"ranks": ranks}) == "", "a rank reports"
    assert top._silence({"ranks": [{"last_report": now - 100, "usual_gap_s": 10.0}]}) == "", "its reports take long"
    assert top._silence({"ranks": []}) == ""


def test_without_live_runs_top_says_so(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert cli("top", "--once").out == "No run is live.\n"
    assert cli("top", "--json").out == "[]\n"
    assert cli("top", "--interval", "0").code == 2


def test_top_in_a_terminal_renews_its_picture_until_q(runs: Runs) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    command = [sys.executable, "-m", "paceline.cli.main", "top", "--interval", "0.2"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    said, deadline = b"", time.monotonic() + WAIT_S
    try:
        while said.count(b"rank 1") < 2:
            assert time.monotonic() < deadline, said
            if select.select([leader], [], [], 1.0)[0]:
                said += os.read(leader, 65536)
        os.write(leader, b"q")
        while process.poll() is None:
            assert time.monotonic() < deadline, said
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    said += os.read(leader, 65536)
                except OSError:
                    break
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert b"\x1b[?1049l" in said, "the screen is as it was"


@pytest.mark.parametrize("name", ["stop", "stacks"])
@pytest.mark.parametrize("timeout", ["nan", "inf", "-5", "0", "soon"])
def test_a_timeout_that_would_not_end(name: str, timeout: str, runs: Runs, cli: Cli) -> None:
    said = cli(name, runs.finished, f"--timeout={timeout}")
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    assert "number of seconds" in said.err
