from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline import tune
from paceline.run.callbacks import Callback
from paceline.run.records import CheckpointCommitted, Ended, RanksUsed, RankUse
from paceline.trackers import TrackerCallback, send
from paceline.train import RunConfig
from paceline.tune import Tuner
from tests.cli.conftest import HOSTILE, Cli, RemoteRuns, Runs, fit, objective
from tests.trackers.ledger import LedgerTracker
from tests.view import journals


def test_a_failed_run_shows_the_rank_the_users_line_and_how_to_continue(runs: Runs, cli: Cli) -> None:
    said = cli("show", runs.failed).out
    assert "rank 1" in said
    assert "the data has a hole" in said
    assert 'raise ValueError("the data has a hole")' in said
    assert "conftest.py" in said
    assert f"DataParallelTrainer.restore('{runs.failed}'" in said
    row = json.loads(cli("show", runs.failed, "--json").out)
    assert (row["status"], row["failures"][-1]["rank"]) == ("failed", 1)


def test_a_finished_run_has_config_metrics_and_checkpoints(runs: Runs, cli: Cli) -> None:
    said = cli("show", runs.finished).out
    for text in ("status     finished", "iteration  3/10", "best loss  0.33333", "lr     0.1", "acc/top1  0.2"):
        assert text in said, text
    assert "To continue" not in said
    lines = said.splitlines()
    number = next(number for number, line in enumerate(lines) if "CHECKPOINT" in line)
    assert [line.split()[:3] for line in lines[number + 1 :][:2]] == [["1", "2", "0.5"], ["2", "3", "0.33333"]]
    row = json.loads(cli("show", runs.finished, "--json").out)
    assert row["config"] == {"train_loop_config": {"steps": 3, "lr": 0.1}}
    assert [each["kept"] for each in row["checkpoints"]] == [False, True, True]
    assert row["how_to_continue"] == ""


def test_a_live_and_a_killed_run(runs: Runs, cli: Cli) -> None:
    said = cli("show", runs.live).out
    assert "status     running" in said
    assert "To continue" not in said
    said = cli("show", runs.killed).out
    assert "status     killed" in said
    assert "To continue" in said


def test_a_search_has_its_best_and_its_failed_trials(runs: Runs, cli: Cli) -> None:
    said = cli("show", runs.search).out
    assert "Best trial" in said
    assert "x  1" in said
    assert "Failed trials" in said
    assert "x is three" in said
    assert "finished, 1 failed" in said
    assert f"Tuner.restore('{runs.search}', trainable=..., resume_errored=True).fit()" in said
    row = json.loads(cli("show", runs.search, "--json").out)
    assert (row["kind"], row["best"], len(row["all_trials"])) == ("search", 2, 4)


def test_a_search_that_was_killed_says_how_many_trials_it_would_have_had(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    journal = next(Path(runs.search).glob("experiment-*.jsonl"))
    lines = journal.read_bytes().splitlines(keepends=True)
    third = next(place for place, line in enumerate(lines) if b'{"kind":"trial","n":2' in line)
    (tmp_path / journal.name).write_bytes(b"".join(lines[:third]))
    assert "trials     2 of 4: 2 pending" in cli("show", tmp_path).out
    assert json.loads(cli("show", tmp_path, "--json").out)["total"] == 4


def test_a_trial_names_its_search(runs: Runs, cli: Cli) -> None:
    trial = json.loads(cli("ls", runs.search, "--json").out)[0]["path"]
    assert runs.search in cli("show", trial).out


def test_many_keys_are_counted_and_shown_on_request(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "many", {f"key_{number}": number for number in range(40)})
    short, long = cli("show", path).out, cli("show", path, "--all").out
    assert "key_39" not in short
    assert "and 34 more: see --all" in short
    assert "key_39" in long
    assert "key_39" in cli("show", path, "--json").out


def test_of_several_runs_it_shows_the_newest_and_says_so(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    for name in (runs.finished, runs.failed):
        shutil.copytree(name, tmp_path / "experiment" / Path(name).name)
    said = cli("show", tmp_path / "experiment")
    assert "status     failed" in said.out
    assert "contains 2 runs; showing the newest: " in said.err


def test_hostile_texts(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "hostile", {HOSTILE: HOSTILE, "metrics": {HOSTILE: HOSTILE}})
    for options in ([], ["--all"], ["--json"], ["--format", "csv"]):
        said = cli("show", path, *options)
        assert said.code == 0, said
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out), options


def test_the_memory_of_each_rank_can_be_asked_for_after_the_run(cli: Cli, tmp_path: Path) -> None:
    used = [
        RankUse(0, 1.0, 110_000_000, 1, 100_000_000, 120_000_000),
        RankUse(1, 1.0, 1_100_000_000, 1, 1, 1_200_000_000),
    ]
    records = [journals.header(), journals.attempt(), RanksUsed(attempt=0, time=1.0, ranks=used)]
    path = str(journals.write(tmp_path / "run", records))
    lines = [line.split() for line in cli("show", path).out.splitlines()]
    assert ["RANK", "AT", "START", "PEAK", "LAST"] in lines
    assert ["0", "100", "MB", "120", "MB", "110", "MB"] in lines
    assert [rank["peak"] for rank in json.loads(cli("show", path, "--json").out)["memory"]] == [
        120_000_000,
        1_200_000_000,
    ]
    assert cli("export", path, "--to", "html", "-o", str(tmp_path / "report.html")).code == 0
    assert ">1.2 GB</td>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("moment", [1e300, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("command", ["show", "ls"])
def test_times_that_no_clock_can_show_do_no_harm(cli: Cli, tmp_path: Path, command: str, moment: float) -> None:
    records = [
        msgspec.structs.replace(journals.header(), time=moment),
        msgspec.structs.replace(journals.attempt(start_time_s=moment), time=moment),
        msgspec.structs.replace(journals.row(1, {"loss": 0.25}), stamp=moment, elapsed=moment),
        Ended(status="finished", time=moment),
    ]
    path = str(journals.write(tmp_path / "run", records))
    shown = cli(command, path)
    assert shown.code == 0
    assert "finished" in shown.out


class Complaining(Callback):
    """Has something to say while the run goes on, and something at the very end, as trackers do."""

    def __init__(self) -> None:
        self.texts = ["the service was slow"]

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.texts.append("3 rows were not delivered")

    def take_warnings(self) -> list[str]:
        texts, self.texts = self.texts, []
        return texts


def test_warnings_of_callbacks_are_shown(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "warned", {}, callbacks=[Complaining()])
    shown = json.loads(cli("show", path, "--json").out)
    assert shown["warnings"] == ["the service was slow", "3 rows were not delivered"]
    assert (shown["status"], len(shown["ends"])) == ("finished", 1)
    said = cli("show", path).out
    assert "Warnings\n" in said
    assert "3 rows were not delivered" in said
    assert cli("verify", path).code == 0


def test_late_warnings_are_on_the_store(
    remote: RemoteRuns, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "twins"))
    uri = fit("s3://bucket/warned", "run", {}, callbacks=[Complaining()])
    assert json.loads(cli("show", uri, "--json").out)["warnings"][-1] == "3 rows were not delivered"


