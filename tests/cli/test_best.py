from __future__ import annotations

import json
from pathlib import Path

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.cli.conftest import Cli, Runs


def test_the_best_checkpoint_of_a_run(runs: Runs, cli: Cli) -> None:
    (row,) = json.loads(cli("best", runs.finished, "--json").out)
    assert (row["value"], row["number"], row["metric"], row["mode"]) == (1 / 3, 2, "loss", "min")
    assert Path(row["path"], "MANIFEST.json").exists()
    ranked = json.loads(cli("best", runs.finished, "-n", "5", "--json").out)
    assert [each["number"] for each in ranked] == [2, 1]
    (row,) = json.loads(cli("best", runs.finished, "--mode", "max", "--metric", "loss", "--json").out)
    assert row["number"] == 1


def test_the_best_trial_of_a_search_is_not_a_failed_one(runs: Runs, cli: Cli) -> None:
    (row,) = json.loads(cli("best", runs.search, "--json").out)
    assert (row["value"], row["params"]) == (2, {"x": 1})
    ranked = json.loads(cli("best", runs.search, "-n", "9", "--json").out)
    assert [each["params"]["x"] for each in ranked] == [1, 2, 4]
    assert "x=1" in cli("best", runs.search).out


def test_the_best_of_several_runs(runs: Runs, cli: Cli) -> None:
    (row,) = json.loads(cli("best", runs.root, "--metric", "loss", "--mode", "max", "--json").out)
    assert row["value"] == 17


def test_what_cannot_be_ranked_is_told(runs: Runs, cli: Cli) -> None:
    said = cli("best", runs.finished, "--metric", "lss")
    assert (said.code, said.out) == (2, "")
    assert "'lss'" in said.err
    assert "acc/top1" in said.err
    assert cli("best", runs.finished, "-n", "0").code == 2
    said = cli("best", runs.search, "--metric", "x", "--mode", "min")
    assert said.code == 2


def only_reports() -> None:
    for loss in (3.0, 1.0, 2.0):
        train.report({"loss": loss})


def test_a_run_without_checkpoints_has_a_best_report(cli: Cli, tmp_path: Path) -> None:
    DataParallelTrainer(
        only_reports,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="own", storage_path=str(tmp_path), verbose=0),
    ).fit()
    own = tmp_path / "own"
    said = cli("best", own, "--metric", "loss", "--mode", "min", "--json")
    (row,) = json.loads(said.out)
    assert (said.code, row["value"], row["iteration"]) == (0, 1.0, 2)
    assert "checkpoint=... to train.report()" in said.err
    for options in ([], ["--metric", "los"], ["--metric", "los", "--mode", "min"]):
        said = cli("best", own, *options)
        assert said.code == 2
        assert "There are: loss." in said.err
    assert "--mode min or --mode max" in cli("best", own, "--metric", "loss").err
