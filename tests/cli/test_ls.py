from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.cli.ls import progress_text
from paceline.run.display import cell_width
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.cli.conftest import HOSTILE, Cli, RemoteRuns, Runs, fit


def rows(cli: Cli, *arguments: object) -> dict[str, dict[str, Any]]:
    said = cli("ls", *arguments, "--json")
    assert said.code == 0, said
    return {row["name"]: row for row in json.loads(said.out)}


def test_it_lists_runs_and_searches_with_what_they_reached(runs: Runs, cli: Cli) -> None:
    found = rows(cli, runs.root)
    statuses = {name: row["status"] for name, row in found.items()}
    assert statuses == {
        "finished": "finished",
        "failed": "failed",
        "killed": "killed",
        "live": "running",
        "bitten": "finished",
        "rotten": "finished",
        "search": "finished",
        f"damaged/{Path(runs.damaged).name}": "damaged",
    }
    row = found["finished"]
    assert (row["iteration"], row["most_iterations"], row["attempts"], row["workers"]) == (3, 10, 1, 2)
    assert (row["metric"], row["best"], row["last"]) == ("loss", 1 / 3, 1 / 3)
    assert row["size"] > 0
    assert row["path"] == runs.finished
    assert row["ended"] > row["started"] > 0
    assert found["search"]["trials"] == {"all": 4, "finished": 3, "failed": 1}
    assert (found["search"]["metric"], found["search"]["best"]) == ("loss", 2)
    assert "the data has a hole" in found["failed"]["error"]


def test_the_table_has_a_line_for_each(runs: Runs, cli: Cli) -> None:
    said = cli("ls", runs.root)
    assert said.code == 0
    lines = {line.split()[0]: line for line in said.out.splitlines()}
    assert lines["NAME"].split() == ["NAME", "STATUS", "PROGRESS", "METRIC", "BEST", "LAST", "AGE", "SIZE"]
    assert lines["finished"].split()[1:6] == ["finished", "3/10", "loss", "0.33333", "0.33333"]
    assert lines["search"].split()[1:8] == ["finished,", "1", "failed", "4/4", "loss", "2", "17"]
    assert "damaged" in said.err
    assert len(said.err.splitlines()) == 1


def test_the_progress_of_a_search_has_its_total_if_that_is_known() -> None:
    search = {"kind": "search", "trials": {"all": 8, "finished": 5, "running": 2, "pending": 1}}
    assert progress_text({**search, "total": None}) == "5"
    assert progress_text({**search, "total": 12}) == "5/12"


def test_the_trials_of_a_search_have_their_parameters(runs: Runs, cli: Cli) -> None:
    found = rows(cli, runs.search)
    assert sorted(row["params"]["x"] for row in found.values()) == [1, 2, 3, 4]
    assert {row["kind"] for row in found.values()} == {"trial"}
    assert [row["last"] for row in found.values() if row["params"]["x"] == 4] == [17]
    assert "x=4" in cli("ls", runs.search).out


def test_sorting_puts_what_has_no_value_last(runs: Runs, cli: Cli) -> None:
    order = [row["params"]["x"] for row in json.loads(cli("ls", runs.search, "--sort-by", "x", "--json").out)]
    assert order == [1, 2, 3, 4]
    order = [
        row["params"]["x"] for row in json.loads(cli("ls", runs.search, "--sort-by", "loss", "--reverse", "--json").out)
    ]
    assert order == [4, 3, 2, 1]
    names = [row["name"] for row in json.loads(cli("ls", runs.root, "--sort-by", "iteration", "--json").out)]
    assert names[-2:] == ["search", f"damaged/{Path(runs.damaged).name}"]
    said = cli("ls", runs.root, "--sort-by", "nothing")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "iteration" in said.err


def test_filters_and_metrics(runs: Runs, cli: Cli) -> None:
    assert set(rows(cli, runs.root, "--status", "failed", "--status", "killed")) == {"failed", "killed"}
    row = rows(cli, runs.root, "--metric", "acc/top1")["finished"]
    assert (row["metric"], row["best"], row["last"]) == ("acc/top1", None, 0.2)
    assert cli("ls", runs.root, "--status", "unknown").code == 2


