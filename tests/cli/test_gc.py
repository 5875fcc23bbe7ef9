"""``paceline gc``: what it removes, and what it never touches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paceline.run.found_runs import summary_of
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.train import Result
from tests.cli import test_doctor
from tests.cli.conftest import Cli, RemoteRuns, Runs, fit


def content(path: str | Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


@pytest.fixture
def run_dir(runs: Runs, tmp_path: Path) -> RunDir:
    """A finished run with two checkpoints, of which the older is worse, and with leftovers of a killed driver."""
    run_dir = RunDir(Path(shutil.copytree(runs.finished, tmp_path / "results" / "experiment" / "run")))
    (run_dir.root / ".checkpoint_000007.tmp-0-0123abcd").mkdir()
    (run_dir.root / ".checkpoint_000007.tmp-0-0123abcd" / "half").write_bytes(b"x" * 1000)
    (run_dir.root / ".trash-checkpoint_000000-0123abcd").mkdir()
    return run_dir


def test_leftovers_go_and_everything_else_stays(run_dir: RunDir, cli: Cli) -> None:
    before = content(run_dir.root)
    said = cli("gc", run_dir.root.parent, "--dry-run", "--json")
    told = json.loads(said.out)
    assert (said.code, told["dry_run"], len(told["removed"])) == (0, True, 2)
    assert sorted(each["size"] for each in told["removed"]) == [0, 1000]
    assert content(run_dir.root) == before, "a dry run changes nothing"

    said = cli("gc", run_dir.root.parent)
    assert (said.code, "Removed 2 leftovers" in said.out) == (0, True)
    assert run_dir.leftovers() == []
    after = content(run_dir.root)
    assert {name: each for name, each in before.items() if "tmp-" not in name and name != "lock"} == {
        name: each for name, each in after.items() if name != "lock"
    }
    assert cli("gc", run_dir.root.parent).out == "There is nothing to remove.\n"


def test_keep_removes_the_worse_checkpoints_and_the_run_knows(run_dir: RunDir, cli: Cli) -> None:
    told = json.loads(cli("gc", run_dir.root, "--keep", "1", "--dry-run", "--json").out)
    assert [each["path"] for each in told["removed"] if each["kind"] == "checkpoint"] == [str(run_dir.checkpoint(1))]
    assert len(run_dir.checkpoints()) == 2
    assert cli("gc", run_dir.root, "--keep", "1").code == 0
    assert [number for number, _ in run_dir.checkpoints()] == [2]
    summary = summary_of(run_dir.root)
    assert (summary.status, summary.reached.checkpoints, summary.reached.best) == (
        "finished",
        [2],
        {"loss": 1 / 3, "acc": {"top1": 0.2}},
    )
    result = Result.from_path(run_dir.root)
    assert (len(result.best_checkpoints), result.warnings, result.metrics["loss"]) == (1, [], 1 / 3)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 2
    assert cli("verify", run_dir.root).code == 0
    assert cli("gc", run_dir.root, "--keep", "1").out == "There is nothing to remove.\n"


def test_the_newest_checkpoint_stays_even_if_it_is_not_the_best(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "run", {"metrics": {}})
    run_dir = RunDir(Path(path))
    # The best by "loss" is the newest here; ranked the other way round it is the worst.
    journal = run_dir.journal.read_bytes()
    assert b'"checkpoint_score_order":"min"' in journal
    from paceline.storage.journal import Journal, read

    records = list(read(run_dir.journal))
    records[0]["settings"]["run_config"]["checkpoint_config"]["checkpoint_score_order"] = "max"
    run_dir.journal.unlink()
    writer = Journal(run_dir.journal)
    for record in records:
        writer.append(record)
    writer.close()
    assert cli("gc", path, "--keep", "1").code == 0
    assert [number for number, _ in run_dir.checkpoints()] == [1, 2]


def test_a_killed_run_can_be_continued_afterwards(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    run_dir = RunDir(Path(shutil.copytree(runs.killed, tmp_path / "run")))
    assert cli("gc", run_dir.root, "--keep", "1").code == 0
    (kept,) = [number for number, _ in run_dir.checkpoints()]
    summary = summary_of(run_dir.root)
    assert (summary.status, summary.reached.checkpoints) == ("killed", [kept])


def test_a_live_run_is_never_touched(runs: Runs, cli: Cli) -> None:
    before = {path.name for path in Path(runs.live).iterdir()}
    said = cli("gc", runs.live, "--keep", "1")
    assert said.code == 0
    assert "is live" in said.err
    assert before <= {path.name for path in Path(runs.live).iterdir()}
    assert len(RunDir(Path(runs.live)).checkpoints()) == 3


def test_trials_of_a_live_search_are_never_touched(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    search = Path(shutil.copytree(runs.search, tmp_path / "search"))
    (journal,) = search.glob("experiment-*.jsonl")
    trial = next(path for path in search.iterdir() if path.is_dir())
    (trial / ".trash-checkpoint_000009-0123abcd").mkdir()
    with RunLock(journal.with_suffix(".lock")):
        for place in (search, trial):
            for options in ([], ["--dry-run"]):
                said = cli("gc", place, "--keep", "1", *options)
                assert (said.code, said.out) == (0, "There is nothing to remove.\n")
                assert "is live" in said.err
    assert RunDir(trial).leftovers()
    assert len(RunDir(trial).checkpoints()) == 2
    assert cli("gc", search, "--keep", "1").code == 0
    assert [len(RunDir(path).checkpoints()) for path in search.iterdir() if path.is_dir()] == [1, 1, 1, 1]
    assert cli("show", search).code == 0


def test_damaged_runs_are_left_alone(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    for name in (runs.damaged, runs.finished):
        shutil.copytree(name, tmp_path / "results" / Path(name).parent.name / "run")
    damaged = tmp_path / "results" / "damaged" / "run"
    before = content(damaged)
    said = cli("gc", tmp_path / "results", "--keep", "1")
    assert said.code == 0
    assert str(damaged) in said.err
    assert content(damaged) == before
    assert "Removed 0 leftovers, 1 checkpoint" in said.out


def test_processes_of_a_killed_driver_are_ended(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "nowhere"))
    command = [sys.executable, "-c", test_doctor.DRIVER]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    left = psutil.Process(int(driver.stdout.readline()))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert "Would remove" in cli("gc", "--dry-run").out
    assert left.is_running()
    assert "1 process of a killed driver" in cli("gc").out
    psutil.wait_procs([left], timeout=10)
    assert not os.path.exists(f"/proc/{left.pid}") or left.status() == psutil.STATUS_ZOMBIE


def test_a_remote_run(remote: RemoteRuns, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "twins"))
    uri = fit("s3://bucket/gc", "run", {})
    told = json.loads(cli("gc", uri, "--keep", "1", "--dry-run", "--json").out)
    assert [each["path"] for each in told["removed"]] == [f"{uri}/checkpoint_000001"]
    assert cli("gc", uri, "--keep", "1").code == 0
    result = Result.from_path(uri)
    assert (len(result.best_checkpoints), result.warnings) == (1, [])
    summary = summary_of(uri)
    assert (summary.status, summary.reached.checkpoints, summary.alive) == ("finished", [2], False)
    assert cli("verify", uri).code == 0
    local = next((tmp_path / "twins" / "run").iterdir())
    assert len(RunDir(local).checkpoints()) == 2
    assert cli("gc", local, "--keep", "1").out == "There is nothing to remove.\n", "the store says what is kept"


def test_bad_input(cli: Cli, runs: Runs) -> None:
    for value in ("0", "-1", "x"):
        said = cli("gc", runs.root, f"--keep={value}")
        assert (said.code, len(said.err.splitlines())) == (2, 1)


def test_runs_that_stay_as_they_are_are_listed_on_request(
    run_dir: RunDir, runs: Runs, cli: Cli, tmp_path: Path
) -> None:
    tidy = shutil.copytree(runs.finished, tmp_path / "results" / "tidy" / "run")
    lines = cli("gc", tmp_path / "results", "--dry-run").out.splitlines()
    assert [line.split()[0] for line in lines] == ["leftover", "leftover", "Would"]
    lines = cli("gc", tmp_path / "results", "--dry-run", "-v").out.splitlines()
    assert [line for line in lines if line.startswith("untouched") and str(tidy) in line]


def test_requests_that_nobody_took_go(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    run_dir = RunDir(Path(shutil.copytree(runs.killed, tmp_path / "run")))
    cli("gc", run_dir.root)
    run_dir.requests.mkdir()
    (run_dir.requests / "0123.request").write_bytes(b"{}")
    told = json.loads(cli("gc", run_dir.root, "--dry-run", "--json").out)
    assert [each["path"] for each in told["removed"]] == [str(run_dir.requests)]
    assert run_dir.requests.is_dir()
    assert cli("gc", run_dir.root).code == 0
    assert not run_dir.requests.exists()
    assert run_dir.leftovers() == []
    assert cli("gc", run_dir.root).out == "There is nothing to remove.\n"
