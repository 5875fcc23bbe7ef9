from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli, Runs, fit


def test_what_differs_is_marked(runs: Runs, cli: Cli) -> None:
    rows = json.loads(cli("diff", runs.finished, runs.failed, "--json").out)
    by_key = {(row["part"], row["key"]): row for row in rows}
    assert by_key["config", "lr"]["differs"] is False
    failing = by_key["config", "fails_at"]
    assert (failing["differs"], failing["finished"], failing["failed"]) == (True, None, 1)
    said = cli("diff", runs.finished, runs.failed).out
    lines = [line.split() for line in said.splitlines()]
    assert ["*", "fails_at", "-", "1"] in lines
    assert ["lr", "0.1", "0.1"] in lines


def test_only_what_changed(runs: Runs, cli: Cli) -> None:
    rows = json.loads(cli("diff", "--only-changed", runs.finished, runs.failed, "--json").out)
    assert {row["key"] for row in rows if row["part"] == "config"} == {"fails_at"}
    assert all(row["differs"] for row in rows)
    said = cli("diff", "--only-changed", runs.finished, runs.rotten)
    assert said.out == "These runs do not differ.\n"


def test_three_runs(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    other = fit(tmp_path, "other", {"lr": 0.5})
    rows = json.loads(cli("diff", runs.finished, runs.failed, other, "--only-changed", "--json").out)
    lr = next(row for row in rows if row["key"] == "lr")
    assert [value for key, value in lr.items() if key not in ("part", "key", "differs")] == [0.1, 0.1, 0.5]


def test_trials_of_a_search_can_be_compared_and_the_search_cannot(runs: Runs, cli: Cli) -> None:
    trials = [row["path"] for row in json.loads(cli("ls", runs.search, "--json").out)]
    rows = json.loads(cli("diff", *trials, "--only-changed", "--json").out)
    assert "x" in {row["key"] for row in rows}
    said = cli("diff", runs.search, runs.finished)
    assert (said.code, "is a search" in said.err) == (2, True)


def test_bad_input(runs: Runs, cli: Cli) -> None:
    assert cli("diff", runs.finished).code == 2
    assert cli("diff", runs.finished, runs.finished).code == 2
    assert cli("diff", runs.finished, runs.damaged).code == 3
