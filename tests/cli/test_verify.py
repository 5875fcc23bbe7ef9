from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.run_dir import RunDir
from tests.cli.conftest import Cli, RemoteRuns, Runs, fit


def test_everything_that_is_kept_is_read(runs: Runs, cli: Cli) -> None:
    said = cli("verify", runs.finished)
    assert said.code == 0
    assert said.out == "Read 2 checkpoints and 1 journal: nothing is damaged.\n"
    rows = json.loads(cli("verify", runs.search, "--json").out)
    assert {row["state"] for row in rows} == {"ok"}
    assert sum(row["kind"] == "checkpoint" for row in rows) == 8


def test_a_damaged_checkpoint_is_named(runs: Runs, cli: Cli) -> None:
    said = cli("verify", runs.rotten)
    assert said.code == 3
    assert "dict_checkpoint.pkl" in said.out
    assert "continue from the newest intact one" in said.err
    assert [row["state"] for row in json.loads(cli("verify", runs.rotten, "--json").out)] == ["ok", "ok", "damaged"]
    checkpoint = f"{runs.rotten}/checkpoint_000002"
    assert cli("verify", checkpoint).code == 3
    assert cli("verify", f"{runs.rotten}/checkpoint_000001").code == 0


def test_damage_in_a_journal_is_found(runs: Runs, cli: Cli) -> None:
    rows = json.loads(cli("verify", runs.bitten, "--json").out)
    assert [(row["kind"], row["state"]) for row in rows] == [
        ("journal", "damaged"),
        ("checkpoint", "ok"),
        ("checkpoint", "ok"),
    ]


def test_all_runs_below_a_directory(runs: Runs, cli: Cli) -> None:
    said = cli("verify", runs.root, "--json")
    assert said.code == 3
    damaged = {row["path"] for row in json.loads(said.out) if row["state"] == "damaged"}
    assert damaged == {runs.damaged, f"{runs.bitten}/journal.jsonl", f"{runs.rotten}/checkpoint_000002"}


def test_checkpoints_that_are_gone(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    run_dir = RunDir(Path(shutil.copytree(runs.finished, tmp_path / "run")))
    shutil.rmtree(run_dir.checkpoint(1))  # an older one, which its user did not need
    assert cli("verify", run_dir.root).code == 0
    (run_dir.checkpoint(2) / "MANIFEST.json").unlink()
    said = cli("verify", run_dir.root)
    assert (said.code, "MANIFEST.json" in said.out) == (3, True)
    shutil.rmtree(run_dir.checkpoint(2))
    assert cli("verify", run_dir.root).code == 3


def test_damage_on_a_store(remote: RemoteRuns, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "twins"))
    uri = fit("s3://bucket/damage", "run", {})
    store = FsspecFilesystem(uri)
    store.write_bytes("checkpoint_000002/dict_checkpoint.pkl", b"rotten")
    said = cli("verify", uri)
    assert (said.code, "dict_checkpoint.pkl" in said.out) == (3, True)
    assert cli("verify", f"{uri}/checkpoint_000001").code == 0
    assert cli("verify", f"{uri}/checkpoint_000002").code == 3
    assert cli("show", uri).code == 0
    store.write_bytes("journal.jsonl", b"00000000 no journal\n")
    for command in ("ls", "show", "best", "verify", "gc"):
        said = cli(command, uri)
        assert said.code == 3, (command, said)
        assert "s3://bucket/damage" in said.out + said.err


def test_only_problems_are_listed_unless_everything_is_asked_for(runs: Runs, cli: Cli) -> None:
    assert cli("verify", runs.finished).out == "Read 2 checkpoints and 1 journal: nothing is damaged.\n"
    lines = cli("verify", runs.finished, "-v").out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok", "Read"]
    lines = cli("verify", runs.rotten).out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["damaged", "Read"]
    assert lines[-1] == "Read 2 checkpoints and 1 journal: 1 damaged or unreadable."
    assert len(json.loads(cli("verify", runs.rotten, "--json").out)) == 3
    checkpoint = cli("verify", f"{runs.rotten}/checkpoint_000001")
    assert checkpoint.out == "Read 1 checkpoint: nothing is damaged.\n"


def test_a_path_that_is_nothing_of_the_kind(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in ("nope", tmp_path, tmp_path / "file", tmp_path / "nope"):
        said = cli("verify", path)
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert said.err.endswith("name a run, a search, a checkpoint, or a directory of them.\n")


def test_a_uri_with_nothing_at_it(remote: RemoteRuns, cli: Cli) -> None:
    said = cli("verify", "s3://bucket/nope")
    assert (said.code, "a checkpoint" in said.err) == (2, True)