def test_the_results_directory_is_the_default(
    runs: Runs, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "nowhere"))
    assert (cli("ls").code, cli("ls").out) == (0, f"There are no runs yet in {tmp_path / 'nowhere'}.\n")
    assert cli("ls", "--json").out == "[]\n"
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(runs.root))
    assert "finished" in rows(cli)


def test_names_that_ls_shows_can_be_given_to_commands(
    runs: Runs, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(runs.root))
    monkeypatch.chdir(tmp_path)
    for name, row in rows(cli).items():
        if row["kind"] != "problem":
            shown = json.loads(cli("show", name, "--json").out)
            assert shown["path"] == row["path"]


def test_runs_of_one_experiment_have_longer_names(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    for number in range(2):
        shutil.copytree(runs.finished, tmp_path / "experiment" / f"run_{number}")
    assert set(rows(cli, tmp_path)) == {"experiment/run_0", "experiment/run_1"}
    assert set(rows(cli, tmp_path / "experiment")) == {"run_0", "run_1"}


def test_hostile_names_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "hostile", {"says": HOSTILE, "metrics": {HOSTILE: 1.0}})
    os.rename(path, tmp_path / "hostile" / f"x{HOSTILE}".replace("/", ""))
    for options in ([], ["--metric", HOSTILE], ["--json"], ["--format", "csv"], ["--metric", HOSTILE, "--json"]):
        said = cli("ls", tmp_path / "hostile", *options)
        assert said.code == 0, said
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out + said.err), options


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_of_any_width_shows_everything(width: int, runs: Runs) -> None:
    said = in_terminal(width, "ls", str(runs.root))
    for text in ("finished", "killed", "running", "4/4", "3/10", "0.33333"):
        assert text in said.replace("\n", " ") or text in said
    assert all(cell_width(line) <= width for line in said.splitlines())


def in_terminal(width: int, *arguments: str) -> str:
    """What a command prints in a terminal, without colors."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", *arguments],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(follower)
    said = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(leader)
    assert process.wait(60) == 0
    return said.decode().replace("\r\n", "\n")


def counting(config: dict[str, Any]) -> None:
    for epoch in range(2):
        train.report({"epoch": epoch, "step": 10 * epoch, "accuracy": 0.5, "val_loss": 0.25})


def test_counters_are_not_the_metric_of_a_run(cli: Cli, tmp_path: Path) -> None:
    settings = RunConfig(name="counting", storage_path=str(tmp_path), verbose=0, engine="inline")
    DataParallelTrainer(
        counting, train_loop_config={}, scaling_config=ScalingConfig(num_workers=1), run_config=settings
    ).fit()
    row = rows(cli, tmp_path)["counting"]
    assert (row["metric"], row["last"]) == ("val_loss", 0.25)
    row = rows(cli, tmp_path, "--metric", "epoch")["counting"]
    assert (row["metric"], row["last"]) == ("epoch", 1)


def test_a_metric_that_no_run_has_is_answered_with_those_that_exist(runs: Runs, cli: Cli) -> None:
    for place in (runs.root, runs.search, runs.finished):
        said = cli("ls", place, "--metric", "nonsense")
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert "nonsense" in said.err
        assert "loss" in said.err


def test_the_size_of_trials_that_have_ended_is_known(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    found = rows(cli, runs.search)
    assert all(row["size"] > 0 and row["checkpoints"] == 2 for row in found.values())
    assert sum(row["size"] for row in found.values()) == rows(cli, runs.root)["search"]["size"]
    assert all(row["size"] > 0 for row in json.loads(cli("show", runs.search, "--json").out)["all_trials"])
    copy = Path(shutil.copytree(runs.search, tmp_path / "search"))
    name = next(iter(found))
    shutil.rmtree(copy / name)
    assert (rows(cli, copy)[name]["size"], rows(cli, copy)[name]["checkpoints"]) == (None, None)


def test_the_size_of_remote_trials_is_not_known(remote: RemoteRuns, cli: Cli) -> None:
    assert {row["size"] for row in rows(cli, remote.search).values()} == {None}
