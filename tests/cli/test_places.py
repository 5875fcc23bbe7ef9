from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.places import place
from paceline.view.catalog import find
from tests.cli.conftest import Cli, Runs


def test_a_trial_goes_by_its_id_its_name_and_its_directory(
    runs: Runs, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(runs.root))
    monkeypatch.chdir(tmp_path)
    trial = find(runs.search).searches[0].trials[1]
    for name in (trial.trial_id, f"objective_{trial.trial_id}", Path(trial.path).name):
        assert place(f"search/{name}") == trial.path
        assert json.loads(cli("show", f"search/{name}", "--json").out)["path"] == trial.path
        assert place(f"{runs.search}/{name}") == trial.path
    assert place(f"search/{trial.trial_id}/checkpoint_000000") == f"{trial.path}/checkpoint_000000"
    for command in (
        ["logs"],
        ["verify"],
        ["best", "--metric", "loss", "--mode", "min"],
        ["export", "--to", "csv", "-o", "-"],
        ["gc", "--dry-run"],
    ):
        said = cli(command[0], f"search/{trial.trial_id}", *command[1:])
        assert said.code == 0, (command, said)


def test_a_trial_that_is_not_found_is_told_what_to_write(
    runs: Runs, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(runs.root))
    monkeypatch.chdir(tmp_path)
    trial = find(runs.search).searches[0].trials[0]
    name = Path(trial.path).name
    said = cli("show", "search/nope")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert f"search/{name}" in said.err
    for alone in (name, trial.trial_id):
        said = cli("show", alone)
        assert (said.code, len(said.err.splitlines())) == (2, 1)
        assert f"search/{name}" in said.err
    assert cli("show", "nope").code == 2
