"""Every command on a run of every kind: its exit code, and that its output can be used."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from paceline.cli.main import COMMANDS
from tests.cli.conftest import Cli, RemoteRuns, Runs

KINDS = ("live", "finished", "failed", "killed", "damaged", "bitten", "rotten", "search")
NEEDS_LIFE = 1
"""The exit code of a command that asks the driver of a run that has none."""
CODES: dict[tuple[str, ...], dict[str, int]] = {
    ("ls",): {"damaged": 3},
    ("show",): {"damaged": 3},
    ("best",): {"damaged": 3},
    ("verify",): {"damaged": 3, "bitten": 3, "rotten": 3},
    ("gc", "--dry-run", "--keep", "1"): {"damaged": 3, "bitten": 3},
    ("stacks",): {"damaged": 3, "live": 0, "search": NEEDS_LIFE, **dict.fromkeys(KINDS[1:4] + KINDS[5:7], NEEDS_LIFE)},
}
"""Where it is not 0."""
READING = [*CODES]


@pytest.mark.parametrize("command", READING, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_and_kinds_of_runs(command: tuple[str, ...], kind: str, runs: Runs, cli: Cli) -> None:
    name, *options = command
    path, expected = runs.of_kind(kind), CODES[command].get(kind, 0)
    said = cli(name, path, *options)
    assert said.code == expected, said
    if said.code in (1, 2, 3) and name != "verify":
        assert said.err.startswith("paceline: "), said
    assert "\x1b" not in said.out + said.err
    as_json = cli(name, path, *options, "--json")
    assert as_json.code == expected
    if as_json.out:
        json.loads(as_json.out)
    assert as_json.out or expected
    as_csv = cli(name, path, *options, "--format", "csv")
    assert as_csv.code == expected
    lengths = {len(row) for row in csv.reader(io.StringIO(as_csv.out))}
    assert len(lengths) <= 1, "every line has as many cells as the first"


@pytest.mark.parametrize("command", READING, ids=" ".join)
@pytest.mark.parametrize("kind", ["finished", "search", "root"])
def test_commands_on_remote_runs(command: tuple[str, ...], kind: str, remote: RemoteRuns, cli: Cli) -> None:
    name, *options = command
    said = cli(name, getattr(remote, kind), *options, "--json")
    if name == "stacks":
        assert said.code in (1, 2), said
    elif (name, kind) == ("best", "root"):
        assert (said.code, "loss" in said.out) == (0, True), said
    else:
        assert said.code == 0, said
        assert json.loads(said.out)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("doctor", "completion", "top", "port")])
def test_a_path_that_does_not_exist_is_one_sentence_and_code_2(name: str, cli: Cli, tmp_path: Path) -> None:
    needed = {"export": ["--to", "csv"], "diff": [str(tmp_path)]}
    said = cli(name, tmp_path / "no\x1b[2Jwhere", *needed.get(name, []))
    assert (said.code, said.out) == (2, ""), said
    assert len(said.err.splitlines()) == 1
    assert "where" in said.err
    assert "\x1b" not in said.err


@pytest.mark.parametrize("name", ["ls", "show", "best", "logs", "stop", "stacks", "verify", "gc", "dash"])
def test_paths_that_cannot_be(name: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in ("a" * 5000, tmp_path / ("a" * 300), tmp_path / "circle"):
        said = cli(name, path)
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1), said


@pytest.mark.parametrize("name", ["ls", "show", "best", "export", "stop", "stacks", "verify", "gc"])
def test_an_empty_directory_and_a_file_hold_no_runs(name: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place in ("empty", "file"):
        said = cli(name, tmp_path / place, *(["--to", "csv"] if name == "export" else []))
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1), said