def test_rows_that_a_tracker_has_not_got_are_counted(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    tracker = TrackerCallback(LedgerTracker(tmp_path), wait_at_end_s=0.2, wait_when_down_s=0.2)
    Tuner(
        objective,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(name="tracked", storage_path=str(tmp_path / "results"), callbacks=[tracker], verbose=0),
    ).fit()
    search = tmp_path / "results" / "tracked"
    said = cli("show", search).out
    assert "ledger: 0 rows sent, 4 not sent yet" in said
    assert f"paceline.trackers.send('{search}', tracker=...)" in said
    (trial, _) = (each["path"] for each in json.loads(cli("ls", search, "--json").out))
    assert "ledger: 0 rows sent, 2 not sent yet" in cli("show", trial).out
    (tmp_path / "down").unlink()
    send(search, LedgerTracker(tmp_path))
    (state,) = json.loads(cli("show", search, "--json").out)["trackers"]
    assert (state["sent"], state["left"]) == (4, 0)


def test_rows_are_counted_of_trials_that_a_hanging_tracker_never_came_to(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    tracker = TrackerCallback(LedgerTracker(tmp_path), wait_at_end_s=0.2, wait_when_down_s=0.2)
    Tuner(
        objective,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(name="tracked", storage_path=str(tmp_path / "results"), callbacks=[tracker], verbose=0),
    ).fit()
    trials = [each["path"] for each in json.loads(cli("ls", tmp_path / "results" / "tracked", "--json").out)]
    said = [cli("show", trial).out for trial in trials]
    (tmp_path / "hang").unlink()
    assert len(said) == 2
    assert all("ledger: 0 rows sent, 2 not sent yet" in each for each in said), said


def test_validations(cli: Cli, tmp_path: Path) -> None:
    records = [journals.header(), journals.attempt()]
    for index in (1, 2, 3):
        (tmp_path / f"checkpoint_{index:06d}").mkdir()
        (tmp_path / f"checkpoint_{index:06d}" / "MANIFEST.json").touch()
        committed = CheckpointCommitted(number=index, iteration=index, row={"loss": 1.0})
        records += [journals.row(index, {"loss": 1.0}), journals.wanted(0, index), committed]
    records += [journals.validated(0, 1, {"error": 0.5}), journals.failed_validation(0, 2, "ValueError: no")]
    place = journals.write(tmp_path, records)
    lines = [line.split() for line in cli("show", place).out.splitlines()]
    shown = lines[lines.index(["Validations"]) + 2 :][:3]
    assert [(line[0], line[2]) for line in shown] == [("1", "done"), ("2", "failed"), ("3", "pending")]
    assert shown[0][-1] == "error=0.5"
    assert "ValueError:" in shown[1]
    row = json.loads(cli("show", place, "--json").out)
    assert [each["state"] for each in row["validations"]] == ["done", "failed", "pending"]
