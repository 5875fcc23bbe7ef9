from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.cli.conftest import HOSTILE, WAIT_S, Cli, RemoteRuns, Runs, fit, live_run


@pytest.mark.parametrize("kind", ["finished", "failed", "killed", "live", "bitten", "rotten"])
def test_runs_of_every_kind(kind: str, runs: Runs, cli: Cli) -> None:
    said = cli("logs", runs.of_kind(kind))
    assert said.code == 0, said
    lines = said.out.splitlines()
    assert "rank 0 | step 0 of rank 0" in [line.rstrip() for line in lines]
    assert "rank 1 | step 1 of rank 1" in [line.rstrip() for line in lines]
    assert sorted(line for line in lines if "rank 0 |" in line) == [line for line in lines if "rank 0 | step" in line]


def test_ranks_patterns_and_tails(runs: Runs, cli: Cli) -> None:
    lines = cli("logs", runs.finished, "--rank", "1").out.splitlines()
    assert [line.split(" of ")[0] for line in lines] == [f"rank 1 | step {step}" for step in range(3)]
    assert len(cli("logs", runs.finished, "--grep", "step [02] of rank 0").out.splitlines()) == 2
    assert len(cli("logs", runs.finished, "-n", "3").out.splitlines()) == 3
    assert cli("logs", runs.finished, "-n", "0").out == ""


def test_lines_are_merged_by_time(runs: Runs, cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("logs", runs.finished, "--json").out.splitlines()]
    assert {row["rank"] for row in rows} == {0, 1}
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    assert abs(times[0] - time.time()) < 3600
    said = cli("logs", runs.finished, "--format", "csv").out.splitlines()
    assert (said[0], len(said)) == ("rank,time,text", 7)
    assert cli("logs", runs.finished, "-t").out[2] == ":"


def test_since(runs: Runs, cli: Cli) -> None:
    assert len(cli("logs", runs.finished, "--since", "1d").out.splitlines()) == 6
    assert len(cli("logs", runs.finished, "--since", "1h30m").out.splitlines()) == 6
    assert cli("logs", runs.finished, "--since", "2100-01-01").out == ""
    for bad in ("yesterday", "", "10x", "25:00"):
        said = cli("logs", runs.finished, "--since", bad)
        assert (said.code, len(said.err.splitlines())) == (2, 1)


def test_bad_input(runs: Runs, cli: Cli) -> None:
    for options in (["--rank", "7"], ["--rank", "x"], ["--grep", "("], ["-n", "-1"]):
        said = cli("logs", runs.finished, *options)
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    assert cli("logs", runs.damaged).code == 3
    assert cli("logs", runs.search).code == 2


def test_logs_of_a_remote_run_are_read_where_it_was_driven(
    remote: RemoteRuns, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = cli("logs", remote.finished)
    assert (said.code, said.out) == (1, "")
    assert "machine of the driver" in said.err
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "twins"))
    assert "step 0 of rank 1" in cli("logs", fit("s3://bucket/logs", "run", {})).out


def test_hostile_lines(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "hostile", {"says": HOSTILE})
    for options in ([], ["--json"], ["--format", "csv"]):
        said = cli("logs", path, *options)
        assert "img src=x" in said.out
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out), options


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    with live_run(tmp_path / "results", "run", tmp_path / "signs") as live:
        with following(live.path) as process:
            assert process.stdout is not None
            seen = [process.stdout.readline() for _ in range(6)]
            assert {line.split(" | ")[0] for line in seen} == {"rank 0", "rank 1"}
            live.end()
            process.wait(WAIT_S)
        assert process.returncode == 0


def test_following_shows_new_lines_and_ends_with_ctrl_c(runs: Runs, tmp_path: Path) -> None:
    with following(runs.live, "-n", "1", "--json") as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        # What a worker writes from now on is appended to its log.
        with open(Path(runs.live) / "logs" / "rank_1.log", "a") as log:
            log.write("a new line\n")
        assert json.loads(process.stdout.readline())["text"] == "a new line"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130


def silent(config: dict[str, Any]) -> None:
    raise ValueError("nothing was printed")


def test_workers_that_wrote_nothing(cli: Cli, tmp_path: Path) -> None:
    result = DataParallelTrainer(
        silent,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="silent", storage_path=str(tmp_path), verbose=0),
    ).fit(raise_on_error=False)
    said = cli("logs", result.path)
    assert (said.code, said.out) == (0, "")
    assert "wrote nothing" in said.err
    assert "rank_0.log" not in str(result.error)


def test_options_that_leave_nothing(runs: Runs, cli: Cli) -> None:
    said = cli("logs", runs.finished, "--grep", "nowhere in the logs")
    assert (said.code, said.out) == (0, "")
    assert "--grep" in said.err
    assert "wrote nothing" not in said.err


@contextlib.contextmanager
def following(path: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``paceline logs -f`` in another process."""
    command = [sys.executable, "-m", "paceline.cli.main", "logs", "-f", path, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
